"""The cosine transform by products with constant matrices or by FFTs, and DCT graying made of it.

X̂ = B_n X B_dᵀ and back, one side after the other: a short side by a product, which a GPU hides behind the memory
traffic, a long one (patch 4 of 224 px has n = 3136) by an FFT, whose cost hardly grows with n. The last step, back
along d, can be left to a caller who has a patch embedding W: X̃ W = C (B_d W) moves it into the weight.

The cosines are not normalised, B_n = √n D_n: its first row is exactly 1 and so is the largest grayed coefficient before
it is scaled. Products in TF32 (10 bits) then round neither the mean of an image nor its largest coefficient, and what
they do round has no direction.
"""

import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

Rescale = bool | Literal["contrast"]
LONG = {"cpu": 256, "cuda": 1024}  # from such a side on an FFT is the quicker way
_NOISE = 8 * torch.finfo(torch.float64).eps  # of the largest coefficient; the transforms err by less
_CACHED = 320_000  # numbers at a time on the CPU: two 224 px images


def gray_dct(X: Tensor, epsilon: float, rescale: Rescale, precision: str) -> Tensor:
    """Grayed tokens of X (…, n, d)."""

    def grayed(X: Tensor) -> Tensor:
        return from_cosines(_half_grayed(X, epsilon, rescale, precision), -1).to(X.dtype)

    return _in_pieces(grayed, X)


def half_gray_dct(X: Tensor, epsilon: float, rescale: Rescale, precision: str) -> Tensor:
    """C (…, n, d) with X̃ = C B_d: all of `gray_dct` but the way back along d."""

    def half_grayed(X: Tensor) -> Tensor:
        return _half_grayed(X, epsilon, rescale, precision).to(X.dtype)

    return _in_pieces(half_grayed, X)


def _half_grayed(X: Tensor, epsilon: float, rescale: Rescale, precision: str) -> Tensor:
    size = math.sqrt(X.shape[-2] * X.shape[-1])
    Z = cosines(cosines(X.to(arithmetic(X, precision)), -1), -2)
    grayed, factor = shrink(Z, epsilon, rescale, scale=size)
    return from_cosines(grayed, -2) * (factor / size)


def _in_pieces(f: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """f of a few matrices at a time on the CPU, where they then stay in the cache."""
    count = max(_CACHED // (X.shape[-2] * X.shape[-1]), 1)
    if X.device.type != "cpu" or torch.compiler.is_compiling() or math.prod(X.shape[:-2]) <= count:
        return f(X)
    pieces = X.reshape(-1, *X.shape[-2:]).split(count)
    return torch.cat([f(piece) for piece in pieces]).reshape(X.shape)


def cosines(X: Tensor, side: int) -> Tensor:
    """B_n X (side −2) or X B_dᵀ (side −1) of X (…, n, d)."""
    return _transformed(X, side, back=False)


def from_cosines(Z: Tensor, side: int) -> Tensor:
    """B_nᵀ Z or Z B_d: n or d times what undoes `cosines`."""
    return _transformed(Z, side, back=True)


def _transformed(X: Tensor, side: int, *, back: bool) -> Tensor:
    n = X.shape[side]
    if n >= LONG.get(X.device.type, n + 1) and not torch.compiler.is_exporting():
        return (_opaque_fft if torch.compiler.is_compiling() else _by_fft)(X, side, back)
    B = dct_basis(n, X.dtype, X.device)
    B = B.mT if back else B
    return X @ B.mT if side == -1 else B @ X


def _by_fft(X: Tensor, side: int, back: bool) -> Tensor:
    transform = _from_cosines_by_fft if back else _cosines_by_fft
    return transform(X) if side == -1 else transform(X.mT).mT


@torch.library.custom_op("wellcond::cosines", mutates_args=())
def _opaque_fft(X: Tensor, side: int, back: bool) -> Tensor:
    """One operator of a compiled model: complex numbers inside would be refused."""
    return _by_fft(X, side, back).contiguous()


@_opaque_fft.register_fake
def _(X: Tensor, side: int, back: bool) -> Tensor:
    return torch.empty_like(X, memory_format=torch.contiguous_format)


def _keep_way(ctx: Any, inputs: tuple[Tensor, int, bool], output: Tensor) -> None:
    _, ctx.side, ctx.back = inputs


def _adjoint(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return _opaque_fft(gradient, ctx.side, not ctx.back), None, None


_opaque_fft.register_autograd(_adjoint, setup_context=_keep_way)


def _cosines_by_fft(X: Tensor) -> Tensor:
    """X Bᵀ (…, n) by one real FFT of the even, then the odd entries of each row (Makhoul 1980)."""
    n = X.shape[-1]
    W = torch.fft.rfft(torch.cat([X[..., ::2], X[..., 1::2].flip(-1)], -1)) * _constant(_turns, n, X.dtype, X.device)
    return torch.cat([W.real, -W.imag[..., 1 : (n + 1) // 2].flip(-1)], -1)


def _from_cosines_by_fft(Z: Tensor) -> Tensor:
    """Z B (…, n)."""
    n = Z.shape[-1]
    mirrored = torch.cat([torch.zeros_like(Z[..., :1]), Z[..., n - n // 2 :].flip(-1)], -1)
    W = torch.complex(Z[..., : n // 2 + 1], -mirrored) / _constant(_turns, n, Z.dtype, Z.device)
    V = torch.fft.irfft(W, n, norm="forward")
    X = torch.empty_like(Z)
    X[..., ::2], X[..., 1::2] = V[..., : n - n // 2], V[..., n - n // 2 :].flip(-1)
    return X


def _turns(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """√2 e^{−iπk/2n} for k = 0 … n/2, the first 1."""
    k = torch.arange(n // 2 + 1, dtype=torch.float64, device=device)
    length = torch.where(k > 0, torch.full_like(k, math.sqrt(2)), 1.0)
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


def without_autocast(X: Tensor) -> AbstractContextManager[Any]:
    """Inside, X is computed with as it is. The device "meta", shapes without numbers, knows no autocast."""
    return nullcontext() if X.is_meta else torch.autocast(X.device.type, enabled=False)


def dct_basis(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """√n times the orthonormal DCT-II matrix (n, n).

    >>> B = dct_basis(3, torch.float64, torch.device("cpu"))
    >>> bool((B @ B.mT / 3 - torch.eye(3)).abs().max() < 1e-15), B[0].tolist()
    (True, [1.0, 1.0, 1.0])
    """
    return _constant(_dct_basis, n, dtype, device)


def _dct_basis(n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    k = torch.arange(n, device=device)
    # the angle (2i+1)k π/2n in whole turns of 4n steps: exact integers however large n is
    steps = (2 * k + 1) * k[:, None] % (4 * n)
    B = torch.cos(steps.double() * (math.pi / (2 * n))) * math.sqrt(2)
    return torch.where(k[:, None] == 0, 1.0, B).to(dtype)


def _constant(make: Callable[..., Tensor], n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`make(n, dtype, device)`, once for each size, dtype and device.

    While a graph is traced or captured it is made inside the graph, where it costs microseconds: what a graph makes
    must not be kept outside it.
    """
    traced = torch.compiler.is_compiling() or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
    return (make if traced else functools.partial(_kept, make))(n, dtype, device)


@functools.lru_cache(maxsize=64)
def _kept(make: Callable[..., Tensor], n: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else it could not be used in training later
        constant = make(n, dtype, device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # once: other streams will read it
    return constant


def frobenius(X: Tensor) -> Tensor:
    return torch.linalg.vector_norm(X.to(torch.promote_types(X.dtype, torch.float32)), dim=(-2, -1), keepdim=True)
