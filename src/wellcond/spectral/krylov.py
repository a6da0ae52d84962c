"""The largest eigenpair of many symmetric matrices at once, from a few products with each.

Block Lanczos (Golub & Van Loan, *Matrix Computations*, 10.3): an orthonormal basis of {X, XM, XM², …} for a block X of
two vectors, in which M is a small matrix T whose largest eigenvalues (Ritz values) and vectors converge first. Two
vectors see an eigenvalue that comes twice, which a single one cannot. Every vector is orthogonalised against all
earlier ones, twice ("twice is enough"), so no spurious copies appear.

All of it is batched products: a dense solver spends n³ operations on eigenvectors of which one is wanted.
Vectors are rows, because a few rows times a matrix run faster on a CPU than a matrix times a few columns.

Legend: B matrices of order n, b vectors in a block, m in the basis.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wellcond.spectral import eigen

Apply = Callable[[Tensor], Tensor]  # rows (B, b, n) → rows (B, b, n) times M
BLOCK = 2
FIRST_LOOK = 7  # products before the first look at the convergence
LOOK_AGAIN = 6  # after a sixth more: a look is a dense problem of the basis, which soon costs more than a product
MOST = 160  # vectors in the basis
SIMPLE = 1e-8  # a gap below this is none
_GONE = 500  # times eps: a vector whose part outside the basis is this short holds nothing new
_NOISE = 8  # times eps: a residual this small is rounding
_BELOW = -4.0  # in units of the largest Ritz value: the place of vectors that are none


@dataclass(frozen=True, kw_only=True)
class Leading:
    """The largest eigenpair of each matrix, outside the space that was projected out."""

    value: Tensor  # (B,)
    vector: Tensor  # (B, n), of length 1
    gap: Tensor  # (B,) to the next eigenvalue
    residual: Tensor  # (B,) |M v − θ v|; the vector errs by at most residual / gap
    converged: Tensor  # (B,) bool


@torch.no_grad()
def leading_eigenpair(apply: Apply, known: Tensor, *, tolerance: float = 1e-8, most: int = MOST) -> Leading:
    """The largest eigenvalue and its vector of each M among vectors orthogonal to `known` (B, k, n).

    `known` are orthonormal eigenvectors of M, whose norm is about 1. A matrix has converged when residual ≤ tolerance ·
    gap, or when the residual is rounding noise. The start is the same for every matrix and every call; the answer for a
    matrix does not depend on the others but for the number of products. Where the gap is none (SIMPLE) the vector is
    one of many: of the eigenspace the one nearest to the first vector of the start, so that rounding does not choose.
    """
    B, k, n = known.shape
    most = min(k + most, n + BLOCK - 1)  # the last block may be of fewer vectors, filled up with zeros
    V = known.new_empty(B, most, n)
    T = known.new_empty(B, most, most)
    V[:, :k] = known
    real = torch.zeros(B, most, dtype=torch.bool, device=known.device)
    rest, low, step, look = starts(known), k, 0, FIRST_LOOK
    first = rest[:, :1]
    rest = _outside(rest, V[:, :k])
    while True:
        block, fresh = _orthonormal(rest)
        high = low + block.shape[1]
        V[:, low:high], real[:, low:high] = block, fresh
        product = apply(block).contiguous()
        along = product @ V[:, :high].mT
        T[:, low:high, :high], T[:, :high, low:high] = along, along.mT
        rest = _outside(product - along @ V[:, :high], V[:, :high])
        step += 1
        full = high + block.shape[1] > most
        if full or step >= look:
            look = step + max(1, step // LOOK_AGAIN)
            basis = V[:, k:high]
            found, values, S = _ritz(basis, T[:, k:high, k:high], real[:, k:high], rest, tolerance)
            if full or bool(found.converged.all()):
                one = values >= found.value[:, None] - SIMPLE
                chosen = (nearest(first @ basis.mT, S, one)[:, None] @ basis)[:, 0]
                return replace(found, vector=torch.where((found.gap <= SIMPLE)[:, None], chosen, found.vector))
        low = high


def starts(like: Tensor) -> Tensor:
    """(B, b, n) in the type and on the device of `like` (B, …, n)."""
    b, n = BLOCK, like.shape[-1]
    generator = torch.Generator().manual_seed(n)  # the same on every device
    X = torch.randn(b, n, generator=generator, dtype=torch.float64, device="cpu")
    return X.to(like).expand(len(like), b, n) / n**0.5


def nearest(first: Tensor, S: Tensor, one: Tensor) -> Tensor:
    """(B, m), of length 1: the part of `first` (B, 1, m) in the span of those columns of S (B, m, m) that are `one`."""
    part = ((first @ S * one[:, None]) @ S.mT)[:, 0]
    return part / part.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(part.dtype).tiny)


def _outside(X: Tensor, V: Tensor) -> Tensor:
    return X - (X @ V.mT) @ V


def _orthonormal(X: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal rows that span those of X (B, b, n), and which of them are there (B, b).

    By the eigenvectors of X Xᵀ, twice; a direction of (nearly) no length becomes a zero vector.
    """
    there, gone = torch.ones((), dtype=torch.bool, device=X.device), (_GONE * torch.finfo(X.dtype).eps) ** 2
    for turn in range(2):
        values, U = eigen.eigh(X @ X.mT)
        there = values > (0.5 if turn else gone)
        X = torch.where(there, values.clamp(min=gone).rsqrt(), 0.0)[..., None] * (U.mT @ X)
    return X, there


def _ritz(V: Tensor, T: Tensor, real: Tensor, rest: Tensor, tolerance: float) -> tuple[Leading, Tensor, Tensor]:
    """The largest Ritz pair of T in the basis V. M V = T V + `rest` in the last rows, so its residual is theirs.

    Beside it all values (B, m), ascending, and vectors (B, m, m) of T.
    """
    T = (T + T.mT) / 2
    scale = T.diagonal(dim1=-2, dim2=-1).abs().amax(-1, keepdim=True).clamp(min=torch.finfo(T.dtype).tiny)
    values, S = eigen.eigh(T + torch.diag_embed(torch.where(real, 0.0, _BELOW * scale)))
    top = S[..., -1]
    residual = (top[:, None, -rest.shape[1] :] @ rest)[:, 0].norm(dim=-1)
    value = values[..., -1]
    gap = value - values[..., -2] if values.shape[-1] > 1 else scale[..., 0]
    converged = (residual <= tolerance * gap) | (residual <= _NOISE * torch.finfo(T.dtype).eps * scale[..., 0])
    vector = (top[:, None] @ V)[:, 0]
    return Leading(value=value, vector=vector, gap=gap, residual=residual, converged=converged), values, S
