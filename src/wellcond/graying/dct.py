"""The cosine transform as products with constant matrices, and DCT graying made of it.

Three ways to the same numbers:

- `dct_coefficients`, dense: X̂ = D_n X D_dᵀ and back. On a GPU the products hide behind the memory traffic. The last one
  is left to the caller, who can fold it into the weight of a patch embedding.
- `gray_by_halves`, for the CPU, where products cost what they count: cosines of even order are symmetric, of odd order
  antisymmetric, so each transform is two of half the size on sums and differences of mirrored rows. A few images at
  a time stay in the cache. Mirrored are rows, never columns: products take their operands transposed for free.
- `gray_by_fft`, for the CPU, where a side is long (patch 4 of 224 px has n = 3136): its cost hardly grows with n + d.
"""

import functools
import math
from typing import Literal

import torch
from torch import Tensor

Rescale = bool | Literal["contrast"]
_NOISE = 8 * torch.finfo(torch.float64).eps  # of the largest coefficient; the products err by less
LONG = 512  # from such a side on FFTs are the quicker way on the CPU
_CACHED = 160_000  # numbers at a time on the CPU: about one 224 px image


def dct_coefficients(X: Tensor, epsilon: float, rescale: Rescale, precision: str) -> tuple[Tensor, Tensor]:
    """(C, B) with X̃ = C B: grayed tokens of X (…, n, d) but for the last product with B (d, d).

    A patch embedding W takes X̃ W = C (B W). The cosines are not normalised here, B = √d D_d: its first row is exactly
    1 and so is the largest grayed coefficient before it is scaled. Products in TF32 (10 bits) then round neither the
    mean of an image nor its largest coefficient, and what they do round has no direction.
    """
    n, d = int(X.shape[-2]), int(X.shape[-1])
    dtype = arithmetic(X, precision)
    B_n, B_d = dct_basis(n, dtype, X.device), dct_basis(d, dtype, X.device)
    grayed, factor = shrink(B_n @ (X.to(dtype) @ B_d.mT), epsilon, rescale, scale=math.sqrt(n * d))
    return (B_n.mT @ grayed) * (factor / math.sqrt(n * d)), B_d


def gray_by_halves(X: Tensor, epsilon: float, rescale: Rescale, precision: str) -> Tensor:
    """Grayed tokens of X (…, n, d)."""
    n, d = X.shape[-2:]
    dtype = arithmetic(X, precision)
    En, On = _cached_halves(n, dtype)
    Ed, Od = _cached_halves(d, dtype)
    Y = torch.empty(math.prod(X.shape[:-2]), n, d, dtype=X.dtype, device=X.device)
    chunk = _CACHED // (n * d)
    X_parts, Y_parts = (T.split(chunk) if chunk > 1 else T.unbind() for T in (X.reshape(Y.shape), Y))
    for x, y in zip(X_parts, Y_parts, strict=True):
        s, t = _split(x.to(dtype))
        s, t = _split(torch.cat([s.mT @ En.mT, t.mT @ On.mT], -1))  # (d, n) from here
        Z, factor = shrink(torch.cat([Ed @ s, Od @ t], -2), epsilon, rescale)
        Z = Z * factor
        Z = _join(Ed.mT @ Z[..., : len(Ed), :], Od.mT @ Z[..., len(Ed) :, :])
        y.copy_(_join(En.mT @ Z[..., : len(En)].mT, On.mT @ Z[..., len(En) :].mT))
    return Y.reshape(X.shape)


def gray_by_fft(X: Tensor, epsilon: float, rescale: Rescale, precision: str) -> Tensor:
    """Grayed tokens of X (…, n, d)."""
    dtype = arithmetic(X, precision)
    Y = torch.empty(math.prod(X.shape[:-2]), *X.shape[-2:], dtype=X.dtype, device=X.device)
    chunk = max(_CACHED // (X.shape[-2] * X.shape[-1]), 1)
    for x, y in zip(X.reshape(Y.shape).split(chunk), Y.split(chunk), strict=True):
        Z, factor = shrink(_fft_dct(_fft_dct(x.to(dtype)).mT), epsilon, rescale)  # (d, n)
        y.copy_(_fft_idct(_fft_idct(Z * factor).mT))
    return Y.reshape(X.shape)


def _fft_dct(X: Tensor) -> Tensor:
    """Orthonormal DCT-II of the rows of X (…, n) by one real FFT of its even, then its odd entries (Makhoul 1980)."""
    n = X.shape[-1]
    W = torch.fft.rfft(torch.cat([X[..., ::2], X[..., 1::2].flip(-1)], -1)) * _cached_turns(n, X.dtype)
    return torch.cat([W.real, -W.imag[..., 1 : (n + 1) // 2].flip(-1)], -1)


def _fft_idct(Z: Tensor) -> Tensor:
    """Undo `_fft_dct`."""
    n = Z.shape[-1]
    mirrored = torch.cat([torch.zeros_like(Z[..., :1]), Z[..., n - n // 2 :].flip(-1)], -1)
    V = torch.fft.irfft(torch.complex(Z[..., : n // 2 + 1], -mirrored) / _cached_turns(n, Z.dtype), n)
    X = torch.empty_like(Z)
    X[..., ::2], X[..., 1::2] = V[..., : n - n // 2], V[..., n - n // 2 :].flip(-1)
    return X


@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def _cached_turns(n: int, dtype: torch.dtype) -> Tensor:
    """√(2/n) e^{−iπk/2n} for k = 0 … n/2, the first √(1/n)."""
    k = torch.arange(n // 2 + 1, dtype=torch.float64, device="cpu")
    length = torch.full_like(k, math.sqrt(2 / n))
    length[0] = math.sqrt(1 / n)
    return torch.polar(length, -math.pi / (2 * n) * k).to(torch.promote_types(dtype, torch.complex64))


def shrink(Z: Tensor, epsilon: float, rescale: Rescale, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """sign(Z)·(|Z|/m)^ε with m = max|Z| of each matrix (Algorithm 2), at most 1, and the factor (…, 1, 1) that
    `rescale` asks for (see `gray_tokens`), where Z is `scale` times the orthonormal coefficients."""
    magnitude = Z.abs()
    largest = magnitude.amax((-2, -1), keepdim=True)
    relative = magnitude / torch.where(largest > 0, largest, 1.0)
    # x^ε as exp2(ε log2 x): quicker than pow; 0 goes by way of −inf and comes back as 0
    grayed = torch.exp2(epsilon * torch.log2(relative))
    if Z.dtype == torch.float64:  # rounding noise stays as it is: a constant image at a small ε would drown in it
        grayed = torch.where(relative > _NOISE, grayed, relative)
    grayed = torch.copysign(grayed, Z)
    if rescale is True:
        return grayed, largest / scale
    if rescale == "contrast":
        # of what is at most 1: squares of |Z| itself leave float32 from 1e-19 down and from 1e19 up
        return grayed, largest / scale * frobenius(relative) / frobenius(grayed).clamp_min(torch.finfo(Z.dtype).tiny)
    return grayed, torch.ones_like(largest)


def arithmetic(X: Tensor, precision: str) -> torch.dtype:
    """What to compute in: "exact" is float64 (float32 products may be run in TF32), "fast" at least float32."""
    return torch.float64 if precision == "exact" else torch.promote_types(X.dtype, torch.float32)


def dct_basis(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """√n times the orthonormal DCT-II matrix (n, n), made once for each size, dtype and device.

    While a graph is traced or captured it is made inside the graph, where it costs microseconds: what a graph makes
    must not be kept outside it.

    >>> B = dct_basis(3, torch.float64, torch.device("cpu"))
    >>> bool((B @ B.mT / 3 - torch.eye(3)).abs().max() < 1e-15), B[0].tolist()
    (True, [1.0, 1.0, 1.0])
    """
    traced = torch.compiler.is_compiling() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    return (_dct_basis if traced else _cached_dct_basis)(n, dtype, device)


def _dct_basis(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    k = torch.arange(n, device=device)
    # the angle (2i+1)k π/2n in whole turns of 4n steps: exact integers however large n is
    steps = (2 * k + 1) * k[:, None] % (4 * n)
    B = torch.cos(steps.double() * (math.pi / (2 * n))) * math.sqrt(2)
    return torch.where(k[:, None] == 0, 1.0, B).to(dtype)


@functools.lru_cache(maxsize=32)
def _cached_dct_basis(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else it could not be used in training later
        B = _dct_basis(n, dtype, device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # once: other streams will read it
    return B


@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def _cached_halves(n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Even and odd rows of the DCT matrix over the first half of the columns (the middle one goes to the even)."""
    D = (_dct_basis(n, torch.float64, torch.device("cpu")) / math.sqrt(n)).to(dtype)
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
