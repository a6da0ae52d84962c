"""Token Graying of token matrices X (…, n, d), by singular values or by cosines (Always Skip Attention §5).

    SVD  X = U Σ Vᵀ,        X̃ = U [σ_max (Σ/σ_max)^ε] Vᵀ                (Algorithm 1)
    DCT  X̂ = D_n X D_dᵀ,    X̃ = D_nᵀ [sign(X̂) m (|X̂|/m)^ε] D_d,  m = max|X̂|   (Algorithm 2)

The text of the paper keeps the largest singular value, its Algorithm 1 forgets to multiply back: `rescale=False` is
the algorithm to the letter. Graying has no parameters and passes no gradient.
"""

import functools
import math
from typing import Literal

import torch
from torch import Tensor

from wellcond.spectral import check_matrices, check_precision, singular_power

Method = Literal["svd", "dct"]
Rescale = bool | Literal["contrast"]


def gray_tokens(
    X: Tensor, method: str = "dct", epsilon: float = 0.95, *, rescale: Rescale = True, precision: str = "exact"
) -> Tensor:
    """Gray each token matrix of X (…, n, d); same shape and dtype.

    epsilon    in (0, 1]; 1 is the identity. With "svd", log κ becomes exactly epsilon · log κ.
    rescale    True keeps σ_max (svd) or max|X̂| (dct); False leaves them at 1; "contrast" keeps ‖X‖_F, a control that
               tells conditioning from contrast.
    precision  "exact": float64 inside. "fast": float32 products as `torch.set_float32_matmul_precision` allows (dct),
               poles instead of eigenvectors (svd, on the GPU); at most 1e-3 off.

    >>> X = torch.diag(torch.tensor([100.0, 1.0]))
    >>> gray_tokens(X, method="svd", epsilon=0.5)
    tensor([[100.,   0.],
            [  0.,  10.]])
    """
    check_settings(method, epsilon, rescale, precision)
    check_matrices(X)
    if X.requires_grad and torch.is_grad_enabled():
        raise ValueError("X requires a gradient, and graying passes none on; gray X.detach() instead")
    if epsilon == 1 and rescale is not False or X.numel() == 0:
        return X.clone()
    with torch.no_grad(), torch.autocast(X.device.type, enabled=False):
        if method == "svd":
            return _gray_svd(X, epsilon, str(rescale), precision)
        C, D = dct_coefficients(X, epsilon, rescale, precision)
        return (C @ D).to(X.dtype)


def dct_coefficients(X: Tensor, epsilon: float, rescale: Rescale, precision: str) -> tuple[Tensor, Tensor]:
    """(C, D) with X̃ = C D: the last product of DCT graying, D = D_d (d, d), is left to the caller.

    A patch embedding W takes X̃ W = C (D W): the caller can fold D into its weight.
    """
    n, d = int(X.shape[-2]), int(X.shape[-1])
    dtype = torch.float64 if precision == "exact" else torch.promote_types(X.dtype, torch.float32)
    D_n, D_d = dct_matrix(n, dtype, X.device), dct_matrix(d, dtype, X.device)
    X = X.to(dtype)
    Z = D_n @ (X @ D_d.mT)
    largest = Z.abs().amax((-2, -1), keepdim=True)
    unit = torch.where(largest > 0, largest, 1.0)
    grayed = torch.copysign((Z.abs() / unit) ** epsilon, Z)
    if rescale is True:
        grayed = grayed * largest
    elif rescale == "contrast":
        grayed = grayed * (_norm(Z) / _norm(grayed).clamp_min(torch.finfo(dtype).tiny))
    return D_n.mT @ grayed, D_d


def dct_matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Orthonormal DCT-II matrix (n, n), made once for each size, dtype and device.

    While a graph is traced it is made inside the graph, where it costs microseconds: a cached tensor would be foreign
    to the trace, and one made by the trace must not be kept.
    """
    make = _dct_matrix if torch.compiler.is_compiling() else _cached_dct_matrix
    return make(n, dtype, device)


def _dct_matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    k = torch.arange(n, device=device)
    # the angle (2i+1)k π/2n in whole turns of 4n steps: exact integers however large n is
    steps = (2 * k + 1) * k[:, None] % (4 * n)
    D = torch.cos(steps.double() * (math.pi / (2 * n))) * math.sqrt(2 / n)
    return torch.where(k[:, None] == 0, math.sqrt(1 / n), D).to(dtype)


_cached_dct_matrix = functools.cache(_dct_matrix)


@torch.library.custom_op("wellcond::gray_svd", mutates_args=())
def _gray_svd(X: Tensor, epsilon: float, rescale: str, precision: str) -> Tensor:
    """One opaque operator, so that a compiled model holds it without a graph break."""
    Y, top = singular_power(X, epsilon, precision)  # type: ignore[arg-type]
    if rescale == "False":
        Y = Y / torch.where(top > 0, top, 1.0)[..., None, None].to(Y.dtype)
    elif rescale == "contrast":
        Y = Y * (_norm(X) / _norm(Y).clamp_min(torch.finfo(torch.float32).tiny)).to(Y.dtype)
    return Y


@_gray_svd.register_fake
def _(X: Tensor, epsilon: float, rescale: str, precision: str) -> Tensor:
    return torch.empty_like(X, memory_format=torch.contiguous_format)


def _norm(X: Tensor) -> Tensor:
    return torch.linalg.vector_norm(X.to(torch.promote_types(X.dtype, torch.float32)), dim=(-2, -1), keepdim=True)


def check_settings(method: str, epsilon: float, rescale: Rescale, precision: str) -> None:
    if method not in ("svd", "dct"):
        raise ValueError(f'method={method!r} is unknown; use "svd" or "dct"')
    if not isinstance(epsilon, (int, float)) or isinstance(epsilon, bool) or not 0 < epsilon <= 1:
        raise ValueError(f"epsilon={epsilon!r} is outside (0, 1]; 1 changes nothing, the papers use 0.5 to 0.97")
    if rescale not in (True, False, "contrast"):
        raise ValueError(f'rescale={rescale!r} is unknown; use True, False or "contrast"')
    check_precision(precision)
