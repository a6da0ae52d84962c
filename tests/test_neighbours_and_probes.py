"""k-NN, the linear probe, the dense probe and PCA, each against a slow version of itself or a library's."""

from typing import Any

import judge_oracles as oracle
import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_jaccard_index

from wellcond.evaluation import keeping, linear, segmentation
from wellcond.evaluation import knn as neighbours
from wellcond.evaluation.knn import count_top, knn_votes
from wellcond.evaluation.pca import colours, principal_components


def blobs(count: int, width: int = 6, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=count)
    centres = np.random.default_rng(99).standard_normal((classes, width))
    return torch.from_numpy(centres[labels] + rng.standard_normal((count, width))), torch.from_numpy(labels)


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.07), (7, 0.07), (20, 0.5), (500, 0.07)])
def test_votes_are_those_of_a_double_loop(k, temperature, monkeypatch):
    (train, labels), (test, _) = blobs(60), blobs(23, seed=1)
    want = oracle.knn_votes(train.tolist(), labels.tolist(), test.tolist(), 4, min(k, 60), temperature)
    for slab in (1 << 26, 60 * 5):
        monkeypatch.setattr(neighbours, "SLAB", slab)
        got = knn_votes(train, labels, test, 4, k=k, temperature=temperature)
        torch.testing.assert_close(got.numpy(), want, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("k", "temperature", "dtype"), [(1, 0.07, "float64"), (20, 0.07, "float64"), (9, 0.5, "float32")]
)
def test_classes_are_those_of_scikit_learn(k, temperature, dtype):
    (train, labels), (test, _) = blobs(300), blobs(101, seed=1)
    weights: Any = lambda distance: np.exp(-distance / temperature)  # noqa: E731 (its stub knows only words)
    theirs = KNeighborsClassifier(k, metric="cosine", algorithm="brute", weights=weights)
    theirs.fit(train.numpy(), labels.numpy())
    train, test = (one.to(getattr(torch, dtype)) for one in (train, test))
    votes = knn_votes(train, labels, test, 4, k=k, temperature=temperature)
    torch.testing.assert_close(votes.argmax(1).numpy(), theirs.predict(test.double().numpy()), atol=0, rtol=0)
    shares = (votes / votes.sum(1, keepdim=True)).double().numpy()
    tolerance = 1e-10 if dtype == "float64" else 1e-5
    torch.testing.assert_close(shares, theirs.predict_proba(test.double().numpy()), atol=tolerance, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_features_are_compared_in_float32(dtype):
    (train, labels), (test, _) = blobs(300, width=64), blobs(101, width=64, seed=1)
    train, test = train.to(dtype), test.to(dtype)
    votes, exact = knn_votes(train, labels, test, 4), knn_votes(train.double(), labels, test.double(), 4)
    torch.testing.assert_close(votes.double(), exact, atol=1e-4, rtol=0)


def test_top_counts_are_those_of_torchmetrics():
    scores, labels = torch.randn(50, 9, generator=torch.Generator().manual_seed(3)), torch.arange(50) % 9
    top1, top5 = (float(multiclass_accuracy(scores, labels, 9, average="micro", top_k=k)) for k in (1, 5))
    assert count_top(scores, labels) == (round(50 * top1), round(50 * top5))


def test_top_counts():
    scores = torch.tensor([[3.0, 1, 2, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1, 1]])
    assert count_top(scores, torch.tensor([0, 6, 6])) == (2, 2)  # all equal: the smaller classes come first
    assert count_top(scores, torch.tensor([2, 1, 4])) == (0, 3)


def test_bad_neighbours_are_refused():
    (train, labels) = blobs(5)
    with pytest.raises(ValueError, match="k is 0"):
        knn_votes(train, labels, train, 4, k=0)
    with pytest.raises(ValueError, match="no training features"):
        knn_votes(train[:0], labels[:0], train, 4)


def test_heads_trained_side_by_side_are_those_trained_alone():
    X, y = blobs(90)
    schedule = linear.Schedule(epochs=3, batch_size=16)
    together = linear.train_heads(X, y, 4, (0.01, 0.3, 2.0), schedule)
    for number, rate in enumerate((0.01, 0.3, 2.0)):
        alone = linear.train_heads(X, y, 4, (rate,), schedule)
        torch.testing.assert_close(alone.weight[0], together.weight[number], atol=1e-12, rtol=0)
        by_autograd = _sgd(X, y, rate, schedule)
        torch.testing.assert_close(together.weight[number].T, by_autograd.weight, atol=1e-10, rtol=0)
        torch.testing.assert_close(together.bias[number], by_autograd.bias, atol=1e-10, rtol=0)


def test_layers_side_by_side_are_each_alone():
    """Each with a rate of its own."""
    (X, y), (other, _) = blobs(90), blobs(90, seed=3)
    schedule = linear.Schedule(epochs=3, batch_size=16)
    layers = torch.stack([X, other, X.flip(1)])
    together = linear.train_heads(layers, y, 4, [[0.01], [0.3], [2.0]], schedule)
    assert together(layers).shape == (3, 1, 90, 4)
    for number, rate in enumerate((0.01, 0.3, 2.0)):
        alone, head = linear.train_heads(layers[number], y, 4, (rate,), schedule), together.of_layer(number)
        torch.testing.assert_close(head.weight, alone.weight, atol=1e-12, rtol=0)
        torch.testing.assert_close(head(layers[number]), alone(layers[number]), atol=1e-12, rtol=0)
    found = linear.probes(layers, y, 4, rates=(1e-9, 0.1), schedule=schedule)
    for number, probe in enumerate(found):
        (alone,) = linear.probes(layers[number : number + 1], y, 4, rates=(1e-9, 0.1), schedule=schedule)
        assert (probe.rate, probe.held_out) == (alone.rate, alone.held_out)
        torch.testing.assert_close(probe.head.bias, alone.head.bias, atol=1e-12, rtol=0)


def _sgd(X: torch.Tensor, y: torch.Tensor, rate: float, schedule: linear.Schedule) -> nn.Linear:
    """The same probe by nn.Linear, torch's SGD and its scheduler."""
    X = (X - X.mean(0)) / X.std(0, correction=0)
    head = nn.Linear(X.shape[1], 4, dtype=X.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.SGD(head.parameters(), lr=rate, momentum=0.9)
    steps = schedule.epochs * (len(X) // schedule.batch_size)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(schedule.seed)
    for _ in range(schedule.epochs):
        order = torch.randperm(len(X), generator=generator)
        for rows in order[: len(X) // schedule.batch_size * schedule.batch_size].split(schedule.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(head(X[rows]), y[rows]).backward()
            optimizer.step()
            scheduler.step()
    return head


def test_the_rate_is_chosen_on_the_training_set():
    X, y = blobs(300)
    schedule = linear.Schedule(epochs=5, batch_size=32)
    (probe,) = linear.probes(X[None], y, 4, rates=(1e-9, 0.1), schedule=schedule)
    assert probe.rate == 0.1 and probe.held_out[0.1] > probe.held_out[1e-9]
    alone = linear.train_heads(X, y, 4, (0.1,), schedule)  # trained again on all of it
    torch.testing.assert_close(probe.head.weight, alone.weight, atol=1e-12, rtol=0)
    test, truth = blobs(200, seed=5)
    assert (probe.head(test)[0].argmax(-1) == truth).double().mean() > 0.5
    with pytest.raises(ValueError, match="1 training images"):
        linear.probes(X[None, :1], y[:1], 4)


def test_iou_is_that_of_torchmetrics():
    rng = np.random.default_rng(1)
    truth, found = (torch.from_numpy(rng.integers(6, size=(4, 11, 7))) for _ in range(2))
    truth[torch.from_numpy(rng.random(truth.shape) < 0.3)] = 255
    theirs = multiclass_jaccard_index(found, truth, 6, ignore_index=255, average=None)
    ours = segmentation.intersection_over_union(segmentation.confusion(truth, found, 6))
    torch.testing.assert_close(ours, theirs.double(), atol=1e-6, rtol=0)
    mean = multiclass_jaccard_index(found, truth, 6, ignore_index=255, average="macro")
    assert segmentation.mean_iou(segmentation.confusion(truth, found, 6)) == pytest.approx(float(mean), abs=1e-6)


def test_mean_iou_is_that_of_a_loop():
    rng = np.random.default_rng(0)
    truth, found = rng.integers(5, size=(3, 8, 9)), rng.integers(5, size=(3, 8, 9))
    truth[rng.random(truth.shape) < 0.2] = 255
    truth[truth == 3], found[found == 3] = 0, 1  # a class that is nowhere
    matrix = torch.zeros(5, 5, dtype=torch.int64)
    for t, f in zip(truth, found, strict=True):
        matrix += segmentation.confusion(torch.from_numpy(t), torch.from_numpy(f), 5)
    assert segmentation.mean_iou(matrix) == pytest.approx(oracle.mean_iou(truth, found, 5), abs=1e-12)
    assert int(matrix.sum()) == (truth != 255).sum()


class Stripes:
    """Tokens that show the class of their patch, masks four times as fine, a void corner."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self):
        for index in range(self.count):
            generator = torch.Generator().manual_seed(index)
            classes = torch.randint(3, (4, 5, 5), generator=generator)
            tokens = nn.functional.one_hot(classes, 3).permute(0, 3, 1, 2).double()
            tokens = torch.cat([3 * tokens - 7, torch.randn(4, 2, 5, 5, generator=generator, dtype=torch.float64)], 1)
            masks = classes.repeat_interleave(4, 1).repeat_interleave(4, 2)
            masks[:, :2, :2] = 255
            yield tokens, masks


def test_a_dense_head_learns_what_is_there_and_heads_do_not_disturb_each_other():
    schedule = segmentation.Schedule(epochs=8, rate=0.05)
    both = segmentation.train_heads(lambda x: {"all": x, "blind": x[:, 3:]}, Stripes(6), 3, schedule)
    alone = segmentation.train_heads(lambda x: {"all": x}, Stripes(6), 3, schedule)
    for a, b in zip(both["all"].state_dict().values(), alone["all"].state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
    scores = {}
    for name, first in (("all", 0), ("blind", 3)):
        matrix = torch.zeros(3, 3, dtype=torch.int64)
        for tokens, masks in Stripes(3):
            found = segmentation.upsampled(both[name](tokens[:, first:]), masks).argmax(1)
            matrix += segmentation.confusion(masks, found, 3)
        scores[name] = segmentation.mean_iou(matrix)
    assert scores["all"] > 0.7 > 0.4 > scores["blind"]


class Shuffled(Stripes):
    """The same pictures in another order every pass, by number; counts how often any was made ready."""

    num_pictures = 23

    def __init__(self) -> None:
        super().__init__(6)
        batches = list(Stripes(6))
        self.tokens, self.masks = (torch.cat(part)[:23] for part in zip(*batches, strict=True))
        self.rng, self.ready = np.random.default_rng(0), 0

    def __iter__(self):
        return ((images(), masks) for _, images, masks in self.numbered())

    def numbered(self):
        for numbers in torch.from_numpy(self.rng.permutation(23)).split(4):
            yield numbers, lambda numbers=numbers: self._made(numbers), self.masks[numbers]

    def _made(self, numbers):
        self.ready += len(numbers)
        return self.tokens[numbers]


def test_a_dense_probe_reads_every_picture_once(monkeypatch):
    """Or every time, where memory does not hold what was read; the heads are the same bit for bit."""
    schedule = segmentation.Schedule(epochs=3, rate=0.05)
    read = lambda x: {"all": x.contiguous(memory_format=torch.channels_last), "blind": x[:, 3:].clone()}  # noqa: E731
    once, often = Shuffled(), Shuffled()
    remembered = segmentation.train_heads(read, once, 3, schedule)
    assert once.ready == 23
    monkeypatch.setattr(keeping, "KEEP", 23 * 7 * 25 * 8 - 1)
    read_again = segmentation.train_heads(read, often, 3, schedule)
    assert often.ready == 3 * 23
    for name, head in remembered.items():
        for a, b in zip(head.state_dict().values(), read_again[name].state_dict().values(), strict=True):
            assert torch.equal(a, b)


def test_the_dense_loss_is_taken_in_pixels_without_void():
    head = segmentation.Head(2, 3).double()
    nn.init.normal_(head.project.weight)
    tokens = torch.randn(2, 2, 3, 3, dtype=torch.float64)
    masks = torch.randint(3, (2, 12, 12))
    masks[0, :, :7] = 255
    got = segmentation._loss(head(tokens), masks).detach()
    logits = nn.functional.interpolate(head(tokens), (12, 12), mode="bilinear").log_softmax(1).detach()
    picked = [
        float(logits[b, masks[b, i, j], i, j])
        for b in range(2) for i in range(12) for j in range(12) if masks[b, i, j] != 255
    ]  # fmt: skip
    assert float(got) == pytest.approx(-np.mean(picked), abs=1e-10)
    assert float(segmentation._loss(head(tokens).detach(), torch.full_like(masks, 255))) == 0


def test_a_few_pictures_at_a_time_have_the_same_gradient(monkeypatch):
    """Bit for bit: on a CPU a batch goes through in parts."""
    logits, masks = torch.randn(5, 3, 4, 4), torch.randint(3, (5, 16, 16))
    masks[1] = 255
    found = []
    for most in (1, 2 * 3 * 16 * 16, 1 << 20):
        monkeypatch.setitem(segmentation.PIXELS, "cpu", most)
        x = logits.clone().requires_grad_()
        segmentation._loss(x, masks).backward()
        found.append(x.grad)
    assert torch.equal(found[0], found[2]) and torch.equal(found[1], found[2])
    assert not found[0][1].any() and found[0][4].any()


def test_a_batch_of_a_single_token_is_no_stop():
    """The last picture of a set, in a pyramid whose last stage has one token; batch norm alone refuses it."""
    batches = [(torch.randn(count, 3, 8, 8), torch.ones(count, 8, 8).long()) for count in (4, 1)]
    read = lambda images: {"0": images.mean((2, 3), keepdim=True)}  # noqa: E731
    heads = segmentation.train_heads(read, batches, 2, segmentation.Schedule(epochs=2))
    assert (heads["0"](read(batches[1][0])["0"]).argmax(1) == 1).all()


def test_a_dense_head_that_could_learn_nothing_is_none():
    batches: Any = [(torch.randn(2, 2, 3, 3), torch.full((2, 6, 6), 255))]
    with pytest.raises(ValueError, match="masks of all training pictures are void"):
        segmentation.train_heads(lambda x: {"a": x}, batches, 3, segmentation.Schedule(epochs=1))
    batches.append((torch.randn(2, 2, 3, 3), torch.zeros(2, 6, 6, dtype=torch.int64)))
    assert segmentation.train_heads(lambda x: {"a": x}, batches, 3, segmentation.Schedule(epochs=1))


@pytest.mark.parametrize("shape", [(30, 8), (9, 40)], ids=["tall", "wide"])
def test_components_are_those_of_an_svd(shape):
    X = torch.randn(4, *shape)
    scores, share = principal_components(X)
    for x, s, e in zip(X.double().numpy(), scores.numpy(), share.numpy(), strict=True):
        U, sigma, Vt = np.linalg.svd(x - x.mean(0), full_matrices=False)
        for c in range(3):
            sign = np.sign(Vt[c][np.argmax(np.abs(Vt[c]))])
            torch.testing.assert_close(s[:, c], sign * U[:, c] * sigma[c], atol=1e-8, rtol=0)
            assert e[c] == pytest.approx(sigma[c] ** 2 / (sigma**2).sum(), abs=1e-10)


def test_components_beyond_the_rank_are_nothing():
    line = torch.arange(6.0)[None, :, None] * torch.ones(1, 1, 4)
    scores, share = principal_components(line)
    assert share[0].tolist() == pytest.approx([1, 0, 0])
    assert not scores[0, :, 1:].any()
    picture = colours(scores, (2, 3))
    assert picture.shape == (1, 2, 3, 3)
    assert picture[0, ..., 0].flatten().tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert (picture[..., 1:] == 0.5).all()
    narrow, share = principal_components(torch.randn(1, 5, 2))
    assert narrow.shape == (1, 5, 3) and not narrow[..., 2].any()
    constant, share = principal_components(torch.ones(1, 5, 4))
    assert not constant.any() and not share.any()
