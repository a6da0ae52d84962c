"""float64 products of float32 token matrices: X Xᵀ and F X, without a float64 copy of X where Triton can avoid it.

Legend: X is (B, n, d), m = min(n, d). Everything works on the smaller side: "X Xᵀ" stands for Xᵀ X and "F X" for X F
where n > d; the kernels see (m, length) matrices by strides and need not know.
"""

# Triton adds launch options (num_warps) to a kernel's parameters, which its signature does not show.
# pyright: reportCallIssue=false, reportArgumentType=false

import functools

import torch
from torch import Tensor

MAX_BATCH = 65_535  # CUDA's limit for the third dimension of a grid
WITH_FLOAT64_CORES = {(8, 0), (9, 0), (10, 0)}  # compute capabilities: A100; H100, H200; B200


@functools.cache
def has_kernels(device: torch.device) -> bool:
    """Triton and a GPU with float64 tensor cores (A100, H100, H200, B200), where float64 costs what float32 does."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return torch.cuda.get_device_capability(device) in WITH_FLOAT64_CORES


def gram(X: Tensor) -> Tensor:
    """X Xᵀ (or Xᵀ X, the smaller) of X (B, n, d) in float64, (B, m, m)."""
    if not has_kernels(X.device) or X.dtype != torch.float32 or not len(X):
        A = X.double() if X.shape[-2] <= X.shape[-1] else X.double().mT
        return A @ A.mT
    if len(X) > MAX_BATCH:
        return torch.cat([gram(part) for part in X.split(MAX_BATCH)])
    from triton import cdiv

    from wellcond.spectral import kernels

    X = X.contiguous()
    m, length, strides = _sides(X)
    G = torch.empty(len(X), m, m, dtype=torch.float64, device=X.device)
    with torch.cuda.device_of(X):  # Triton launches on the current device
        kernels.gram[(cdiv(m, 32), cdiv(m, 32), len(X))](X, G, m, length, *strides, TILE=32, STEP=16, num_warps=4)
    return G


def times(F: Tensor, X: Tensor) -> Tensor:
    """F X (or X F, as F fits) for symmetric F (B, m, m), summed in float64 and rounded once, to the dtype of X."""
    if not has_kernels(X.device) or X.dtype != torch.float32 or not len(X):
        wide = X.shape[-2] <= X.shape[-1]
        return (F.double() @ X.double() if wide else X.double() @ F.double()).to(X.dtype)
    if len(X) > MAX_BATCH:
        return torch.cat([times(*parts) for parts in zip(F.split(MAX_BATCH), X.split(MAX_BATCH), strict=True)])
    from triton import cdiv

    from wellcond.spectral import kernels

    X = X.contiguous()
    m, length, strides = _sides(X)
    Y = torch.empty_like(X)
    with torch.cuda.device_of(X):
        kernels.apply[(cdiv(length, 128), cdiv(m, 32), len(X))](
            F, X, Y, m, length, *strides, ROWS=32, COLS=128, STEP=16, num_warps=4
        )
    return Y


def _sides(X: Tensor) -> tuple[int, int, tuple[int, int, int]]:
    """(m, length, strides) of contiguous X seen as m × length, m ≤ length."""
    n, d = X.shape[-2:]
    return (n, d, (n * d, d, 1)) if n <= d else (d, n, (n * d, 1, d))
