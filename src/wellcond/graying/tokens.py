"""Token Graying of token matrices X (…, n, d), by singular values or by cosines (Always Skip Attention §5).

    SVD  X = U Σ Vᵀ,        X̃ = U [σ_max (Σ/σ_max)^ε] Vᵀ                (Algorithm 1)
    DCT  X̂ = D_n X D_dᵀ,    X̃ = D_nᵀ [sign(X̂) m (|X̂|/m)^ε] D_d,  m = max|X̂|   (Algorithm 2)

The text of the paper keeps the largest singular value, its Algorithm 1 forgets to multiply back: `rescale=False` is
the algorithm to the letter. Graying has no parameters and passes no gradient.
"""

import numbers
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_batchedtensor
from torch.autograd import forward_ad

from wellcond.graying.dct import Rescale, frobenius, gray_dct, without_autocast
from wellcond.spectral import check_matrices, check_precision, singular_power


def gray_tokens(
    X: Tensor,
    method: str = "dct",
    epsilon: float = 0.95,
    *,
    rescale: Rescale = True,
    precision: str = "exact",
) -> Tensor:
    """Gray each token matrix of X (…, n, d); same shape and dtype.

    epsilon    in (0, 1]; 1 is the identity. With "svd", log κ becomes exactly epsilon · log κ.
    rescale    True keeps σ_max (svd) or max|X̂| (dct); False leaves them at 1; "contrast" keeps ‖X‖_F, a control that
               tells conditioning from contrast.
    precision  "exact": float64 inside. "fast", at most 1e-3 off: poles instead of eigenvectors (svd, on the GPU);
               float32 products (dct). With `torch.set_float32_matmul_precision("high")` these are run in TF32:
               still within 1e-3 for pictures at ε ≥ 0.9, not for every matrix at smaller ε. Of a picture of one
               colour, or nearly as smooth, any float32 product leaves noise, which an ε far under the papers' (0.85
               and more) lifts: 1e-2 at ε = 0.3.

    >>> X = torch.diag(torch.tensor([100.0, 1.0]))
    >>> gray_tokens(X, method="svd", epsilon=0.5)
    tensor([[100.,   0.],
            [  0.,  10.]])
    """
    return grayed(X, "X", method, epsilon, rescale, precision)


def grayed(X: Tensor, name: str, method: str, epsilon: float, rescale: Rescale, precision: str) -> Tensor:
    """`gray_tokens` of what a message calls `name`."""
    check_settings(method, epsilon, rescale, precision)
    check_matrices(X, name)
    epsilon = float(epsilon)
    if is_differentiated(X):
        raise ValueError(f"{name} requires a gradient, and graying passes none on; gray {name}.detach() instead")
    if (epsilon == 1 and rescale is not False) or X.numel() == 0:
        return X.clone()
    with torch.no_grad(), without_autocast(X):
        if method == "svd":
            return _gray_svd(X, epsilon, str(rescale), precision)
        return gray_dct(X, epsilon, rescale, precision)


def is_differentiated(X: Tensor) -> bool:
    """Does X ask for a gradient, backward or forward (`torch.func.jvp`)?"""
    if X.requires_grad and torch.is_grad_enabled():
        return True
    if forward_ad._current_level < 0:  # nobody differentiates forward
        return False
    while is_batchedtensor(X):  # vmap has no rule for the next question
        X = get_unwrapped(X)
    return forward_ad.unpack_dual(X).tangent is not None


@torch.library.custom_op("wellcond::gray_svd", mutates_args=())
def _gray_svd(X: Tensor, epsilon: float, rescale: str, precision: str) -> Tensor:
    """One opaque operator, so that a compiled model holds it without a graph break."""
    Y, top = singular_power(X.to(torch.promote_types(X.dtype, torch.float32)), epsilon, precision)  # type: ignore[arg-type]
    largest = torch.where(top > 0, top, 1.0)[..., None, None].to(Y.dtype)
    if rescale == "False":
        Y = Y / largest
    elif rescale == "contrast":  # norms in units of σ_max: their squares would leave float32 from 1e-19 and 1e19 on
        Y = Y * (frobenius(X / largest) / frobenius(Y / largest).clamp_min(torch.finfo(torch.float32).tiny))
    return Y.to(X.dtype)


@_gray_svd.register_fake
def _(X: Tensor, epsilon: float, rescale: str, precision: str) -> Tensor:
    return torch.empty_like(X, memory_format=torch.contiguous_format)


@_gray_svd.register_vmap
def _(_, in_dims: tuple, X: Tensor, *settings: Any) -> tuple[Tensor, int]:
    return _gray_svd(X.movedim(in_dims[0], 0), *settings), 0


def check_settings(method: str, epsilon: float, rescale: Rescale, precision: str) -> None:
    if method not in ("svd", "dct"):
        raise ValueError(f'method={method!r} is unknown; use "svd" or "dct"')
    if not isinstance(epsilon, numbers.Real) or isinstance(epsilon, bool):
        raise ValueError(f"epsilon={epsilon!r} is a {type(epsilon).__name__}; use a plain number in (0, 1], e.g. 0.95")
    if not 0 < epsilon <= 1:
        raise ValueError(f"epsilon={epsilon!r} is outside (0, 1]; 1 changes nothing, the papers use 0.5 to 0.97")
    if not isinstance(rescale, bool) and rescale != "contrast":
        raise ValueError(f'rescale={rescale!r} is unknown; use True, False or "contrast"')
    check_precision(precision)
