"""Numbers about matrices: singular values, condition number, ranks, numerical floor, and U f(Σ) Vᵀ.

X is (…, n, d): batches of n tokens of width d. What is computed with what:

| input            | decomposition                                | σ is trusted above (floor)                        |
|------------------|----------------------------------------------|---------------------------------------------------|
| float64          | true SVD                                     | eps₆₄ · max(n, d) · σ_max                         |
| float32 and less | float64 Gram matrix of the smaller side,     | √(eps₆₄ · max(n, d)) · σ_max, about 4e-7 σ_max,   |
|                  | symmetric eigensolver (`eigen.py`); on the   | or the rounding of the float32 input if larger    |
|                  | CPU σ of κ > 3e5 by a true SVD               |                                                   |

Squaring a float32 matrix in float32 would lose every σ under √eps₃₂ σ_max = 3e-4 σ_max, many of a photograph's;
in float64 it loses nothing that float32 input can hold. This package is the only one that knows eigensolvers.
These are numbers to look at: no gradient flows through them.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from wellcond.spectral import arithmetic, eigen, errors, power
from wellcond.spectral.arithmetic import Arithmetic, Values

Precision = Literal["exact", "fast"]
_LARGE = 2048
_STEEP = 1 / 3e5  # σ_min / σ_max under which a Gram matrix may not tell log κ to 1e-3
_ROUNDED = 8  # units of eps₆₄ by which products with singular vectors err, however small X is
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_EPS32, _EPS64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def singular_values(X: Tensor) -> Tensor:
    """Singular values of X (…, n, d), descending, (…, min(n, d)).

    The result is float64 for float64 input, else float32. Values under the floor (see the module's table) are rounding
    noise; `numerical_floor` counts them.

    >>> singular_values(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor([4., 3.])
    """
    return _answer(_singular(X), X)


def condition_number(X: Tensor, log: bool = False) -> Tensor:
    """κ(X) = σ_max / σ_min, or its natural logarithm, (…).

    inf where a singular value lies at or under the numerical floor: the matrix is rank-deficient as far as the
    arithmetic can tell, and a finite quotient would be rounding noise. nan where X is all zero (no direction is
    longer than another, so there is no ratio) or, on a GPU, holds NaN or inf; on the CPU that is a ValueError.

    >>> condition_number(torch.diag(torch.tensor([100.0, 1.0])))
    tensor(100.)
    >>> condition_number(torch.ones(3, 2), log=True)
    tensor(inf)
    """
    top, bottom, length = _extremes(X)
    xp = _module(top)
    kept = bottom > _floor(X, top, length)
    if xp is np and kept.all():  # the usual case, in one division
        kappa = top / bottom
    else:
        kappa = xp.where(kept, top / xp.where(kept, bottom, 1.0), xp.inf)
        kappa = xp.where(top > 0, kappa, xp.nan)  # also where top is nan
    return _answer(xp.log(kappa) if log else kappa, X)


def effective_rank(X: Tensor) -> Tensor:
    """exp of the entropy of σ / Σσ (Roy & Vetterli 2007), between 1 and min(n, d); nan for an all-zero X.

    >>> effective_rank(torch.eye(4))
    tensor(4.)
    """
    sigma = _singular(X)
    xp = _module(sigma)
    top = sigma[..., :1]
    share = sigma / xp.where(top == 0, xp.nan, top)  # the sum of σ itself may leave float64
    p = share / share.sum(-1)[..., None]
    return _answer(xp.exp(-(p * xp.log(xp.where(p == 0, 1.0, p))).sum(-1)), X)


def stable_rank(X: Tensor) -> Tensor:
    """‖X‖_F² / σ_max², between 1 and min(n, d); nan for an all-zero X.

    >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0])))
    tensor(1.2500)
    """
    sigma = _singular(X)
    top = sigma[..., :1]
    share = sigma / _module(sigma).where(top == 0, math.nan, top)
    return _answer((share * share).sum(-1), X)


def numerical_floor(X: Tensor) -> Tensor:
    """How many singular values of X (…, n, d) lie at or under the floor of the arithmetic, (…), int64.

    >>> numerical_floor(torch.ones(3, 2))
    tensor(1)
    """
    sigma = _singular(X)
    return _tensor((sigma <= _threshold(X, sigma)).sum(-1), X)


@overload
def spectral_map(
    X: Tensor, f: Callable[[Tensor], Tensor], precision: Precision = ..., return_error: Literal[False] = ...
) -> Tensor: ...
@overload
def spectral_map(
    X: Tensor, f: Callable[[Tensor], Tensor], precision: Precision = ..., *, return_error: Literal[True]
) -> tuple[Tensor, Tensor]: ...
def spectral_map(X, f, precision: Precision = "exact", return_error: bool = False):
    """U f(Σ) Vᵀ of X = U Σ Vᵀ (…, n, d); f maps the singular values (…, min(n, d)), float64, descending.

    Singular values at or under the floor are left as they are: f would amplify rounding noise. `precision` is "exact"
    (at most 1e-5 in relative Frobenius norm and 1e-2 in each log σ for κ ≤ 1e5 and float32 input); for a general f
    "fast" takes the same path, a power of σ has a quicker one (`singular_power`).
    With `return_error` also an estimate of the relative Frobenius error, (…): how far the result moves when its
    decomposition errs, values and vectors (`errors.py`), plus the rounding of the products and of the result.

    >>> spectral_map(torch.diag(torch.tensor([4.0, 1.0])), torch.sqrt)
    tensor([[2., 0.],
            [0., 1.]])
    """
    check_precision(precision)
    Y, sigma, kept, values = _map(X, f)
    if not return_error:
        return Y
    xp, (n, d) = _module(sigma), X.shape[-2:]

    def mapped(sigma: Values) -> Values:
        return xp.where(kept, _values_of(f, sigma, X), sigma)

    values = xp.where(kept, values, sigma)
    if X.dtype == torch.float64:
        error = errors.of_svd(mapped, values, sigma, n, d, xp)
    else:
        error = errors.of_gram(mapped, values, sigma * sigma, n, d, xp)
    return Y, _answer(error + _ROUNDED * _EPS64 + torch.finfo(X.dtype).eps / 2, X)


def _map(X: Tensor, f: Callable[[Tensor], Tensor]):
    """(Y, σ, which are above the floor, f(σ)), the last three (B, m)."""
    use = _checked(X)
    return (_map_by_svd if X.dtype == torch.float64 else _map_by_gram)(X, f, use)


def _values_of(f: Callable[[Tensor], Tensor], sigma: Values, X: Tensor) -> Values:
    """f(σ) for σ (B, m), which f sees as (…, m); another shape would be broadcast silently."""
    if not callable(f):
        raise ValueError(f"f={f!r} is no function; pass one that maps singular values, e.g. torch.sqrt")
    given = _tensor(sigma.clone() if isinstance(sigma, Tensor) else sigma.copy(), X)  # f may write on it
    values = f(given)
    if not isinstance(values, Tensor) or values.shape != given.shape or values.is_complex():
        got = f"{tuple(values.shape)}, {values.dtype}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"f returned {got}; it must map singular values {tuple(given.shape)} to a real tensor of that shape"
        )
    if values.dtype != given.dtype:
        values = values.to(given.dtype)
    if isinstance(sigma, Tensor):
        return values.detach().reshape(sigma.shape)
    return values.numpy(force=values.requires_grad).reshape(sigma.shape)


def _check_mapped(sigma: Values, kept: Values, values: Values, X: Tensor) -> None:
    """ValueError where f of a singular value above the floor is not finite; only on the CPU, as in `_check_entries`."""
    if X.device.type != "cpu" or not eigen.is_readable(X):
        return
    every = values.ravel()
    with np.errstate(over="ignore"):
        squares = every.dot(every) if isinstance(every, Tensor) else arithmetic.sum_of_squares(every)
        if math.isfinite(squares):  # the usual case, in one pass
            return
    wrong = kept & ~_module(sigma).isfinite(values)
    if wrong.any():
        at, got = float(sigma[wrong][0]), float(values[wrong][0])
        raise ValueError(f"f maps the singular value {at:g} to {got}; it must map all above the floor to finite ones")


def _map_by_svd(X: Tensor, f: Callable[[Tensor], Tensor], use: Arithmetic):
    """A true SVD."""
    flat, finite = _without_nan(X)
    U, sigma, Vh = use.svd(flat)
    kept, values = _kept(X, sigma), _values_of(f, sigma, X)
    _check_mapped(sigma, kept, values, X)
    Y = use.join(U, values if kept is True else use.xp.where(kept, values, sigma), Vh, X)
    Y = Y if finite is None else torch.where(finite.reshape(*X.shape[:-2], 1, 1), Y, torch.nan)
    return Y, sigma, kept, values


def _map_by_gram(X: Tensor, f: Callable[[Tensor], Tensor], use: Arithmetic):
    """V [f(σ)/σ] Vᵀ X with X Xᵀ = V Σ² Vᵀ."""
    xp, flat = use.xp, use.flat(X)
    eigenvalues, V = use.eigh(flat)
    sigma = _descending(eigenvalues) ** 0.5
    kept = _kept(X, sigma)
    values = _values_of(f, sigma, X)
    _check_mapped(sigma, kept, values, X)
    gain = values / sigma if kept is True else xp.where(kept, values / xp.where(kept, sigma, 1.0), 1.0)
    Y = use.rebuild(V, _turned(gain), flat, X)  # the columns of V ascend
    return Y, sigma, kept, values


def singular_power(X: Tensor, epsilon: float, precision: Precision = "exact") -> tuple[Tensor, Tensor]:
    """(U Σ̃ Vᵀ, σ_max) with Σ̃ = σ_max (Σ/σ_max)^ε: log κ becomes ε log κ, the largest singular value stays.

    "exact" as `spectral_map`; "fast" (at most 1e-3 in relative Frobenius norm, 0.05 in each log σ for κ ≤ 1e5) skips
    the eigensolver on GPUs with float64 tensor cores (`power.py`) and is "exact" elsewhere.
    """
    check_precision(precision)
    if precision == "fast" and power.available(X, epsilon):
        check_matrices(X)
        Y, top = power.singular_power(arithmetic.TORCH.flat(X), epsilon)
        return Y.reshape(X.shape).to(X.dtype), top.reshape(X.shape[:-2])

    def lift(sigma: Tensor) -> Tensor:
        largest = torch.where(sigma[..., :1] > 0, sigma[..., :1], 1.0)
        return largest * (sigma / largest) ** epsilon

    Y, sigma, *_ = _map(X, lift)
    return Y, _tensor(sigma[..., 0], X)


def check_precision(precision: str) -> None:
    if precision not in ("exact", "fast"):
        raise ValueError(f'precision={precision!r} is unknown; use "exact" or "fast"')


def _checked(X: Tensor) -> Arithmetic:
    """The arithmetic for X, which is checked; a small one's entries by numpy, when it has them."""
    _check_shape(X, "X")
    use = arithmetic.of(X)
    if use is not arithmetic.NUMPY:
        _check_entries(X, "X")
    return use


def check_matrices(X: Tensor, name: str = "X") -> None:
    """Raise for what is no batch of real matrices. On the CPU also for NaN and inf; on CUDA that would wait."""
    _check_shape(X, name)
    _check_entries(X, name)


def _check_shape(X: Tensor, name: str) -> None:
    if not isinstance(X, Tensor):
        raise ValueError(f"{name} is a {type(X).__name__}; pass a torch.Tensor (…, n, d), e.g. torch.as_tensor({name})")
    if X.is_nested:  # its shape cannot be asked for
        raise ValueError(f"{name} is nested; pass its matrices one by one, or those of one shape stacked")
    if X.layout is not torch.strided:
        raise ValueError(f"{name} is {X.layout}; pass {name}.to_dense()")
    if X.ndim < 2:
        raise ValueError(f"{name} has shape {tuple(X.shape)}; expected (…, n, d), a batch of n × d token matrices")
    if not X.is_floating_point():
        if X.is_complex():
            raise ValueError(f"{name} has dtype {X.dtype}; only real matrices are supported")
        raise ValueError(f"{name} has dtype {X.dtype}; convert it to floating point first, e.g. {name}.float() / 255")
    if X.dtype not in _DTYPES:  # torch has float8 and less, which it cannot add
        raise ValueError(f"{name} has dtype {X.dtype}; convert it first, e.g. {name}.float()")
    if 0 in X.shape[-2:]:
        raise ValueError(f"{name} has shape {tuple(X.shape)}; n and d must be at least 1")


def _check_entries(X: Tensor, name: str) -> None:
    if X.device.type == "cpu" and eigen.is_readable(X) and not eigen.all_finite(X):
        raise arithmetic.not_finite(name)


def _without_nan(X: Tensor) -> tuple[Tensor, Tensor | None]:
    """X (B, n, d) with zeros for matrices that hold NaN or inf, and which are finite (B, 1, 1).

    None instead where all are: on the CPU others were refused.
    """
    flat = arithmetic.stacked(X)
    if X.device.type == "cpu" and eigen.is_readable(X):
        return flat, None
    finite = flat.isfinite().all(-1).all(-1)[..., None, None]
    return torch.where(finite, flat, 0.0), finite


def spectrum(X: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values (…, min(n, d)), float64, descending, and the floor (…). NaN for matrices that hold NaN or inf.

    For rooms that need the floor itself; `singular_values` and `numerical_floor` are the public names.
    """
    sigma = _singular(X)
    floor = _floor(X, *_size(X, sigma))
    return _tensor(sigma, X), _answer(floor, X, torch.float64)


def _singular(X: Tensor, use: Arithmetic | None = None) -> Values:
    """Singular values of X (…, n, d) as (B, m), float64, descending, in the arithmetic that suits X.

    Who has asked for it already (`_checked`) passes it on.
    """
    use = use or _checked(X)
    if X.dtype != torch.float64:
        sigma = _descending(use.eigvalsh(use.flat(X))) ** 0.5
        return _again(X, sigma) if use is arithmetic.BOTH else sigma
    flat, finite = _without_nan(X)
    if finite is None:
        return use.svdvals(flat)
    # cuSOLVER's default, Jacobi's method, is the slower one from a few thousand rows on
    driver = "gesvd" if X.is_cuda and min(X.shape[-2:]) > _LARGE else None
    return torch.where(finite[..., 0], torch.linalg.svdvals(flat, driver=driver), torch.nan)


def _again(X: Tensor, sigma: np.ndarray) -> np.ndarray:
    """σ (B, m), those of steep matrices by a true SVD.

    Of a sum of thousands of squares MKL loses up to 30 eps: at κ = 1e6 the third digit of log κ.
    """
    steep = sigma[:, -1] < _STEEP * sigma[:, 0]
    if steep.any():  # the usual case is none, and of those with noise under the floor κ is infinite
        steep &= sigma[:, -1] > _floor(X, *_size(X, sigma))
    if steep.any():
        sigma[steep] = arithmetic.BOTH.svdvals(arithmetic.stacked(X)[torch.from_numpy(steep)].double())
    return sigma


def _extremes(X: Tensor) -> tuple[Values, Values, Values]:
    """(σ_max, σ_min, ‖X‖_F) of X, (B,) each; of a single matrix on the CPU floats, whose formulas cost a tenth."""
    use = _checked(X)
    if use is arithmetic.NUMPY and X.numel() == X.shape[-2] * X.shape[-1]:
        return arithmetic.extremes_of_one(X)
    sigma = _singular(X, use)
    top, length = _size(X, sigma)
    return top, float(sigma[0, -1]) if isinstance(top, float) else sigma[..., -1], length


def _kept(X: Tensor, sigma: Values) -> Values:
    """Which singular values (B, m) of X lie above the floor; True where all of a single matrix do."""
    threshold = _threshold(X, sigma)
    all_of_one = isinstance(threshold, float) and sigma[0, -1] > threshold
    return True if all_of_one else sigma > threshold


def _threshold(X: Tensor, sigma: Values) -> Values:
    """The floor, to be compared with σ (B, m)."""
    floor = _floor(X, *_size(X, sigma))
    return floor if isinstance(floor, float) else floor[..., None]


def _size(X: Tensor, sigma: Values) -> tuple[Values, Values]:
    """(σ_max, ‖X‖_F) of σ (B, m); floats of numpy's single matrix.

    Of float64 σ_max twice: its floor asks for nothing else, and squares of 1e200 would be infinite.
    """
    if isinstance(sigma, np.ndarray) and len(sigma) == 1:
        top = float(sigma[0, 0])
        return top, top if X.dtype == torch.float64 else math.sqrt(sigma[0].dot(sigma[0]))
    return sigma[..., 0], sigma[..., 0] if X.dtype == torch.float64 else _length(sigma)


def _floor(X: Tensor, top: Values, length: Values) -> Values:
    """Singular values of X at or under this are rounding noise; σ_max and ‖X‖_F (B,) → (B,)."""
    of_top, of_length = _floor_factors(X.shape[-2], X.shape[-1], X.dtype)
    return _module(top).maximum(of_top * top, of_length * length)


@functools.cache
def _floor_factors(n: int, d: int, dtype: torch.dtype) -> tuple[float, float]:
    if dtype == torch.float64:
        return _EPS64 * max(n, d), 0.0
    # Entries rounded to float32 carry a random error matrix of norm about eps ‖X‖_F (1/√n + 1/√d) / √12; a
    # product that was accumulated in float32 a few times that.
    return math.sqrt(_EPS64 * max(n, d)), 2 * _EPS32 * (n**-0.5 + d**-0.5)


def _module(values: Values) -> Any:
    if isinstance(values, float):
        return arithmetic.FLOATS
    return torch if isinstance(values, Tensor) else np


def _descending(eigenvalues: Values) -> Values:
    """Ascending eigenvalues turned round, none under zero; NaN stays."""
    if isinstance(eigenvalues, Tensor):
        return eigenvalues.clamp_min(0.0).flip(-1)
    return np.maximum(eigenvalues[..., ::-1], 0.0)


def _turned(values: Values) -> Values:
    return values.flip(-1) if isinstance(values, Tensor) else values[..., ::-1]


def _length(values: Values) -> Values:
    return (values * values).sum(-1) ** 0.5


def _tensor(values: Values, X: Tensor) -> Tensor:
    """Values (B, …) of X (batch…, n, d) as a tensor (batch…, …)."""
    shaped = values if X.ndim == 3 else values.reshape(X.shape[:-2] + values.shape[1:])  # numpy's costs a tenth
    return shaped if isinstance(shaped, Tensor) else torch.from_numpy(shaped)


def _answer(values: Values, X: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """`_tensor`, also of a float; without a dtype float64 for float64 input, else float32."""
    dtype = dtype or (torch.float64 if X.dtype == torch.float64 else torch.float32)
    if isinstance(values, float):
        return torch.full(X.shape[:-2], values, dtype=dtype, device=X.device)
    if isinstance(values, np.ndarray) and dtype == torch.float32:
        values = values.astype(np.float32)  # a call that costs less than torch's
    return _tensor(values, X).to(dtype)
