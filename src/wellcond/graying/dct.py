"""The cosine transform as products with constant matrices, and DCT graying made of it.

Two ways to the same numbers:

- `dct_coefficients`, dense: X̂ = D_n X D_dᵀ and back. On a GPU the products hide behind the memory traffic. The last one
  is left to the caller, who can fold it into the weight of a patch embedding.
- `gray_by_halves`, for the CPU, where products cost what they count: cosines of even order are symmetric, of odd order
  antisymmetric, so each transform is two of half the size on sums and differences of mirrored rows. A few images at
  a time stay in the cache. Mirrored are rows, never columns: products take their operands transposed for free.
"""

import functools
import math
from typing import Literal

import torch
from torch import Tensor

Rescale = bool | Literal["contrast"]
_CACHED = 160_000  # numbers at a time on the CPU: about one 224 px image


def dct_coefficients(X: Tensor, epsilon: float, rescale: Rescale, precision: str) -> tuple[Tensor, Tensor]:
    """(C, D) with X̃ = C D: grayed tokens of X (…, n, d) but for the last product with D = D_d (d, d).

    A patch embedding W takes X̃ W = C (D W).
    """
    n, d = int(X.shape[-2]), int(X.shape[-1])
    dtype = arithmetic(X, precision)
    D_n, D_d = operand(dct_matrix(n, dtype, X.device)), operand(dct_matrix(d, dtype, X.device))
    Z = D_n @ (operand(X.to(dtype)) @ D_d.mT)
    return D_n.mT @ operand(shrink(Z, epsilon, rescale)), D_d


def gray_by_halves(X: Tensor, epsilon: float, rescale: Rescale, precision: str) -> Tensor:
    """Grayed tokens of X (…, n, d)."""
    n, d = X.shape[-2:]
    dtype = arithmetic(X, precision)
    En, On = _cached_halves(n, dtype)
    Ed, Od = _cached_halves(d, dtype)
    Y = torch.empty(math.prod(X.shape[:-2]), n, d, dtype=X.dtype)
    chunk = _CACHED // (n * d)
    X_parts, Y_parts = (T.split(chunk) if chunk > 1 else T.unbind() for T in (X.reshape(Y.shape), Y))
    for x, y in zip(X_parts, Y_parts, strict=True):
        s, t = _split(x.to(dtype))
        s, t = _split(torch.cat([s.mT @ En.mT, t.mT @ On.mT], -1))  # (d, n) from here
        Z = shrink(torch.cat([Ed @ s, Od @ t], -2), epsilon, rescale)
        Z = _join(Ed.mT @ Z[..., : len(Ed), :], Od.mT @ Z[..., len(Ed) :, :])
        y.copy_(_join(En.mT @ Z[..., : len(En)].mT, On.mT @ Z[..., len(En) :].mT))
    return Y.reshape(X.shape)


def shrink(Z: Tensor, epsilon: float, rescale: Rescale) -> Tensor:
    """sign(Z)·(|Z|/m)^ε·m with m = max|Z| of each matrix (Algorithm 2); `rescale` as in `gray_tokens`."""
    magnitude = Z.abs()
    largest = magnitude.amax((-2, -1), keepdim=True)
    # |Z|^ε as exp2(ε log2|Z|): half the time of pow; 0 goes by way of −inf and comes back as 0
    relative = magnitude / torch.where(largest > 0, largest, 1.0)
    grayed = torch.copysign(torch.exp2(epsilon * torch.log2(relative)), Z)
    if rescale is True:
        return grayed * largest
    if rescale == "contrast":
        return grayed * (frobenius(Z) / frobenius(grayed).clamp_min(torch.finfo(Z.dtype).tiny))
    return grayed


def arithmetic(X: Tensor, precision: str) -> torch.dtype:
    """What to compute in: "exact" is float64 (float32 products may be run in TF32), "fast" at least float32."""
    return torch.float64 if precision == "exact" else torch.promote_types(X.dtype, torch.float32)


def operand(X: Tensor) -> Tensor:
    """An operand of a product: rounded to the nearest TF32 number where the product will be run in TF32.

    Tensor cores in TF32 mode cut operands off (10 bits kept), always towards zero: three products of two operands
    shrink the whole image by 1e-3. Rounded ahead of that, the errors are a third and have no direction.
    """
    if X.dtype != torch.float32 or X.device.type != "cuda" or not torch.backends.cuda.matmul.allow_tf32:
        return X
    rounded = ((X.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return torch.where(X.isfinite(), rounded, X)


def dct_matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Orthonormal DCT-II matrix (n, n), made once for each size, dtype and device.

    While a graph is traced or captured it is made inside the graph, where it costs microseconds: what a graph makes
    must not be kept outside it.

    >>> D = dct_matrix(3, torch.float64, torch.device("cpu"))
    >>> bool((D @ D.mT - torch.eye(3)).abs().max() < 1e-15)
    True
    """
    traced = torch.compiler.is_compiling() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    return (_dct_matrix if traced else _cached_dct_matrix)(n, dtype, device)


def _dct_matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    k = torch.arange(n, device=device)
    # the angle (2i+1)k π/2n in whole turns of 4n steps: exact integers however large n is
    steps = (2 * k + 1) * k[:, None] % (4 * n)
    D = torch.cos(steps.double() * (math.pi / (2 * n))) * math.sqrt(2 / n)
    return torch.where(k[:, None] == 0, math.sqrt(1 / n), D).to(dtype)


@functools.lru_cache(maxsize=32)
def _cached_dct_matrix(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else it could not be used in training later
        D = _dct_matrix(n, dtype, device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # once: other streams will read it
    return D


@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def _cached_halves(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Even and odd rows of the DCT matrix over the first half of the columns (the middle one goes to the even)."""
    D = _dct_matrix(n, dtype, torch.device("cpu"))
    return D[0::2, : n - n // 2].contiguous(), D[1::2, : n // 2].contiguous()


def _split(X: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and differences of mirrored rows of X (…, n, m)."""
    n = X.shape[-2]
    half = n // 2
    top, bottom = X[..., :half, :], X[..., n - half :, :].flip(-2)
    total = top + bottom
    return (torch.cat([total, X[..., half : half + 1, :]], -2) if n % 2 else total), top - bottom


def _join(u: Tensor, v: Tensor) -> Tensor:
    """Undo `_split`: u even, v odd part."""
    half = v.shape[-2]
    first = u[..., :half, :]
    return torch.cat([first + v, u[..., half:, :], (first - v).flip(-2)], -2)


def frobenius(X: Tensor) -> Tensor:
    return torch.linalg.vector_norm(X.to(torch.promote_types(X.dtype, torch.float32)), dim=(-2, -1), keepdim=True)
