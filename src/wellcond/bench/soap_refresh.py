"""One new eigenbasis: by Cholesky in float64 (ours), by Householder's QR and by an eigendecomposition in float32.

Of sizes that ViT-B has (768 to 3072), and of ViT-Tiny's (192), several at a time as a step has them.
`error_orthogonality` is the largest entry of QᵀQ − 1. Rank-deficient statistics, as of a first gradient.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..optim.soap import bases
from .timing import clock_for, interleave, timing_row

SIZES = {"cuda": [(3072, 2), (2304, 2), (768, 8), (192, 8)], "cpu": [(768, 1), (192, 4)]}  # side, how many


def rows(device: str, *, rounds: int, quick: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for n, count in [(24, 2)] if quick else SIZES[device]:
        A, Q = statistics(n, count, device)
        calls = ways(A, Q)
        timings = interleave(calls, rounds=rounds, warmup=1, clock=clock_for(device))
        baseline = timings["householder"]
        for name, timing in timings.items():
            row = timing_row(timing, baseline) | {"side": n, "count": count, "way": name}
            row |= {"name": f"{name} {count}×{n}×{n}", "basis_ms": timing.median / count}
            found.append(row | {"error_orthogonality": orthogonality(calls[name]())})
    return found


def ways(A: Tensor, Q: Tensor) -> dict[str, Callable[[], Tensor]]:
    """The same refresh, several ways; all start from A and Q in float32."""
    P = A.double() @ Q.double() + 1e-7 * A.diagonal(dim1=-2, dim2=-1).amax() * Q.double()
    return {
        "householder": lambda: bases.next_basis(A, Q, "householder")[0],
        "ours": lambda: bases.next_basis(A, Q, "cholesky")[0],
        "its factors, one by one": lambda: bases.cholesky_qr(P, at_once=False).float(),
        "its factors, at once": lambda: bases.cholesky_qr(P, at_once=True).float(),
        "eigh": lambda: bases.next_basis(A, Q, "eigh")[0],
    }


def statistics(n: int, count: int, device: str) -> tuple[Tensor, Tensor]:
    """(A, Q) (count, n, n): averaged products of random gradients, and the basis of the first half of them."""
    generator = torch.Generator(device).manual_seed(0)
    G = torch.randn(count, n, n + n // 2, generator=generator, device=device) * torch.logspace(
        0, -3, n, device=device
    ).view(-1, 1)
    old = G[..., : n // 2] @ G[..., : n // 2].mT
    return G @ G.mT / n, bases.first_basis(old / n)


def orthogonality(Q: Tensor) -> float:
    Q = Q.double()
    return float((Q.mT @ Q - torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)).abs().amax())
