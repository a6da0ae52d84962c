"""Eigenbases of L and R: the first one, and the next from the last.

Legend: A (B, n, n) are B statistics of one size, Q (B, n, n) their bases in columns, the largest eigenvalue first.

The next basis is one step of orthogonal iteration, as in SOAP: the columns of A Q, sorted by qᵀ A q, made orthonormal
from the left to the right. Householder's QR spends its time in panels, so Q comes from the Cholesky factor of the
products of the columns P = A Q, scaled to length 1: PᵀP = TᵀT, Q = P T⁻¹. It is the same Q, but for signs, which Adam
in this basis does not feel. PᵀP has the square of P's condition number. With A ≈ Q Λ^½ C Λ^½ Qᵀ and C near 1, that of P
is about √(λ_max/λ_min), which is unbounded: gradients have null spaces. So A is shifted by eps₃₂ λ_max, the rounding
error of A itself, and a direction without a gradient stays what it was. What remains, 4e3, is too much for float32
squared and easy for float64. Statistics in float64 have no wider type and take Householder's QR.
"""

import torch
from torch import Tensor

from wellcond.spectral import eigen
from wellcond.spectral.products import has_kernels

_LARGEST_BATCHED = 1024  # cuSOLVER's batched eigensolver is for many small matrices
_LARGEST_CHOLESKY = 256  # and so is its batched Cholesky


def first_basis(A: Tensor) -> Tensor:
    """Eigenvectors of A; one basis of its null space for all roundings of A.

    A first gradient of m > n leaves m − n directions open. An eigensolver fills them by rounding errors; here they are
    a fixed random frame, projected onto them, so that one process and two begin alike.
    """
    values, Q = _eigh(A)
    values, Q = values.flip(-1), Q.flip(-1)
    n = A.shape[-1]
    floor = 4 * n**0.5 * torch.finfo(A.dtype).eps * values[:, :1]
    ranks = (values > floor).sum(-1).tolist()  # waits for the device, once in a run
    frame = None
    for i, rank in enumerate(ranks):
        if rank == 0:  # no gradient at all
            Q[i] = torch.eye(n, dtype=A.dtype, device=A.device)
        elif rank < n:
            if frame is None:
                frame = torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(A)
            found, open_ = Q[i, :, :rank], frame[:, : n - rank]
            for _ in range(2):  # twice is enough (Kahan): what the first leaves in the range
                open_ = torch.linalg.qr(open_ - found @ (found.mT @ open_))[0]
            Q[i, :, rank:] = open_
    return Q


def next_basis(A: Tensor, Q: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """(basis, order): the next basis of A, and which column of Q each of its columns comes from (B, n).

    `how` is "qr", one step of orthogonal iteration, or "eigh", to the end. Where a decomposition fails, Q stays.
    """
    wide = torch.float64 if has_float64(A.device) else A.dtype
    P = A.to(wide) @ Q.to(wide)
    estimate = (Q * P).sum(-2)
    order = estimate.argsort(dim=-1, descending=True, stable=True)
    columns = order[:, None, :].expand_as(Q)
    last = Q.gather(-1, columns)
    if how == "eigh":
        found = first_basis(A)
    elif wide == A.dtype:
        found = torch.linalg.qr(P.gather(-1, columns))[0]
    else:
        shift = torch.finfo(A.dtype).eps * estimate.amax(-1)[:, None, None]
        P = torch.add(P, shift * Q).gather(-1, columns)
        found = cholesky_qr(P).to(Q.dtype)
    good = found.isfinite().all(-1).all(-1)[:, None, None]
    return torch.where(good, found, last), order


def cholesky_qr(P: Tensor) -> Tensor:
    """Q of P = Q T, T upper triangular with a positive diagonal, for float64 P (B, n, n); NaN where PᵀP is singular.

    >>> cholesky_qr(torch.tensor([[[3.0, 1.0], [0.0, 2.0]]], dtype=torch.float64))
    tensor([[[1., 0.],
             [0., 1.]]], dtype=torch.float64)
    """
    length = torch.linalg.vector_norm(P, dim=-2, keepdim=True)
    P = P / torch.where(length > 0, length, 1.0)
    products = P.mT @ P
    at_once = len(P) == 1 or P.device.type == "cpu" or P.shape[-1] <= _LARGEST_CHOLESKY
    parts = [products] if at_once else products.split(1)
    factors = [torch.linalg.cholesky_ex(part, upper=True) for part in parts]
    T = torch.cat([torch.where(info[:, None, None] == 0, factor, torch.nan) for factor, info in factors])
    return torch.linalg.solve_triangular(T, P, upper=True, left=False)


def has_float64(device: torch.device) -> bool:
    """Does float64 cost about what float32 does? On the CPU and on GPUs with float64 tensor cores."""
    return device.type == "cpu" or has_kernels(device)


def _eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    if A.device.type == "cpu" or A.shape[-1] <= _LARGEST_BATCHED:
        return eigen.eigh(A)
    values, vectors = zip(*(torch.linalg.eigh(part) for part in A), strict=True)
    return torch.stack(values), torch.stack(vectors)
