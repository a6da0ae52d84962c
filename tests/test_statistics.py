"""Rank correlation and intervals against scipy and enumeration."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from wellcond.reproduction import statistics
from wellcond.reproduction.statistics import mean_interval, ranks, seed_bootstrap, spearman

NUMBERS = st.lists(st.integers(-5, 5), min_size=3, max_size=30)  # few values: many ties


@given(NUMBERS, st.randoms())
def test_spearman_is_scipys_also_with_ties(x, random):
    y = random.sample(x, len(x))
    a = np.array(x, np.float64)
    b: Any = np.array(y, np.float64) ** 3 + np.arange(len(x)) % 2
    if len(set(a)) > 1 and len(set(b)) > 1:
        found: Any = scipy.stats.spearmanr(a, b)
        assert spearman(a, b) == pytest.approx(found.statistic, abs=1e-12)
    assert ranks(a).tolist() == scipy.stats.rankdata(a).tolist()


def test_spearman_has_no_value_without_spread_or_points():
    assert math.isnan(spearman(np.ones(5), np.arange(5.0)))
    assert math.isnan(spearman(np.arange(2.0), np.arange(2.0)))
    assert spearman(np.arange(3.0), np.exp(np.arange(3.0))) == pytest.approx(1)


def test_quantiles_are_students():
    want = scipy.stats.t.ppf(0.975, np.arange(1, 31))
    np.testing.assert_allclose(statistics._T, want, atol=6e-5)


@pytest.mark.parametrize("m", [2, 3, 7, 60])
def test_mean_interval(m):
    values = np.random.default_rng(m).standard_normal(m)
    low, high = mean_interval(values.tolist()) or (math.nan, math.nan)
    want = scipy.stats.t.interval(0.95, m - 1, values.mean(), scipy.stats.sem(values))
    if m <= 31:
        assert (low, high) == pytest.approx(want, abs=1e-3)
    else:
        assert low < want[0] < want[1] < high  # a little too wide
    assert mean_interval([1.0]) is None


def test_bootstrap_draws_whole_seeds():
    rng = np.random.default_rng(0)
    of_seed = {seed: rng.standard_normal((4, 2)) + seed for seed in range(3)}

    def statistic(rows):
        return float(rows[:, 0].mean())

    every = [np.concatenate([of_seed[s] for s in chosen]) for chosen in itertools.product(range(3), repeat=3)]
    want = np.percentile(np.repeat([statistic(rows) for rows in every], 1000), [2.5, 97.5])  # all 27 draws, as often
    low, high = seed_bootstrap(of_seed, statistic, draws=20_000) or (math.nan, math.nan)
    assert (low, high) == pytest.approx(want.tolist(), abs=0.05)
    copied = {seed: np.repeat(rows, 50, axis=0) for seed, rows in of_seed.items()}
    assert seed_bootstrap(copied, statistic, draws=20_000) == pytest.approx((low, high))  # more rows are no more seeds


def test_bootstrap_without_an_answer():
    assert seed_bootstrap({0: np.ones((5, 1))}, lambda rows: 1.0) is None
    assert seed_bootstrap({0: np.ones((5, 1)), 1: np.ones((5, 1))}, lambda rows: math.nan) is None
