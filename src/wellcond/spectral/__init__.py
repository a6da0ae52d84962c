"""Numbers about matrices: singular values, condition number, ranks, numerical floor, and U f(Σ) Vᵀ.

X is (…, n, d): batches of n tokens of width d. What is computed with what:

| input            | decomposition                                | σ is trusted above (floor)                        |
|------------------|----------------------------------------------|---------------------------------------------------|
| float64          | true SVD                                     | eps₆₄ · max(n, d) · σ_max                         |
| float32 and less | float64 Gram matrix of the smaller side,     | √(eps₆₄ · max(n, d)) · σ_max, about 4e-7 σ_max,   |
|                  | symmetric eigensolver (`eigen.py`)           | or the rounding of the float32 input if larger    |

Squaring a float32 matrix in float32 would lose every σ under √eps₃₂ σ_max = 3e-4 σ_max, many of a photograph's;
in float64 it loses nothing that float32 input can hold. This package is the only one that knows eigensolvers.
These are numbers to look at: no gradient flows through them.
"""

import math
from collections.abc import Callable
from typing import Literal, overload

import torch
from torch import Tensor

from wellcond.spectral import eigen, power, products

Precision = Literal["exact", "fast"]
_EPS32, _EPS64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


@torch.no_grad()
def singular_values(X: Tensor) -> Tensor:
    """Singular values of X (…, n, d), descending, (…, min(n, d)).

    The result is float64 for float64 input, else float32. Values under the floor (see the module's table) are rounding
    noise; `numerical_floor` counts them.

    >>> singular_values(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
    tensor([4., 3.])
    """
    return spectrum(X)[0].to(_result_dtype(X))


@torch.no_grad()
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
    sigma, floor = spectrum(X)
    top, bottom = sigma[..., 0], sigma[..., -1]
    kappa = torch.where(bottom > floor, top / bottom, torch.inf)
    kappa = torch.where(top > 0, kappa, torch.nan)  # also where top is nan
    return (kappa.log() if log else kappa).to(_result_dtype(X))


@torch.no_grad()
def effective_rank(X: Tensor) -> Tensor:
    """exp of the entropy of σ / Σσ (Roy & Vetterli 2007), between 1 and min(n, d); nan for an all-zero X.

    >>> effective_rank(torch.eye(4))
    tensor(4.)
    """
    sigma, _ = spectrum(X)
    p = sigma / sigma.sum(-1, keepdim=True)
    return torch.exp(-torch.xlogy(p, p).sum(-1)).to(_result_dtype(X))


@torch.no_grad()
def stable_rank(X: Tensor) -> Tensor:
    """‖X‖_F² / σ_max², between 1 and min(n, d); nan for an all-zero X.

    >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0])))
    tensor(1.2500)
    """
    sigma, _ = spectrum(X)
    return (sigma / sigma[..., :1]).square().sum(-1).to(_result_dtype(X))


@torch.no_grad()
def numerical_floor(X: Tensor) -> Tensor:
    """How many singular values of X (…, n, d) lie at or under the floor of the arithmetic, (…), int64.

    >>> numerical_floor(torch.ones(3, 2))
    tensor(1)
    """
    sigma, floor = spectrum(X)
    return (sigma <= floor[..., None]).sum(-1)


@overload
def spectral_map(
    X: Tensor, f: Callable[[Tensor], Tensor], precision: Precision = ..., return_error: Literal[False] = ...
) -> Tensor: ...
@overload
def spectral_map(
    X: Tensor, f: Callable[[Tensor], Tensor], precision: Precision = ..., *, return_error: Literal[True]
) -> tuple[Tensor, Tensor]: ...
@torch.no_grad()
def spectral_map(X, f, precision: Precision = "exact", return_error: bool = False):
    """U f(Σ) Vᵀ of X = U Σ Vᵀ (…, n, d); f maps the singular values (…, min(n, d)), float64, descending.

    Singular values at or under the floor are left as they are: f would amplify rounding noise. `precision` is "exact"
    (at most 1e-5 in relative Frobenius norm and 1e-2 in each log σ for κ ≤ 1e5 and float32 input); for a general f
    "fast" takes the same path, a power of σ has a quicker one (`singular_power`).
    With `return_error` also an estimate of the relative Frobenius error, (…): how far the result moves when every
    singular value moves by the rounding of its decomposition, plus the rounding of the result itself.

    >>> spectral_map(torch.diag(torch.tensor([4.0, 1.0])), torch.sqrt)
    tensor([[2., 0.],
            [0., 1.]])
    """
    check_precision(precision)
    check_matrices(X)
    Y, sigma, mapped, drift = _map(X, f)
    if not return_error:
        return Y
    kept = sigma > _floor(X, sigma)[..., None]
    moved = torch.where(kept, drift(_EPS64 * math.sqrt(max(X.shape[-2:]))) - mapped, 0.0)
    size = torch.linalg.vector_norm(mapped, dim=-1)
    error = torch.linalg.vector_norm(moved, dim=-1) / torch.where(size > 0, size, 1.0)
    return Y, (error + torch.finfo(X.dtype).eps / 2).to(_result_dtype(X))


def _map(X: Tensor, f: Callable[[Tensor], Tensor]):
    """(Y, σ, f(σ), drift): drift(share) is f(σ) after the decomposition moved by that share of its largest value."""
    return _map_by_svd(X, f) if X.dtype == torch.float64 else _map_by_gram(X, f)


def _values_of(f: Callable[[Tensor], Tensor], sigma: Tensor) -> Tensor:
    """f(σ); another shape would be broadcast silently."""
    values = f(sigma)
    if not isinstance(values, Tensor) or values.shape != sigma.shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"f returned {got}; it must map singular values {tuple(sigma.shape)} to a tensor of that shape"
        )
    return values


def _map_by_svd(X: Tensor, f: Callable[[Tensor], Tensor]):
    """A true SVD; every σ drifts by a share of σ_max."""
    X, finite = _without_nan(X)
    U, sigma, Vh = torch.linalg.svd(X, full_matrices=False)
    mapped = torch.where(sigma > _floor(X, sigma)[..., None], _values_of(f, sigma), sigma)
    Y = torch.where(finite, (U * mapped[..., None, :]) @ Vh, torch.nan)
    return Y, sigma, mapped, lambda share: f(sigma + share * sigma[..., :1])


def _map_by_gram(X: Tensor, f: Callable[[Tensor], Tensor]):
    """V [f(σ)/σ] Vᵀ X with X Xᵀ = V Σ² Vᵀ; every σ² drifts by a share of σ_max²."""
    flat = _flat(X)
    eigenvalues, V = eigen.eigh(products.gram(flat))
    # descending, as f is promised; the columns of V ascend
    eigenvalues = eigenvalues.flip(-1).clamp_min(0).reshape(*X.shape[:-2], min(X.shape[-2:]))
    sigma = eigenvalues.sqrt()
    kept = sigma > _floor(X, sigma)[..., None]
    mapped = torch.where(kept, _values_of(f, sigma), sigma)
    gain = torch.where(kept, mapped / torch.where(kept, sigma, 1.0), 1.0).reshape(len(flat), 1, min(X.shape[-2:]))
    Y = products.times((V * gain.flip(-1)) @ V.mT, flat).reshape(X.shape).to(X.dtype)

    def drift(share: float) -> Tensor:
        moved = (eigenvalues + share * eigenvalues[..., :1]).sqrt()
        return f(moved) * (sigma / torch.where(kept, moved, 1.0))

    return Y, sigma, mapped, drift


@torch.no_grad()
def singular_power(X: Tensor, epsilon: float, precision: Precision = "exact") -> tuple[Tensor, Tensor]:
    """(U Σ̃ Vᵀ, σ_max) with Σ̃ = σ_max (Σ/σ_max)^ε: log κ becomes ε log κ, the largest singular value stays.

    "exact" as `spectral_map`; "fast" (at most 1e-3 in relative Frobenius norm, 0.05 in each log σ for κ ≤ 1e5) skips
    the eigensolver on GPUs with float64 tensor cores (`power.py`) and is "exact" elsewhere.
    """
    check_precision(precision)
    check_matrices(X)
    if precision == "fast" and power.available(X, epsilon):
        Y, top = power.singular_power(_flat(X), epsilon)
        return Y.reshape(X.shape).to(X.dtype), top.reshape(X.shape[:-2])

    def lift(sigma: Tensor) -> Tensor:
        largest = torch.where(sigma[..., :1] > 0, sigma[..., :1], 1.0)
        return largest * (sigma / largest) ** epsilon

    Y, sigma, *_ = _map(X, lift)
    return Y, sigma[..., 0]


def check_precision(precision: str) -> None:
    if precision not in ("exact", "fast"):
        raise ValueError(f'precision={precision!r} is unknown; use "exact" or "fast"')


def check_matrices(X: Tensor, name: str = "X") -> None:
    """Raise for what is no batch of real matrices. On the CPU also for NaN and inf; on CUDA that would wait."""
    if not isinstance(X, Tensor):
        raise ValueError(f"{name} is a {type(X).__name__}; pass a torch.Tensor (…, n, d), e.g. torch.as_tensor({name})")
    if X.ndim < 2:
        raise ValueError(f"{name} has shape {tuple(X.shape)}; expected (…, n, d), a batch of n × d token matrices")
    if X.is_complex():
        raise ValueError(f"{name} has dtype {X.dtype}; only real matrices are supported")
    if not X.is_floating_point():
        raise ValueError(f"{name} has dtype {X.dtype}; convert it to floating point first, e.g. {name}.float() / 255")
    if 0 in X.shape[-2:]:
        raise ValueError(f"{name} has shape {tuple(X.shape)}; n and d must be at least 1")
    if X.device.type == "cpu" and not torch.compiler.is_compiling() and not eigen.all_finite(X):
        raise ValueError(
            f"{name} holds NaN or inf; remove or replace these values first, e.g. torch.nan_to_num({name})"
        )


def _without_nan(X: Tensor) -> tuple[Tensor, Tensor]:
    """X with zeros for matrices that hold NaN or inf, and which are finite (…, 1, 1); on the CPU all are by now."""
    if X.device.type == "cpu":
        return X, torch.ones((), dtype=torch.bool)[..., None, None]
    finite = X.isfinite().all(-1).all(-1)[..., None, None]
    return torch.where(finite, X, 0.0), finite


def _flat(X: Tensor) -> Tensor:
    """(…, n, d) → (B, n, d), half precision lifted to float32."""
    return X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:]).float()


def spectrum(X: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values (…, min(n, d)), float64, descending, and the floor (…). NaN for matrices that hold NaN or inf.

    For rooms that need the floor itself; `singular_values` and `numerical_floor` are the public names.
    """
    check_matrices(X)
    if X.dtype == torch.float64:
        X, finite = _without_nan(X)
        sigma = torch.where(finite[..., 0], torch.linalg.svdvals(X), torch.nan)
    else:
        eigenvalues = eigen.eigvalsh(products.gram(_flat(X)))
        sigma = eigenvalues.flip(-1).clamp_min(0).sqrt().reshape(*X.shape[:-2], min(X.shape[-2:]))
    return sigma, _floor(X, sigma)


def _floor(X: Tensor, sigma: Tensor) -> Tensor:
    """Singular values at or under this are rounding noise (…)."""
    n, d = X.shape[-2:]
    top = sigma[..., 0]
    if X.dtype == torch.float64:
        return _EPS64 * max(n, d) * top
    # Entries rounded to float32 carry a random error matrix of norm about eps ‖X‖_F (1/√n + 1/√d) / √12; a
    # product that was accumulated in float32 a few times that.
    rounding = 2 * _EPS32 * (n**-0.5 + d**-0.5) * torch.linalg.vector_norm(sigma, dim=-1)
    return torch.maximum(math.sqrt(_EPS64 * max(n, d)) * top, rounding)


def _result_dtype(X: Tensor) -> torch.dtype:
    return torch.float64 if X.dtype == torch.float64 else torch.float32
