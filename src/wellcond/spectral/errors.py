"""How far U f(Σ) Vᵀ moves when its decomposition errs: the estimate of `spectral_map`.

A solver decomposes not X but X + E, with E of the size of rounding. To first order, in the basis of the singular
vectors (Noferini, "A formula for the Fréchet derivative of a generalized matrix function", 2017), an error E_ij

    turns vectors      by (f_i − f_j)/(σ_i − σ_j) of its symmetric and (f_i + f_j)/(σ_i + σ_j) of its other part,
    turns them out     of the smaller side by f_i/σ_i, in |n − d| directions,
    moves the values   by f′(σ_i) E_ii.

So the polar factor, f = 1, errs by eps κ and a cut between two close σ by eps over their distance, though no f(σ)
moves. Through the Gram matrix the result is V g(Λ) Vᵀ X with g = f/σ of λ = σ², and an error E of X Xᵀ gives
(g_i − g_j)/(λ_i − λ_j) σ_j. The size of E was measured: noise in all entries, and more in single ones.

Legend: values are (B, m), a tensor or an array as their module `xp` says; `mapped` is σ → f(σ), `values` f(σ) of X.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from wellcond.spectral.arithmetic import Values

_EPS = torch.finfo(torch.float64).eps
_ALL, _SINGLE = 1, 8  # entries of E in units of eps σ_max; a single one grows with the root of the side
_DROPPED = 40  # in units of eps σ: what LAPACK's iteration for singular values takes for zero

Mapped = Callable[[Values], Values]


def of_svd(mapped: Mapped, values: Values, sigma: Values, n: int, d: int, xp: Any) -> Values:
    """‖error‖_F of U f(Σ) Vᵀ by an SVD of X (B, n, d), relative to the result, (B,)."""
    peak = _peak(values, xp)
    values, top, m = values / peak, _EPS * sigma[..., :1], min(n, d)

    def moved(step: Values) -> tuple[Values, Values, Values]:
        turned = _turned(sigma, values, mapped(sigma + step) / peak, step, xp)
        other = _share(step, _sums(sigma), xp) * abs(_sums(values))
        out = (n != d) * abs(values) * step / xp.maximum(sigma, xp.where(step > 0, step, 1.0))
        return turned, other, out

    turned, other, out = moved(_ALL * top)
    everywhere = ((turned * turned + other * other) / 2).sum(-1) + min(abs(n - d), m) * out * out
    turned, other, out = moved((_SINGLE + math.sqrt(m)) * top + _DROPPED * _EPS * sigma)
    single = xp.maximum(xp.amax(xp.maximum(turned, other), -1), out)
    return (everywhere.sum(-1) ** 0.5 + xp.amax(single, -1)) / _size(values)


def of_gram(mapped: Mapped, values: Values, squares: Values, n: int, d: int, xp: Any) -> Values:
    """The same by the eigenvectors of X Xᵀ, with the eigenvalues σ² = `squares`."""
    peak = _peak(values, xp)
    sigma, top = squares**0.5, _EPS * squares[..., :1]

    def gain(values: Values, sigma: Values) -> Values:
        return values / peak / xp.where(sigma > 0, sigma, 1.0)

    def moved(step: Values) -> Values:
        further = (squares + step) ** 0.5
        turned = _turned(squares, gain(values, sigma), gain(mapped(further), further), step, xp)
        return turned * sigma[..., None, :]

    everywhere, single = moved(_ALL * top), moved((_SINGLE + math.sqrt(max(n, d))) * top)
    return ((everywhere * everywhere).sum(-1).sum(-1) ** 0.5 + xp.amax(single, (-2, -1))) / _size(values / peak)


def _turned(at: Values, values: Values, moved: Values, step: Values, xp: Any) -> Values:
    """(B, m, m): step |v_i − v_j| / |a_i − a_j|, at most |v_i − v_j|; where a_i meets a_j, what v_i moves by."""
    distance, difference = abs(_sums(at, -at)), abs(_sums(values, -values))
    return _share(step, distance, xp) * (difference + abs(moved - values)[..., None])


def _share(step: Values, distance: Values, xp: Any) -> Values:
    """The smaller step of i and j over their distance (B, m, m), at most 1; 0 in a zero matrix."""
    step = xp.minimum(step[..., None], step[..., None, :])
    return step / xp.maximum(distance, xp.where(step > 0, step, 1.0))


def _sums(values: Values, others: Values | None = None) -> Values:
    return values[..., None] + (values if others is None else others)[..., None, :]


def _peak(values: Values, xp: Any) -> Values:
    """max|v| (B, 1), by which values are divided: squares of 1e200 would be infinite."""
    peak = xp.amax(abs(values), -1)[..., None]
    return xp.where(peak > 0, peak, 1.0)


def _size(values: Values) -> Values:
    size = (values * values).sum(-1) ** 0.5
    return size + (size == 0)
