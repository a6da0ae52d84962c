"""TokenCut against dense scipy, one picture at a time; components against scipy.ndimage; Krylov against numpy."""

from typing import cast

import judge_oracles as oracle
import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given
from hypothesis import strategies as st

from wellcond.data.procedural import procedural
from wellcond.evaluation import Scene, discovery, tokencut
from wellcond.evaluation.boxes import box_around, box_iou
from wellcond.evaluation.components import component_of, components
from wellcond.evaluation.tokencut import Cut, token_cut
from wellcond.spectral.krylov import leading_eigenpair

GRID = (12, 16)


def labelled(mask: np.ndarray) -> np.ndarray:
    numbers, _ = cast(tuple[np.ndarray, int], scipy.ndimage.label(mask))
    return numbers


def features(count: int, grid: tuple[int, int] = GRID, noise: float = 0.3) -> torch.Tensor:
    """Features that know a procedural picture's object a little: colours of its patches, mixed, and noise."""
    rng = np.random.default_rng(0)
    h, w = grid
    mix = rng.standard_normal((3 * 16, 32))
    found = []
    for index in range(count):
        picture = procedural(index, size=4 * max(grid)).image[: 4 * h, : 4 * w].astype(np.float64) / 255 - 0.5
        patches = picture.reshape(h, 4, w, 4, 3).transpose(0, 2, 1, 3, 4).reshape(h * w, 48)
        found.append(np.maximum(patches @ mix, 0) + noise * rng.standard_normal((h * w, 32)))
    return torch.from_numpy(np.stack(found))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_boxes_are_those_of_dense_eigenvectors(dtype):
    X = features(200).to(dtype)
    cut = token_cut(X, GRID)
    same, untied = 0, 0
    for i, x in enumerate(X.numpy()):
        box, found, y, tie = oracle.token_cut(x, GRID)
        assert bool(cut.tied[i]) == tie
        if tie:
            continue
        untied += 1
        same += tuple(cut.box[i].tolist()) == box and bool((cut.component[i].numpy() == found).all())
        torch.testing.assert_close(cut.eigenvector[i].numpy(), y, atol=1e-7 if dtype == torch.float64 else 1e-5, rtol=0)
    assert untied >= 190
    assert same >= 0.995 * untied


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_is_its_pictures_one_by_one_whatever_the_chunks(dtype, monkeypatch):
    X = features(7).to(dtype)
    whole = token_cut(X, GRID)
    monkeypatch.setitem(tokencut.MOST_NUMBERS, "cpu", 3 * 192**2)
    parts = token_cut(X, GRID)
    for i in range(7):
        alone = token_cut(X[i : i + 1], GRID)
        for name in ("box", "component", "seed", "tied"):
            assert torch.equal(getattr(alone, name)[0], getattr(whole, name)[i])
            assert torch.equal(getattr(parts, name)[i], getattr(whole, name)[i])


@pytest.mark.parametrize(("passes", "at_once"), [(1, 20), (2, 10), (4, 4), (4, 1)])
def test_layers_are_cut_together_as_many_as_one_pass_takes(passes, at_once, monkeypatch):
    """Four layers of four pictures, each as if alone: on a GPU a look at all layers was bound by launches."""
    layers: dict[int, torch.Tensor] = dict(zip((1, 2, 5, 7), features(16).float().split(4), strict=True))
    alone = {layer: token_cut(x, GRID) for layer, x in layers.items()}
    asked = []
    monkeypatch.setitem(tokencut.MOST_NUMBERS, "cpu", at_once * 192**2)
    monkeypatch.setattr(tokencut, "token_cut", lambda X, grid: asked.append(len(X)) or token_cut(X, grid))
    found = dict(tokencut.cut_layers(layers, GRID))
    assert len(asked) == passes and sum(asked) == 16 and list(found) == list(layers)
    for layer, cut in found.items():
        for name in ("box", "component", "seed", "tied"):
            assert torch.equal(getattr(cut, name), getattr(alone[layer], name))
        torch.testing.assert_close(cut.eigenvector, alone[layer].eigenvector, atol=1e-5, rtol=0)


def test_layers_of_other_shapes_are_cut_by_themselves():
    """Those of a pyramid; and where the shape of one is that of no grid, it is told as always."""
    X = features(2).float()
    layers = {0: X, 1: X, 2: torch.cat([X, X], 2), 3: X}
    found = dict(tokencut.cut_layers(layers, GRID))
    assert list(found) == list(layers)
    for layer, cut in found.items():
        assert torch.equal(cut.box, token_cut(layers[layer], GRID).box)
    with pytest.raises(ValueError, match=r"features are \(2, 48, 32\); expected \(B, 12 · 16, d\)"):
        list(tokencut.cut_layers({0: X, 1: X[:, :48]}, GRID))


def test_where_lanczos_does_not_converge_the_dense_solver_answers(monkeypatch):
    X = features(6)
    want = token_cut(X, GRID)
    weak = tokencut.leading_eigenpair
    monkeypatch.setattr(tokencut, "leading_eigenpair", lambda apply, known, tolerance: weak(apply, known, most=4))
    assert not weak(lambda Y: Y, torch.ones(1, 1, 50, dtype=torch.float64) / 50**0.5, tolerance=0, most=4).value.isnan()
    got = token_cut(X, GRID)
    assert torch.equal(got.box, want.box)
    torch.testing.assert_close(got.eigenvector, want.eigenvector, atol=1e-7, rtol=0)


def test_a_planted_object_is_found():
    X = torch.randn(1, 1, 1, 16) * torch.ones(1, 8, 10, 1)
    X[:, 2:5, 3:7] = torch.randn(16)
    X[:, 7, 9] = X[:, 3, 4]  # alike, but elsewhere: not of the component
    cut = token_cut((X + 1e-3 * torch.randn(X.shape)).flatten(1, 2), (8, 10))
    assert cut.box.tolist() == [[3, 2, 7, 5]]
    assert cut.foreground[0, 7, 9] and not cut.component[0, 7, 9]


@pytest.mark.parametrize(
    "X",
    [torch.ones(1, 16, 4), torch.eye(16)[None], torch.zeros(1, 16, 4)],
    ids=["all alike", "none alike", "no features at all"],
)
def test_a_picture_without_an_answer_is_marked_and_gets_the_same_one_every_time(X):
    first, second = token_cut(X, (4, 4)), token_cut(X.repeat(3, 1, 1), (4, 4))
    assert first.tied.all() and second.tied.all()
    assert torch.equal(first.box[0], second.box[2])


def without_an_answer() -> torch.Tensor:
    """All patches alike, but for a pair, or three that are like nobody: second eigenvalues that come often, or a vector
    that is the mean at most patches."""
    n, generator = GRID[0] * GRID[1], torch.Generator().manual_seed(0)
    unit = torch.eye(n + 1)
    X = unit[0] + 0.001 * torch.rand(4, n, n + 1, generator=generator)
    X[1, [20, 70]] = unit[0] + torch.tensor([[-2.0], [2.0]]) * unit[1]
    X[2, [20, 70]] = unit[0] + torch.tensor([[2.0], [-2.0]]) * unit[1]
    X[3, [11, 60, 180]] = unit[2:5]
    return X


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_chooses_no_answer(dtype, monkeypatch):
    """Alone, among others that take more products, and by the dense solver: the numbers of a model whose tokens have
    become alike do not hang on the size of the batch."""
    X = without_an_answer().to(dtype)
    n = X.shape[1]
    others = torch.cat([features(6), torch.zeros(6, n, n + 1 - 32)], 2).to(dtype)
    among = token_cut(torch.cat([X, others]), GRID)
    assert among.tied[:4].all()
    alone = [token_cut(x[None], GRID) for x in X]
    weak = tokencut.leading_eigenpair
    monkeypatch.setattr(tokencut, "leading_eigenpair", lambda apply, known, tolerance: weak(apply, known, most=4))
    dense = token_cut(X, GRID)
    for i in range(4):
        for name in ("box", "component", "seed", "tied"):
            assert torch.equal(getattr(alone[i], name)[0], getattr(among, name)[i])
            assert torch.equal(getattr(dense, name)[i], getattr(among, name)[i])


def test_patches_at_the_mean_are_not_placed_by_rounding():
    """Two patches that part the picture, and others at 0, where the mean is, too: float32 knows no side for these."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(120, 15, 6, generator=generator)
    X += 2 * torch.rand(120, 1, 1, generator=generator) * torch.randn(120, 1, 6, generator=generator)
    exact, found = token_cut(X.double(), (3, 5)), token_cut(X, (3, 5))
    alone = [token_cut(one[None], (3, 5)).component[0] for one in X]
    assert torch.equal(found.component, exact.component) and torch.equal(torch.stack(alone), exact.component)


def test_seeds_of_equal_size_in_two_components_are_a_tie_and_the_first_is_taken():
    X = torch.zeros(1, 3, 7, 2)
    X[..., 0] = 1
    X[:, 1, 1], X[:, 1, 5] = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])  # two equal islands
    cut = token_cut(X.flatten(1, 2), (3, 7))
    assert cut.tied.all()
    assert cut.box.tolist() == [[1, 1, 2, 2]]


def test_wrong_grids_are_refused():
    with pytest.raises(ValueError, match=r"3 · 5"):
        token_cut(torch.ones(1, 16, 4), (3, 5))
    with pytest.raises(ValueError, match="one patch"):
        token_cut(torch.ones(1, 1, 4), (1, 1))


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 9), st.floats(0.2, 0.9))
def test_components_are_those_of_scipy(seed, h, w, density):
    masks = np.random.default_rng(seed).random((3, h, w)) < density
    got = components(torch.from_numpy(masks))
    for mask, numbers in zip(masks, got.numpy(), strict=True):
        assert (numbers == labelled(mask)).all()


def test_components_follow_a_spiral():
    spiral = np.zeros((15, 15), bool)
    r, c = 0, 0
    for turn, length in enumerate((14, 14, 14, 12, 12, 10, 10, 8, 8, 6, 6, 4, 4, 2)):
        dr, dc = ((0, 1), (1, 0), (0, -1), (-1, 0))[turn % 4]
        for _ in range(length):
            spiral[r, c] = True
            r, c = r + dr, c + dc
    masks = torch.from_numpy(np.stack([spiral, ~spiral]))
    for mask, numbers in zip(masks.numpy(), components(masks).numpy(), strict=True):
        assert (numbers == labelled(mask)).all()
    one = component_of(masks[:1], torch.tensor([0]))
    assert torch.equal(one, masks[:1])
    assert not component_of(masks[1:], torch.tensor([0])).any()  # a seed outside


@given(st.lists(st.integers(0, 6), min_size=8, max_size=8))
def test_iou_counts_pixels(numbers):
    a, b = ([min(n[0], n[2]), min(n[1], n[3]), max(n[0], n[2]), max(n[1], n[3])] for n in (numbers[:4], numbers[4:]))
    got = box_iou(torch.tensor([a]), torch.tensor([b]))
    assert float(got) == pytest.approx(oracle.box_iou(a, b), abs=1e-6)


def test_a_picture_counts_once_however_many_boxes_it_has():
    """Against any of its own boxes, never those of a neighbour; without boxes it does not count."""
    rng = np.random.default_rng(0)
    cut = token_cut(features(24), GRID)
    found = cut.box * 4
    scenes, hits, boxed = [], 0, 0
    for index in range(24):
        near = [
            found[(index + shift) % 24] + torch.from_numpy(rng.integers(-6, 7, 4)) for shift in (0, 1, 0)[: index % 4]
        ]
        true = torch.stack(near).double() if near else None
        image = torch.zeros(3, 4 * GRID[0], 4 * GRID[1])
        scenes.append(Scene(index=index, name="", image=image, boxes=true if index % 8 else torch.zeros(0, 4)))
        if index % 4:
            hits += max(oracle.box_iou(found[index].tolist(), box.tolist()) for box in near) >= 0.5
            boxed += 1
    score = discovery.Score()
    assert torch.equal(discovery.add(score, cut, scenes, (4, 4)), found)
    assert (score.hits, score.boxed, score.pictures) == (hits, boxed, 24) and 0 < hits < boxed


def test_a_mask_without_an_object_does_not_count():
    """TokenCut always names one, so such a picture would be wrong whatever the features are."""
    cut, size = token_cut(features(4), GRID), (4 * GRID[0], 4 * GRID[1])
    truth = cut.component.repeat_interleave(4, 1).repeat_interleave(4, 2).byte()
    masks = [truth[0], torch.zeros(size, dtype=torch.uint8), torch.full(size, 255, dtype=torch.uint8), truth[3]]
    masks[1][0, 0] = 255
    scenes = [Scene(index=i, name="", image=torch.zeros(3, *size), mask=mask) for i, mask in enumerate(masks)]
    score = discovery.Score()
    discovery.add(score, cut, scenes, (4, 4))
    assert (score.masked, score.empty) == (2, 1)
    assert score.values()["foreground_iou"] == 100


def test_box_around_an_empty_mask_is_nothing():
    assert box_around(torch.zeros(1, 3, 4, dtype=torch.bool)).tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("n", [2, 3, 7, 40, 300])
def test_the_leading_eigenpair_beside_a_known_one(n):
    rng = np.random.default_rng(n)
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    values = np.sort(rng.uniform(-0.5, 0.7, n))[::-1].copy()
    values[:2] = 1.0, 0.9
    M = torch.from_numpy((Q * values) @ Q.T)[None]
    found = leading_eigenpair(lambda X: X @ M, torch.from_numpy(Q[:, :1].T.copy())[None])
    assert found.converged.all()
    assert float(found.value) == pytest.approx(values[1], abs=1e-12)
    if n > 2:
        assert float(found.gap) == pytest.approx(values[1] - values[2], rel=0.05)  # an estimate
    assert abs(float(found.vector[0] @ torch.from_numpy(Q[:, 1]))) == pytest.approx(1, abs=1e-10)


def test_an_eigenvalue_that_comes_twice_has_no_gap():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((60, 60)))[0]
    values = np.concatenate([[1, 0.7, 0.7], rng.uniform(-0.3, 0.5, 57)])
    M = torch.from_numpy((Q * values) @ Q.T)[None]
    found = leading_eigenpair(lambda X: X @ M, torch.from_numpy(Q[:, :1].T.copy())[None])
    assert float(found.gap) < 1e-10
    assert found.converged.all()


@pytest.mark.gpu
def test_the_gpu_finds_the_same_boxes():
    X = features(64)
    here, there = token_cut(X, GRID), token_cut(X.cuda(), GRID)
    same = (here.box == there.box.cpu()).all(1)
    assert same[~here.tied].all()
    numbers = components(here.foreground.cuda())
    assert torch.equal(numbers.cpu(), components(here.foreground))


def test_no_pictures_give_no_cuts():
    nothing, some = (token_cut(torch.randn(count, 6, 8), (2, 3)) for count in (0, 2))
    for name in Cut.__dataclass_fields__:
        empty, full = getattr(nothing, name), getattr(some, name)
        assert empty.shape == (0, *full.shape[1:]) and empty.dtype == full.dtype
