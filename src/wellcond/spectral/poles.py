"""x^(−s) on [1/κ², 1] as a short sum of simple poles: w₀ + Σ wⱼ tⱼ / (x + tⱼ).

Graying needs G^((ε−1)/2) of a Gram matrix G, that is x^(−s) with s = (1−ε)/2 on its spectrum. A sum of simple
poles turns the matrix function into a handful of shifted inverses: products and small inversions, no
eigenvectors. Polynomials cannot do this (the function is steep at 0); rational functions converge like
exp(−2π²N / log 16κ²), as for the inverse square root (Hale, Higham & Trefethen 2008).

The positions log₁₀ tⱼ that minimise the worst weighted error turn out to be linear in s to two decimals, so a table
of offsets and slopes is all there is to keep. `tests/test_poles.py` optimises them again and compares.
"""

import functools

import numpy as np

SMALLEST = 6e-11  # relative eigenvalue down to which the fit holds: κ = 1.3e5
LARGEST_S = 0.275  # ε = 0.45; beyond, the sum would have to be longer than an eigensolver is slow
TOP, LOW = 2e-4, 0.02  # allowed relative error at x = 1 and at x → SMALLEST

# N: (offsets, slopes) with log10(t_j) = offset_j + slope_j * s
_TABLE = {
    6: ([-8.13, -5.53, -3.93, -2.67, -1.48, -0.21], [-1.76, -0.97, -0.67, -0.57, -0.56, -0.65]),
    7: ([-8.79, -6.45, -4.76, -3.48, -2.37, -1.29, -0.1], [-1.41, -1.11, -0.74, -0.59, -0.53, -0.53, -0.63]),
    8: (
        [-9.17, -7.15, -5.48, -4.2, -3.11, -2.12, -1.12, 0.0],
        [-1.22, -1.03, -0.77, -0.6, -0.52, -0.49, -0.49, -0.61],
    ),
    9: (
        [-9.45, -7.69, -6.1, -4.83, -3.76, -2.81, -1.9, -0.98, 0.09],
        [-1.08, -0.91, -0.75, -0.6, -0.51, -0.46, -0.44, -0.45, -0.59],
    ),
    10: (
        [-9.67, -8.11, -6.66, -5.41, -4.35, -3.42, -2.56, -1.72, -0.86, 0.17],
        [-0.99, -0.79, -0.72, -0.59, -0.5, -0.45, -0.42, -0.41, -0.43, -0.58],
    ),
    11: (
        [-9.84, -8.43, -7.12, -5.92, -4.89, -3.97, -3.14, -2.34, -1.56, -0.75, 0.24],
        [-0.93, -0.71, -0.67, -0.58, -0.5, -0.44, -0.4, -0.39, -0.39, -0.41, -0.56],
    ),
}


def allowed_error(x: np.ndarray) -> np.ndarray:
    """Relative error granted at x: tight where singular values carry the image, looser where only log σ matters."""
    return np.minimum(TOP * np.maximum(1.0, (x / 1e-3) ** -0.5), LOW)


@functools.cache
def partial_fractions(s: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Poles t (N,), weights w (N,) and constant w₀ with x^(−s) ≈ w₀ + Σ wⱼ tⱼ/(x + tⱼ) on [SMALLEST, 1].

    >>> t, w, w0 = partial_fractions(0.15)
    >>> x = 1e-6
    >>> bool(abs((w0 + (w * t / (x + t)).sum()) * x**0.15 - 1) < 0.01)
    True
    """
    assert 0 < s <= LARGEST_S, s
    # the smaller ε, the more the many small singular values weigh in the Frobenius norm
    slack = 2.0 if s <= 0.16 else 1.0 if s <= 0.2 else 0.4
    x = np.logspace(np.log10(SMALLEST), 0, 400)
    for offsets, slopes in _TABLE.values():
        t = 10 ** (np.array(offsets) + np.array(slopes) * s)
        w, worst = _minimax_weights(s, t, x)
        if worst <= slack:
            break
    return t, w[:-1], float(w[-1])


def _minimax_weights(s: float, t: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights with the smallest worst error, in units of the allowed one (Lawson's reweighted least squares)."""
    allowed = allowed_error(x)
    columns = np.column_stack([t / (x[:, None] + t), np.ones_like(x)]) * (x**s / allowed)[:, None]
    target, emphasis = 1 / allowed, np.ones_like(x)
    for _ in range(40):
        q = np.sqrt(emphasis)
        w, *_ = np.linalg.lstsq(columns * q[:, None], target * q, rcond=1e-14)
        error = np.abs(columns @ w - target)
        emphasis *= error + 1e-9
        emphasis /= emphasis.mean()
    return w, float(error.max())
