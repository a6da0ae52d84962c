"""SOAP against a numpy re-derivation in float64, against itself under rotations, and against pytorch-optimizer.

A whole trajectory is compared, in which the gradient follows the weights: an error of one step is carried on. The
oracle starts from nothing but the gradients, so eigenvectors are compared up to sign, which cancels. Where Algorithm 3
of the paper (arXiv 2409.11321) and the implementations in use differ, `skipless_oracles.Convention` lists the choices;
any of them is accepted, but one and the same for all cases.

Trap: the first gradient of an n × d matrix has rank min(n, d), so for |n − d| > 1 the first basis of the longer side is
not unique, nor is a refresh before the gradients span it. Such shapes take the first basis from the optimizer, whatever
its state looks like, and renew it late.
"""

import copy
import functools
import inspect
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from oracles import haar
from skipless_oracles import Convention, Slope, Soap, conventions, start, trajectory
from torch import nn

import wellcond as wc

TOLERANCE = 1e-8
STEPS = 30
OPTIONS: dict[str, Any] = {"lr": 0.05, "betas": (0.9, 0.8), "eps": 1e-3, "weight_decay": 0.1}  # ε large: to be seen
SHAPES = [(6, 6), (5, 6), (6, 5), (12, 13)]


def build(parameters, *, stagger: bool = False, **options) -> torch.optim.Optimizer:
    """`stagger=False` renews all bases in the same step; passed where there is such an option."""
    options = {**OPTIONS, **options}
    if "stagger" in inspect.signature(wc.SOAP).parameters:
        options["stagger"] = stagger
    return wc.SOAP(parameters, **options)


def staggers() -> bool:
    return "stagger" in inspect.signature(wc.SOAP).parameters


def walk(optimizer, parameters, slopes, num_steps: int = STEPS, after_first=None) -> list[np.ndarray]:
    """One array (num_steps, …) of weights for each parameter. A slope of None is a parameter without gradient."""
    seen = [[] for _ in parameters]
    for step in range(num_steps):
        for p, slope in zip(parameters, slopes, strict=True):
            p.grad = None if slope is None else torch.from_numpy(slope(p.detach().numpy(), step))
        optimizer.step()
        if step == 0 and after_first:
            after_first()
        for path, p in zip(seen, parameters, strict=True):
            path.append(p.detach().numpy().copy())
    return [np.stack(path) for path in seen]


def parameter(shape, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(start(shape, seed)))


def ours(shape, frequency: int, seed: int = 0) -> np.ndarray:
    p = parameter(shape, seed)
    return walk(build([p], precondition_frequency=frequency), [p], [Slope(shape=shape, seed=seed)])[0]


def oracle(shape, frequency: int, convention: Convention, *, seed: int = 0, merged: bool = False, **more) -> np.ndarray:
    """`merged`: all but the first dimension as one."""
    slope, W = Slope(shape=shape, seed=seed), start(shape, seed)
    if merged:
        W = W.reshape(shape[0], -1)
    num_steps = more.pop("num_steps", STEPS)
    running = {"num_steps": num_steps, "build": more.pop("build", True), "bases": more.pop("bases", None)}
    settings = {**OPTIONS, "frequency": frequency, "convention": convention, **more}
    soap = Soap(W=W, decay=settings.pop("weight_decay"), **settings)
    path = trajectory(soap, lambda W, step: slope(W.reshape(shape), step).reshape(soap.W.shape), **running)
    return path.reshape(num_steps, *shape)


def gap(path: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(path - other).max())


@functools.cache
def known() -> tuple[Convention, ...]:
    """The conventions that the optimizer follows on one matrix renewed at each step."""
    path = ours((6, 6), 1)
    gaps = {convention: gap(path, oracle((6, 6), 1, convention)) for convention in conventions()}
    fitting = tuple(convention for convention, distance in gaps.items() if distance < TOLERANCE)
    best = min(gaps, key=lambda convention: gaps[convention])
    assert fitting, f"no convention fits; the nearest is {best} with {gaps[best]:.1e}"
    return fitting


def phases(frequency: int, num_axes: int) -> Iterator[tuple[int, ...]]:
    """All at once: counted by updates (0) or by calls, the first of which builds the basis (1). Or any, by axis."""
    if staggers() or frequency == 1:
        yield from ((phase,) * num_axes for phase in range(min(frequency, 2)))
    else:
        yield from itertools.product(range(frequency), repeat=num_axes)


# --- the oracle can tell -----------------------------------------------------------------------------------


def test_conventions_and_mistakes_are_far_apart():
    """Otherwise agreement would mean nothing: every two trajectories differ by 100 tolerances and more."""
    paths = [oracle((6, 6), 1, convention) for convention in conventions()]
    plain = Convention()
    paths += [oracle((6, 6), 1, plain, betas=(0.9, 0.81)), oracle((6, 6), 1, plain, eps=2e-3)]
    paths += [oracle((6, 6), 1, plain, rotate=False), oracle((6, 6), 1, plain, build=False, rotate=False)]
    paths += [oracle((6, 6), 10, replace(plain, phases=(phase,) * 2)) for phase in range(3)]
    assert min(gap(a, b) for a, b in itertools.combinations(paths, 2)) > 100 * TOLERANCE


def test_the_oracle_without_rotation_is_torchs_adamw():
    p, slope = parameter((6, 5)), Slope(shape=(6, 5))
    want = walk(torch.optim.AdamW([p], **OPTIONS), [p], [slope])[0]
    adamw = Convention(eps="corrected", decay="before")
    assert gap(oracle((6, 5), 1, adamw, rotate=False, build=False), want) < 1e-12


def test_the_oracle_in_a_diagonal_basis_is_adam():
    """Gradients that are diagonal matrices have the unit vectors as eigenvectors, in some order."""
    slope = Slope(shape=(5, 5))
    paths = []
    for rotate in (True, False):
        options = {"lr": 0.05, "betas": (0.9, 0.8), "eps": 1e-3}
        soap = Soap(W=np.zeros((5, 5)), frequency=1, convention=Convention(), rotate=rotate, **options)
        paths.append(trajectory(soap, lambda W, step: np.diag(np.diag(slope(W, step))), STEPS))
    assert gap(*paths) < 1e-10


# --- one matrix --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frequency", [1, 3, 10])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matrices_follow_the_oracle(shape, frequency):
    path = ours(shape, frequency, seed=1)
    gaps = [
        gap(path, oracle(shape, frequency, replace(convention, phases=found), seed=1))
        for convention in known()
        for found in phases(frequency, 2)
    ]
    assert min(gaps) < TOLERANCE


def test_one_convention_for_all_shapes_and_frequencies():
    left = set()
    for phase in (0, 1) if staggers() else (0,):
        left |= {replace(convention, phases=(phase, phase)) for convention in known()}
    for shape, frequency in itertools.product([(6, 6), (5, 6)], (1, 10) if staggers() else (1,)):
        path = ours(shape, frequency)
        left = {c for c in left if gap(path, oracle(shape, frequency, c)) < TOLERANCE}
    assert left


def test_the_first_step_only_builds_the_basis():
    p = parameter((6, 6))
    before = p.detach().clone()
    optimizer = build([p], precondition_frequency=1)
    p.grad = torch.from_numpy(Slope(shape=(6, 6))(p.detach().numpy(), 0))
    optimizer.step()
    assert torch.equal(p.detach(), before)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert not torch.equal(p.detach(), before)


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (1, 6), (2, 7)], ids=str)
def test_matrices_without_a_unique_first_basis(shape):
    p, slope, found = parameter(shape), Slope(shape=shape), {}
    G = slope(p.detach().numpy(), 0)
    optimizer = build([p], precondition_frequency=9)

    def look() -> None:
        found.update({0: basis_in(optimizer, G @ G.T), 1: basis_in(optimizer, G.T @ G)})

    path = walk(optimizer, [p], [slope], after_first=look)[0]
    if any(Q is None for Q in found.values()):
        pytest.skip("the optimizer keeps its bases where this test cannot see them")
    gaps = [
        gap(path, oracle(shape, 9, replace(convention, phases=phase), bases=found))
        for convention in known()
        for phase in phases(9, 2)
    ]
    assert min(gaps) < TOLERANCE


def basis_in(optimizer, gram: np.ndarray) -> np.ndarray | None:
    """The orthogonal matrix, anywhere in the optimizer and in stacks too, that makes `gram` diagonal."""
    size = len(gram)
    for tensor in tensors_in([optimizer.state, vars(optimizer)], set()):
        if tensor.shape[-2:] != (size, size):
            continue
        for Q in tensor.detach().double().reshape(-1, size, size).numpy():
            D = Q.T @ gram @ Q
            orthogonal = np.abs(Q.T @ Q - np.eye(size)).max() < 1e-10
            if orthogonal and np.abs(D - np.diag(np.diag(D))).max() < 1e-9 * np.abs(gram).max():
                return Q.copy()
    return None


def tensors_in(value, seen: set[int]) -> Iterator[torch.Tensor]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part, seen)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_in(part, seen)
    elif type(value).__module__.startswith("wellcond"):
        names = getattr(value, "__slots__", ())
        yield from tensors_in([*getattr(value, "__dict__", {}).values(), *(getattr(value, n) for n in names)], seen)


# --- other shapes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frequency", [1, 10])
def test_vectors_are_adam(frequency):
    """With the first step or without it: the paper's text says nothing, the authors' code leaves it out."""
    path = ours((7,), frequency)
    gaps = [gap(path, oracle((7,), 1, c, rotate=False, build=skip)) for c in known() for skip in (True, False)]
    assert min(gaps) < TOLERANCE


@pytest.mark.parametrize("shape", [(5, 2, 3, 1), (7, 2, 2, 2)], ids=str)
def test_convolutions(shape):
    """As a matrix (out, in · height · width), or with a basis for each dimension."""
    path = ours(shape, 1)
    assert min(gap(path, oracle(shape, 1, c, merged=merged)) for c in known() for merged in (True, False)) < TOLERANCE


def test_a_side_over_ten_thousand_is_not_rotated():
    shape = (10_001, 2)
    p, slope = parameter(shape), Slope(shape=shape)
    optimizer = build([p], precondition_frequency=1)
    path = walk(optimizer, [p], [slope], num_steps=4)[0]
    assert min(gap(path, oracle(shape, 1, convention, num_steps=4)) for convention in known()) < TOLERANCE
    assert max(t.numel() for t in tensors_in([optimizer.state, vars(optimizer)], set())) < 100 * p.numel()  # no 10001²


# --- several parameters ------------------------------------------------------------------------------------


def test_stacked_parameters_do_not_mix():
    """Three of one shape, one of another, a vector, and one that gets no gradient, in two groups."""
    shapes = [(6, 6), (5, 6), (6, 6), (7,), (6, 6), (6, 6)]
    parameters = [parameter(shape, seed=i) for i, shape in enumerate(shapes)]
    slopes = [Slope(shape=shape, seed=i) if i != 4 else None for i, shape in enumerate(shapes)]
    groups = [{"params": parameters[:5]}, {"params": parameters[5:], "lr": 0.02, "weight_decay": 0.0}]
    paths = walk(build(groups, precondition_frequency=1), parameters, slopes)
    for i in (0, 1, 2):
        assert min(gap(paths[i], oracle(shapes[i], 1, c, seed=i)) for c in known()) < TOLERANCE, i
    wanted = [oracle((7,), 1, c, seed=3, rotate=False, build=skip) for c in known() for skip in (True, False)]
    assert min(gap(paths[3], want) for want in wanted) < TOLERANCE
    assert np.array_equal(paths[4][-1], start((6, 6), 4))
    wanted = [oracle((6, 6), 1, c, seed=5, lr=0.02, weight_decay=0.0) for c in known()]
    assert min(gap(paths[5], want) for want in wanted) < TOLERANCE


def test_spread_refresh_is_the_same_algorithm_at_shifted_steps():
    """By default the refresh is spread over steps: each basis has its own phase, and is late by less than a period."""
    frequency, count = 3, 5
    parameters = [parameter((6, 6), seed=i) for i in range(count)]
    slopes = [Slope(shape=(6, 6), seed=i) for i in range(count)]
    paths = walk(build(parameters, stagger=True, precondition_frequency=frequency), parameters, slopes)
    for i, path in enumerate(paths):
        gaps = [
            gap(path, oracle((6, 6), frequency, replace(c, phases=found, late=late), seed=i))
            for c in known()
            for late in (False, True)
            for found in itertools.product(range(frequency), repeat=2)
        ]
        assert min(gaps) < TOLERANCE, i


# --- properties that need no oracle ------------------------------------------------------------------------


def test_turning_the_weights_turns_the_trajectory():
    """W → A W B with orthogonal A, B: SOAP has no preferred axes, Adam has."""
    rng = np.random.default_rng(0)
    A, B, slope = haar(6, 6, rng), haar(6, 6, rng), Slope(shape=(6, 6))
    p, q = parameter((6, 6)), nn.Parameter(torch.from_numpy(A @ start((6, 6)) @ B))
    turned = lambda W, step: A @ slope(A.T @ W @ B.T, step) @ B  # noqa: E731
    plain = walk(build([p], precondition_frequency=3), [p], [slope])[0]
    other = walk(build([q], precondition_frequency=3), [q], [turned])[0]
    assert gap(other, A @ plain @ B) < TOLERANCE
    q = nn.Parameter(torch.from_numpy(A @ start((6, 6)) @ B))
    assert gap(walk(torch.optim.AdamW([q], **OPTIONS), [q], [turned])[0], A @ plain @ B) > 1e-2


def test_transposing_the_weight_transposes_the_trajectory():
    slope = Slope(shape=(5, 6))
    p, q = parameter((5, 6)), nn.Parameter(torch.from_numpy(start((5, 6)).T.copy()))
    plain = walk(build([p], precondition_frequency=1), [p], [slope])[0]
    other = walk(build([q], precondition_frequency=1), [q], [lambda W, step: slope(W.T, step).T.copy()])[0]
    assert gap(other, plain.transpose(0, 2, 1)) < TOLERANCE


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_size_of_the_gradient_does_not_matter(scale):
    options = {"precondition_frequency": 2, "eps": 1e-14}
    p, q, slope = parameter((6, 6)), parameter((6, 6)), Slope(shape=(6, 6))
    plain = walk(build([p], **options), [p], [slope])[0]
    scaled = walk(build([q], **options), [q], [lambda W, step: scale * slope(W, step)])[0]
    assert gap(scaled, plain) < TOLERANCE


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 5), (5, 1), (1, 1, 4), (1, 3, 4), (2, 1, 3, 3)], ids=str)
def test_thin_shapes_stay_finite_and_descend(shape):
    p = nn.Parameter(torch.from_numpy(np.asarray(start(shape))))
    optimizer = build([p], precondition_frequency=2, weight_decay=0.0, lr=0.02)
    first = p.detach().square().sum()
    for _ in range(60):
        p.grad = p.detach().clone()
        optimizer.step()
    assert p.isfinite().all() and p.detach().square().sum() < 0.5 * first


def test_gradients_that_are_zero_at_first_or_always():
    p, q, slope = parameter((6, 5)), parameter((6, 5)), Slope(shape=(6, 5))
    optimizer = build([p, q], precondition_frequency=2, weight_decay=0.0)
    late = lambda W, step: slope(W, step) if step > 4 else np.zeros((6, 5))  # noqa: E731
    moved, still = walk(optimizer, [p, q], [late, lambda W, step: np.zeros((6, 5))])
    assert np.isfinite(moved).all() and gap(moved[4], moved[0]) == 0 and gap(moved[-1], moved[0]) > 0.1
    assert gap(still, still[:1]) == 0


def test_state_restores_to_the_same_bits():
    slopes = [Slope(shape=(6, 6), seed=i) for i in range(2)] + [Slope(shape=(7,))]
    parameters = [parameter((6, 6), 0), parameter((6, 6), 1), parameter((7,))]
    whole = walk(build(parameters, precondition_frequency=3), parameters, slopes, num_steps=12)
    parameters = [parameter((6, 6), 0), parameter((6, 6), 1), parameter((7,))]
    optimizer = build(parameters, precondition_frequency=3)
    walk(optimizer, parameters, slopes, num_steps=5)
    restored = [nn.Parameter(p.detach().clone()) for p in parameters]
    again = build(restored, precondition_frequency=3)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    shifted = [lambda W, step, slope=slope: slope(W, step + 5) for slope in slopes]
    for path, want in zip(walk(again, restored, shifted, num_steps=7), whole, strict=True):
        assert np.array_equal(path, want[5:])


def test_single_precision_stays_near_the_oracle():
    p = nn.Parameter(parameter((5, 6)).detach().float())
    optimizer, slope, path = build([p], precondition_frequency=1), Slope(shape=(5, 6)), []
    for step in range(10):
        p.grad = torch.from_numpy(slope(p.detach().double().numpy(), step)).float()
        optimizer.step()
        path.append(p.detach().double().numpy())
    assert min(gap(np.stack(path), oracle((5, 6), 1, c, num_steps=10)) for c in known()) < 1e-3


def test_bfloat16_parameters_are_allowed():
    p = nn.Parameter(parameter((8, 6)).detach().bfloat16())
    first = p.detach().float().square().sum()
    optimizer = build([p], precondition_frequency=2, weight_decay=0.0, lr=0.1)
    for _ in range(40):
        p.grad = p.detach().clone()
        optimizer.step()
    assert p.dtype == torch.bfloat16 and p.detach().float().square().sum() < 0.5 * first


def test_defaults_are_the_authors():
    options = inspect.signature(wc.SOAP).parameters
    want = {"lr": 3e-3, "betas": (0.95, 0.95), "eps": 1e-8, "weight_decay": 0.01, "precondition_frequency": 10}
    assert {name: options[name].default for name in want} == want


@pytest.mark.parametrize(
    "options", [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"precondition_frequency": 0}, {"eps": -1.0}], ids=str
)
def test_refusals(options):
    (value,) = options.values()
    with pytest.raises(ValueError, match=str(value[0] if isinstance(value, tuple) else value).replace(".", r"\.")):
        build([parameter((3, 3))], **options)


# --- a neighbour -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frequency", [1, 10])
def test_losses_follow_pytorch_optimizer(frequency):
    """Theirs takes QR in float32 whatever the weights are, and may renew one step apart: losses agree, bits do not."""
    theirs = pytest.importorskip("pytorch_optimizer").SOAP
    adamw = {"lr": 3e-3, "betas": (0.95, 0.95), "eps": 1e-8, "weight_decay": 0.01}
    options = {**adamw, "precondition_frequency": frequency}
    other = np.log(losses(lambda p: theirs(p, **options)))
    assert other[-1] < other[0] - 2  # it learns
    assert np.abs(np.log(losses(lambda p: build(p, **options))) - other).max() < 0.15  # 1e-6 with the same conventions
    assert np.abs(np.log(losses(lambda p: torch.optim.AdamW(p, **adamw))) - other).max() > 0.5  # another would be seen


def losses(optimizer_of, num_steps: int = 200) -> np.ndarray:
    """A network of three layers with square and nearly square weights, on fixed noisy batches."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, 8)).double()
    teacher = nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 8)).double().requires_grad_(False)
    optimizer, curve = optimizer_of(list(net.parameters())), []
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        X = torch.randn(64, 8, generator=generator, dtype=torch.float64)
        loss = (net(X) - 2 * teacher(X)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return np.array(curve)
