"""The pole table of the fast path: the error it promises, and that its positions are the optimal ones."""

import numpy as np
import pytest
from scipy.optimize import least_squares

from wellcond.spectral import poles


def _relative_error(s: float, x: np.ndarray) -> np.ndarray:
    t, w, w0 = poles.partial_fractions(s)
    return np.abs((w0 + (w * t / (x[:, None] + t)).sum(1)) * x**s - 1)


@pytest.mark.parametrize("epsilon", [0.99, 0.97, 0.95, 0.9, 0.8, 0.7, 0.65, 0.6, 0.5, 0.45])
def test_error_is_within_the_promise(epsilon):
    x = np.logspace(np.log10(poles.SMALLEST), 0, 5000)  # finer than the grid of the fit
    error = _relative_error((1 - epsilon) / 2, x)
    assert error[x > 1e-3].max() < 5e-4
    assert error.max() < 0.045  # log σ within 0.05


@pytest.mark.parametrize("epsilon", [0.95, 0.7, 0.5])
def test_gain_levels_off_below_the_range(epsilon):
    """Rounding noise under the range is lifted at most half as much again as the smallest true singular value."""
    s = (1 - epsilon) / 2
    _, w, w0 = poles.partial_fractions(s)
    at_zero = w0 + w.sum()
    assert 0 < at_zero < 1.5 * poles.SMALLEST**-s


def _best_positions(s: float, count: int) -> np.ndarray:
    """log10 of the positions that minimise the fourth-power error, found from scratch."""
    x = np.logspace(np.log10(poles.SMALLEST), 0, 400)
    allowed = poles.allowed_error(x)

    def residuals(log_t: np.ndarray) -> np.ndarray:
        t = np.exp(log_t)
        columns = np.column_stack([t / (x[:, None] + t), np.ones_like(x)]) * (x**s / allowed)[:, None]
        w, *_ = np.linalg.lstsq(columns, 1 / allowed, rcond=1e-14)
        return (columns @ w - 1 / allowed) ** 2

    start = np.linspace(np.log(poles.SMALLEST) + 2, 0.5, count)
    return np.sort(least_squares(residuals, start, xtol=1e-9, max_nfev=200).x) / np.log(10)


@pytest.mark.parametrize(("count", "s"), [(6, 0.025), (8, 0.15), (10, 0.2)])
def test_table_holds_the_optimal_positions(count, s):
    offsets, slopes = poles._TABLE[count]
    assert np.abs(np.array(offsets) + np.array(slopes) * s - _best_positions(s, count)).max() < 0.05
