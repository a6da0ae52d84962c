"""Lanczos keeps its word: bars are counted over many seeds, the bottom is bounded, what is not known is not said."""

import math

import numpy as np
import oracles
import pytest
import torch
from test_jacobian import attention, distance, linear, seeded

from wellcond.jacobian import jacobian_spectrum


def drawn(seed: int):
    """(f, X): linear maps with spectra of all kinds, and attention, tall and wide."""
    kind = seed % 4
    if kind == 3:
        return attention(*((8, 6), (5, 10))[seed // 4 % 2], seed)[:2]
    rng = np.random.default_rng(seed)
    shapes = (((6, 8), (6, 8)), ((4, 12), (8, 9)), ((8, 9), (6, 8)))[kind]
    name = ("log-spaced", "clustered", "one-large", "rank-deficient")[seed // 4 % 4]
    return linear(oracles.spectrum(name, 48, 10.0 ** (1 + seed % 7), rng), *shapes, seed)


SEEDS = range(96)
STEPS = (4, 12, 30)


@pytest.fixture(scope="module")
def runs():
    """(true spectrum, Lanczos result) for every seed, after few, some and many steps."""
    found = []
    for seed in SEEDS:
        f, X = drawn(seed)
        exact = jacobian_spectrum(f, X, "exact").sigma.numpy()
        found.append(
            (exact, jacobian_spectrum(f, X, "lanczos", num_values=4, max_steps=STEPS[seed % 3], generator=seeded(seed)))
        )
    return found


def test_a_singular_value_lies_within_every_bar(runs):
    """Certain by the residual theorem, so all of them: 96 seeds × 4 values, and σ_min's."""
    for exact, found in runs:
        assert (distance(found.sigma, exact) <= found.error.numpy()).all()
        assert distance(found.sigma_min[None], exact)[0] <= found.sigma_min_error
        assert (found.sigma.numpy() <= exact[:4] + found.floor.item()).all()  # interlacing
        assert found.sigma_min >= exact[-1] - found.floor  # σ_min from above


def test_bars_are_not_vacuous(runs):
    """Shrunk thirty times they would fail, and the typical bar of an unfinished run is at most 1000 times the error."""
    broken, ratio = 0, []
    for exact, found in runs:
        gap = distance(found.sigma, exact)
        broken += int((gap > (found.error.numpy() - found.floor.item()) / 30 + found.floor.item()).sum())
        ratio += list(
            (found.error.numpy() / np.maximum(gap, found.floor.item()))[found.error.numpy() > 1e-3 * exact[0]]
        )
    assert broken >= 10 and np.median(ratio) < 1e3


def test_bars_index_by_index_hold_nearly_always(runs):
    """θᵢ is the i-th value unless an equal or close one is still missing; only with enough steps."""
    held = total = 0
    for exact, found in runs:
        if found.steps >= 30:
            held += int((np.abs(found.sigma.numpy() - exact[:4]) <= found.error.numpy()).sum())
            total += 4
    assert total > 50 and held >= 0.9 * total


def test_one_sided_bounds_hold_and_can_be_finite(runs):
    for exact, found in runs:
        slack = 2 * found.floor.item()
        assert found.sigma_max_upper >= exact[0] - slack and found.sigma_min_lower <= exact[-1] + slack
        if exact[-1] > slack:
            lower, upper = found.kappa_bounds
            assert lower * (1 - 1e-9) <= exact[0] / exact[-1] <= upper * (1 + 1e-9)


def test_a_resolved_kappa_is_right_and_an_unresolved_one_is_nan(runs):
    resolved = 0
    for exact, found in runs:
        if found.resolved and not found.singular:
            assert abs(found.log_kappa.item() - math.log(exact[0] / exact[-1])) <= 0.12
            resolved += 1
        elif not found.resolved:
            assert found.kappa.isnan() and "not resolved" in str(found) and "at least" in str(found)
    assert resolved >= 10


@pytest.mark.parametrize("kappa", [1e2, 1e5, 1e8])
def test_bottom_of_a_steep_spectrum(kappa):
    """Some of the steps: a lower bound of κ and no more. All of them: as good as exact."""
    f, X = linear(np.geomspace(1, 1 / kappa, 300), (15, 20), (15, 20))
    some = jacobian_spectrum(f, X, "lanczos", max_steps=60)
    assert some.kappa.isnan() and 5 < some.kappa_bounds[0] <= kappa and some.kappa_bounds[1] == torch.inf
    every = jacobian_spectrum(f, X, "lanczos", max_steps=300)
    assert every.resolved and every.kappa.item() == pytest.approx(kappa, rel=1e-4)
    assert every.complete == (kappa > 1e2)  # an easy one settles earlier


def test_bottom_of_a_well_conditioned_map_is_bracketed():
    f, X = linear(np.linspace(3, 1, 900), (30, 30), (30, 30))
    found = jacobian_spectrum(f, X, "lanczos", max_steps=80, tolerance=1e-9)
    lower, upper = found.kappa_bounds
    assert found.resolved and 2.9 < lower <= 3 <= upper < 3.5 and found.kappa.item() == pytest.approx(3, rel=0.05)


def test_probability_bound_over_random_starts():
    """κ = 3, bound demanded at 60 %: 200 starts in one batch may fail 40 % of the time. They fail less."""
    f, X = linear(np.concatenate([[3.0], np.linspace(2.9, 1.1, 46), [1.0]]))
    batch = lambda X: torch.vmap(f)(X)  # noqa: E731
    found = jacobian_spectrum(batch, X.expand(200, -1, -1), "lanczos", num_values=1, max_steps=8, confidence=0.6)
    held = (found.sigma_max_upper >= 3) & (found.sigma_min_lower <= 1)
    assert held.double().mean() >= 0.6
    assert found.sigma_max_upper.isfinite().all() and found.sigma.std() > 0


def test_equal_values_are_found_one_by_one():
    """Three distinct values, 16 of each: a Krylov space ends after three steps, the next begins."""
    f, X = linear(np.repeat([4.0, 2.0, 1.0], 16))
    found = jacobian_spectrum(f, X, "lanczos", num_values=5, max_steps=20)
    assert (distance(found.sigma, np.array([4.0, 2.0, 1.0])) <= found.error.numpy()).all()
    assert found.sigma[1].item() == pytest.approx(4)
    assert found.resolved and found.kappa.item() == pytest.approx(4)


def test_singular_is_certain_from_an_upper_bound():
    f, X = linear(np.concatenate([np.linspace(2, 1, 40), np.zeros(8)]))
    found = jacobian_spectrum(f, X, "lanczos", num_values=2, max_steps=45)
    assert found.steps < 48 and found.singular and found.kappa == torch.inf


@pytest.mark.parametrize(("shape_in", "shape_out"), [((20, 3), (4, 5)), ((4, 5), (20, 3))])
def test_the_smaller_side_decides_what_smallest_means(shape_in, shape_out):
    f, X = linear(np.linspace(2, 1, 20), shape_in, shape_out)
    found = jacobian_spectrum(f, X, "lanczos")
    assert found.complete and found.kappa.item() == pytest.approx(2) and found.floor_count == 0


def test_stopping_rules():
    f, X = linear(np.geomspace(1, 1e-6, 300), (15, 20), (15, 20))
    top = jacobian_spectrum(f, X, "lanczos", num_values=3, smallest=False)
    both = jacobian_spectrum(f, X, "lanczos", num_values=3, max_steps=50)
    assert 10 <= top.steps < 50 == both.steps
    assert (top.error <= 1.1e-3 * top.sigma).all()
    finer = jacobian_spectrum(f, X, "lanczos", num_values=3, smallest=False, tolerance=1e-10)
    assert finer.steps > top.steps and (finer.error <= 1.1e-10 * finer.sigma + 2 * finer.floor).all()


def test_random_start_belongs_to_the_generator():
    f, X, _ = attention(10, 8, seed=0)
    state = torch.get_rng_state()

    def run(generator):
        return jacobian_spectrum(f, X, "lanczos", num_values=3, max_steps=12, generator=generator).sigma_min

    assert torch.equal(run(seeded(1)), run(seeded(1))) and torch.equal(run(None), run(None))
    assert not torch.equal(run(seeded(1)), run(seeded(2)))
    assert torch.equal(torch.get_rng_state(), state)


def test_large_maps_go_to_lanczos_by_themselves():
    """197 tokens of width 64: 12608 × 12608, 1.3 GB if it were written down."""
    f, X, _ = attention(197, 64, seed=0, dtype=torch.float32)
    found = jacobian_spectrum(f, X, num_values=4, smallest=False)
    assert found.method == "lanczos" and (found.error <= 2e-3 * found.sigma).all()
    double, X64, _ = attention(197, 64, seed=0)
    again = jacobian_spectrum(double, X64, num_values=4, smallest=False, generator=seeded(5))
    assert ((found.sigma - again.sigma).abs() <= found.error + again.error).all()


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_the_staircase_is_the_whole_spectrum(spread):
    """A stretch with known values: the share above each node, and the sum of any power, up to the random direction."""
    n, d = 60, 50
    values = torch.exp(-spread * torch.rand(n, d, dtype=torch.float64, generator=seeded(3)))
    found = jacobian_spectrum(lambda X: X * values, torch.ones(n, d, dtype=torch.float64), "lanczos", max_steps=30)
    sigma = np.sort(values.numpy().ravel())[::-1]
    noise = 3 * math.sqrt(len(sigma))
    first, last = (ranks.numpy() for ranks in found.ranks)
    for node, low, high in zip(found.nodes.numpy(), first, last, strict=True):
        assert low - noise <= np.sum(sigma >= node) <= high + noise
    assert np.median(last - first) > 5 and last[-1] == pytest.approx(len(sigma), rel=1e-9)
    assert found.weights.sum().item() == pytest.approx(1, abs=1e-12)
    mean = (found.weights * found.nodes**2).sum().item()
    assert mean == pytest.approx(np.mean(sigma**2), rel=4 / math.sqrt(len(sigma)))


def test_the_staircase_of_a_complete_spectrum_is_the_spectrum():
    exact = jacobian_spectrum(lambda X: X * torch.arange(1.0, 5.0), torch.ones(2, 4))
    assert torch.equal(exact.nodes, exact.sigma) and torch.equal(
        exact.ranks[1].round(), torch.arange(1.0, 9.0).double()
    )
    whole = jacobian_spectrum(lambda X: X * torch.arange(1.0, 5.0), torch.ones(3, 2, 4), "lanczos")
    assert whole.complete and whole.nodes.shape == (3, 8) and whole.weights.sum(-1) == pytest.approx([1.0] * 3)
