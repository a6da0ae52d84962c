"""U Σ^ε Vᵀ without an eigensolver: the fast path of SVD graying on CUDA.

U Σ^ε Vᵀ = (X Xᵀ)^((ε−1)/2) X, and x^((ε−1)/2) is a short sum of simple poles (`poles.py`), so

    U Σ^ε Vᵀ ≈ [w₀ I + Σⱼ wⱼ tⱼ (G + tⱼ I)⁻¹] X,   G = X Xᵀ / σ_max².

A float32 Gram matrix would lose every σ < 3e-4 σ_max, so G, the inverses and the products are float64, which
data-centre GPUs multiply on their tensor cores. The inverses are positive definite and batched over
images and poles: 2×2 block recursion (four products a level) down to blocks that one warp inverts in registers.

Error: that of `poles.py` (4e-4 at σ_max, at most 4 % for σ down to 8e-6 σ_max). Below that the gain levels off, so
rounding noise is lifted little more than the smallest true singular values (`tests/test_poles.py`); zeros stay zero.
"""

# Triton adds launch options (num_warps) to a kernel's parameters, which its signature does not show.
# pyright: reportCallIssue=false, reportArgumentType=false

import functools

import torch
from torch import Tensor

from wellcond.spectral import products
from wellcond.spectral.poles import LARGEST_S, partial_fractions

_WORKSPACE = 96 << 20  # bytes of inverse factors at a time, …
_FILLS_GPU = 256  # … or as many as it takes to keep every multiprocessor busy, …
_MAX_WORKSPACE = 1 << 30  # … but never more than this
_SMALL = 64  # largest block factored in registers
_LARGEST = 1024  # side of a Gram matrix whose rows Lanczos still holds in registers
_LANCZOS_STEPS = 32  # for a flat top of the spectrum, as of noise; photographs need far fewer


def available(X: Tensor, epsilon: float) -> bool:
    """Can `singular_power` take this input?"""
    return (
        min(X.shape[-2:]) <= _LARGEST
        and X.numel() > 0
        and X.dtype != torch.float64
        and (1 - epsilon) / 2 <= LARGEST_S
        and products.has_kernels(X.device)
    )


def singular_power(X: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """(U Σ̃ Vᵀ, σ_max) with Σ̃ = σ_max (Σ/σ_max)^ε of float32 X (B, n, d) on CUDA. Nothing waits for the GPU."""
    if epsilon == 1:
        return X.clone(), largest_eigenvalue(products.gram(X)).sqrt()
    image = 8 * len(_coefficients(epsilon)[0]) * min(X.shape[-2:]) ** 2  # bytes
    chunk = min(max(_FILLS_GPU, _WORKSPACE // image), max(1, _MAX_WORKSPACE // image), products.MAX_BATCH)
    if len(X) > chunk:
        parts = [singular_power(part, epsilon) for part in X.split(chunk)]
        return torch.cat([Y for Y, _ in parts]), torch.cat([top for _, top in parts])
    with torch.cuda.device_of(X):  # Triton launches on the current device
        G = products.gram(X)
        top = largest_eigenvalue(G)
        return products.times(_power_of_gram(G, top, epsilon), X), top.sqrt()


def largest_eigenvalue(G: Tensor) -> Tensor:
    """Largest eigenvalue of positive semidefinite G (B, m, m), (B,), by Lanczos; 1e-3 at worst, never too large."""
    from triton import next_power_of_2

    from wellcond.spectral import kernels

    B, m = G.shape[:2]
    width = next_power_of_2(m)
    top = G.new_empty(B)
    scratch = G.new_empty(B, width + 2 * _LANCZOS_STEPS)
    kernels.largest_eigenvalue[(B,)](
        G.float(),
        scratch,
        top,
        m,
        STEPS=_LANCZOS_STEPS,
        WIDTH=width,
        ROWS=max(1, min(width, 32, 8192 // width)),
        num_warps=4,
    )
    return top


def _power_of_gram(G: Tensor, top: Tensor, epsilon: float) -> Tensor:
    """w₀ I + Σⱼ wⱼ tⱼ (G/top + tⱼ I)⁻¹ ≈ (G/top)^((ε−1)/2), float32 (B, m, m)."""
    from triton import cdiv

    from wellcond.spectral import kernels

    t, w, w0 = (_on(G.device, values) for values in _coefficients(epsilon))
    B, m, J = len(G), G.shape[-1], len(t)
    shifts = top.clamp_min(1e-200)[:, None] * t  # an all-zero image: finite inverses that multiply zeros
    W = G.new_empty(B, J, m, m)
    _inverse_factor(G, W.view(-1, m, m), shifts, J)
    coefficients = torch.cat([w0.expand(B, 1), shifts * w], 1)
    F = torch.empty(B, m, m, device=G.device)
    kernels.combine[(cdiv(m, 32), cdiv(m, 32), B)](W, coefficients, F, m, J, TILE=32, STEP=16, num_warps=4)
    return F


def _inverse_factor(A: Tensor, W: Tensor, shifts: Tensor, J: int, clear: bool = False) -> None:
    """W[i] = L⁻¹ with L Lᵀ = A[i // J] + shifts[i] I, lower triangular; A and W may be views, or the same.

    L⁻¹ = [M₁ 0; −M₂ C M₁  M₂] with M₁ that of A₁₁, C = A₂₁ M₁ᵀ, M₂ that of A₂₂ − C Cᵀ. Through the factor and not
    through A₁₁⁻¹: with an ill-conditioned A₁₁ the Schur complement A₂₂ − A₂₁ A₁₁⁻¹ A₁₂ drowns in rounding.
    The upper right block is left as it was unless `clear`.
    """
    from triton import cdiv

    from wellcond.spectral import kernels

    n = A.shape[-1]
    if n <= _SMALL:
        kernels.inverse_factor_small[(W.shape[0],)](
            A, W, shifts, n, J, A.stride(0), A.stride(1), W.stride(0), W.stride(1), TILE=16, NB=cdiv(n, 16), num_warps=1
        )  # fmt: skip
        return
    k = cdiv(n, 32) * 16 if n <= 2 * _SMALL else cdiv(n, 8) * 4
    A21, A22 = A[:, k:, :k], A[:, k:, k:]
    M1, W21, W22 = W[:, :k, :k], W[:, k:, :k], W[:, k:, k:]
    _inverse_factor(A[:, :k, :k], M1, shifts, J, clear=True)
    C = torch.empty_like(W21, memory_format=torch.contiguous_format)
    _multiply(A21, M1.mT, C, J)  # −C: the sign cancels in C Cᵀ and is wanted below
    _multiply(C, C.mT, W22, 1, add=A22, shifts=shifts, J_add=J)
    _inverse_factor(W22, W22, torch.zeros_like(shifts), 1, clear=True)
    N = torch.empty_like(C)
    _multiply(C, M1, N, 1)  # C M₁
    _multiply(W22, N, W21, 1)
    if clear:
        W[:, :k, k:].zero_()


def _multiply(
    A: Tensor,
    B: Tensor,
    D: Tensor,
    J: int,
    add: Tensor | None = None,
    shifts: Tensor | None = None,
    J_add: int = 1,
) -> None:
    """D = −A B, or D = add + shifts I − A B; A[i // J] and add[i // J_add] go with B[i]."""
    from triton import cdiv

    from wellcond.spectral import kernels

    rows, cols, depth = D.shape[-2], D.shape[-1], A.shape[-1]
    C = D if add is None else add
    kernels.multiply[(cdiv(cols, 32), cdiv(rows, 32), D.shape[0])](
        A, B, C, D, D if shifts is None else shifts, rows, cols, depth, J, J_add, A.stride(0), A.stride(1), *B.stride(),
        C.stride(0), C.stride(1), D.stride(0), D.stride(1), ADD=add is not None, TILE=32, STEP=16, num_warps=2,
    )  # fmt: skip


def _coefficients(epsilon: float) -> tuple[tuple[float, ...], ...]:
    t, w, w0 = partial_fractions((1 - epsilon) / 2)
    return tuple(t.tolist()), tuple(w.tolist()), (w0,)


@functools.cache
def _on(device: torch.device, values: tuple[float, ...]) -> Tensor:
    """A constant on the device, copied there once: a copy at every call would wait for the GPU."""
    return torch.tensor(values, dtype=torch.float64, device=device)
