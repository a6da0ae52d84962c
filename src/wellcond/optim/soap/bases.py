"""Eigenbases of L and R: the first one, and the next from the last.

Legend: A (B, n, n) are B statistics of one size, Q (B, n, n) their bases in columns, the largest eigenvalue first.

The next basis is one step of orthogonal iteration, as in SOAP: the columns of A Q, sorted by qᵀ A q, made orthonormal
from the left to the right. Householder's QR spends its time in panels, so Q comes from the Cholesky factor of the
products of the columns P = A Q, scaled to length 1: PᵀP = TᵀT, Q = P T⁻¹. It is the same Q, but for signs, which Adam
in this basis does not feel.

PᵀP has the square of P's condition number. With A = Q Λ^½ C Λ^½ Qᵀ and C near 1, that of P is about √(λ_max/λ_min),
which is unbounded: gradients have null spaces. So A is shifted by eps₃₂ λ_max, the rounding error of A itself, and a
direction without a gradient stays what it was. What remains, 4e3, is too much for float32 when squared and easy for
float64: bases are orthonormal to 1e-8. Householder's QR is for the rest:

- a basis that is refreshed for the first time. It is that of one gradient, C is far from 1, and P's condition number
  may be far larger;
- float64 statistics, which have no wider type; the CPU, where LAPACK is good at it; GPUs without float64 tensor cores.
"""

import torch
from torch import Tensor

from wellcond.spectral import eigen
from wellcond.spectral.products import has_kernels

_LARGEST_BATCHED = 1024  # cuSOLVER's batched eigensolver is for many small matrices
_LARGEST_CHOLESKY = 1024  # and so is its batched Cholesky (results/bench-soap.json, part refresh)


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
                generator = torch.Generator().manual_seed(0)  # of the CPU, as what it draws
                frame = torch.randn(n, n, generator=generator, dtype=torch.float64, device="cpu").to(A)
            found, open_ = Q[i, :, :rank], frame[:, : n - rank]
            for _ in range(2):  # twice is enough (Kahan): what the first leaves in the range
                open_ = torch.linalg.qr(open_ - found @ (found.mT @ open_))[0]
            Q[i, :, rank:] = open_
    return Q


def next_basis(A: Tensor, Q: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """(basis, order): the next basis of A, and which column of Q each of its columns comes from (B, n).

    `how` is "cholesky" or "householder", one step of orthogonal iteration, "qr" for the quicker of the two, or "eigh",
    to the end. Where a decomposition fails, Q stays.
    """
    if how == "qr":
        how = "cholesky" if A.dtype == torch.float32 and has_kernels(A.device) else "householder"
    wide = torch.float64 if how == "cholesky" else A.dtype
    P = A.to(wide) @ Q.to(wide)
    quotients = (Q * P).sum(-2)
    order = quotients.argsort(dim=-1, descending=True, stable=True)
    columns = order[:, None, :].expand_as(Q)
    if how == "eigh":
        found = first_basis(A)
    elif how == "cholesky":
        shift = torch.finfo(A.dtype).eps * quotients.amax(-1)[:, None, None]
        found = cholesky_qr((P + shift * Q).gather(-1, columns)).to(Q.dtype)
    else:
        found = torch.linalg.qr(P.gather(-1, columns))[0]
    good = found.isfinite().all(-1).all(-1)[:, None, None]
    return torch.where(good, found, Q.gather(-1, columns)), order


def cholesky_qr(P: Tensor, at_once: bool | None = None) -> Tensor:
    """Q of P = Q T, T upper triangular with a positive diagonal, for float64 P (B, n, n); NaN where PᵀP is singular.

    `at_once`: one factorization after the other, or all in one call, which on CUDA is for small ones.

    >>> cholesky_qr(torch.tensor([[[3.0, 1.0], [0.0, 2.0]]], dtype=torch.float64))
    tensor([[[1., 0.],
             [0., 1.]]], dtype=torch.float64)
    """
    length = torch.linalg.vector_norm(P, dim=-2, keepdim=True)
    P = P / torch.where(length > 0, length, 1.0)
    products = P.mT @ P
    if at_once is None:
        at_once = P.device.type == "cpu" or P.shape[-1] <= _LARGEST_CHOLESKY
    parts = [products] if at_once else products.split(1)
    factors = [torch.linalg.cholesky_ex(part, upper=True) for part in parts]
    T = torch.cat([torch.where(info[:, None, None] == 0, factor, torch.nan) for factor, info in factors])
    return torch.linalg.solve_triangular(T, P, upper=True, left=False)


def _eigh(A: Tensor) -> tuple[Tensor, Tensor]:
    if A.device.type == "cpu" or A.shape[-1] <= _LARGEST_BATCHED:
        return eigen.eigh(A)
    values, vectors = zip(*(torch.linalg.eigh(part) for part in A), strict=True)
    return torch.stack(values), torch.stack(vectors)
