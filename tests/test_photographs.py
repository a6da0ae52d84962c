"""The bars on real photographs (κ around 2e3, up to 4e4). Skips where the photographs are not at hand."""

import functools

import cases
import numpy as np
import oracles
import pytest
import torch
from oracles import FAST, LOG_KAPPA, LOG_SIGMA, TOLERANCE

import wellcond as wc

by_name = pytest.mark.parametrize("name", cases.PHOTOGRAPHS)


@functools.cache
def tokens(name: str) -> np.ndarray:
    return oracles.unfold(cases.photographs(name).numpy(), cases.PHOTOGRAPHS[name][2])


@functools.cache
def wanted(name: str, method: str, epsilon: float) -> np.ndarray:
    return oracles.gray_tokens(tokens(name), method, epsilon)


@by_name
def test_photographs_are_as_ill_conditioned_as_said(name):
    kappa = oracles.condition_number(tokens(name))
    assert 100 < np.median(kappa) < 1e5


@by_name
def test_numbers(name):
    X = tokens(name)
    got = torch.from_numpy(X)
    log = np.log(oracles.condition_number(X))
    finite = np.isfinite(log)
    assert finite.any()
    assert np.abs(wc.condition_number(got, log=True).numpy() - log)[finite].max() <= LOG_KAPPA
    assert wc.numerical_floor(got).tolist() == oracles.numerical_floor(X).tolist()
    np.testing.assert_allclose(wc.effective_rank(got).numpy(), oracles.effective_rank(X), rtol=1e-4)
    np.testing.assert_allclose(wc.stable_rank(got).numpy(), oracles.stable_rank(X), rtol=1e-4)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("epsilon", [0.5, 0.7])
@by_name
def test_svd(name, epsilon, precision):
    got = wc.gray_tokens(torch.from_numpy(tokens(name)), "svd", epsilon, precision=precision).numpy()
    want = wanted(name, "svd", epsilon)
    assert oracles.relative_error(got, want) <= (TOLERANCE["float32"] if precision == "exact" else FAST)
    top = oracles.floor(tokens(name))[:, None] < oracles.singular_values(tokens(name))
    gap = np.abs(np.log(oracles.singular_values(got)) - np.log(oracles.singular_values(want)))
    assert gap[top].max() <= LOG_SIGMA[precision]


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("epsilon", [0.85, 0.95])
@by_name
def test_dct(name, epsilon, precision):
    got = wc.gray_tokens(torch.from_numpy(tokens(name)), "dct", epsilon, precision=precision).numpy()
    bar = TOLERANCE["float32"] if precision == "exact" else FAST
    assert oracles.relative_error(got, wanted(name, "dct", epsilon)) <= bar


@by_name
def test_float64(name):
    X = tokens(name)[:3].astype(np.float64)
    for method in ("svd", "dct"):
        got = wc.gray_tokens(torch.from_numpy(X), method, 0.7).numpy()
        assert oracles.relative_error(got, oracles.gray_tokens(X, method, 0.7)) <= TOLERANCE["float64"]


@by_name
def test_graying_divides_the_logarithm_of_kappa(name):
    X = torch.from_numpy(tokens(name))
    before = wc.condition_number(X, log=True)
    after = wc.condition_number(wc.gray_tokens(X, "svd", 0.6), log=True)
    finite = torch.isfinite(before)
    assert finite.any()
    torch.testing.assert_close(after[finite], 0.6 * before[finite], rtol=0, atol=2 * LOG_SIGMA["exact"])
