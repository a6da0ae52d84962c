"""The parts of the spectral benchmark: κ, U f(Σ) Vᵀ and symmetric eigenvectors, against ``torch.linalg``.

``ratio`` is our time over torch's on the same matrices in the same run, ``speedup`` its inverse. Errors are
those against float64 (LAPACK on the CPU) on the first ``num_checked`` matrices; torch's own errors stand
beside them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import spectral
from ..spectral import eigen
from . import oracle
from .timing import clock_for, interleave, timing_row

EXPONENT = 0.7
Result = Any


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Rounds of ours; torch's takes part in each ``torch_every``-th of them (its GPU SVD takes seconds)."""

    rounds: int
    torch_every: int
    num_checked: int
    in_a_row: int = 1  # calls of a round, on the CPU


def condition(X: Tensor, repeats: Repeats) -> list[dict[str, Any]]:
    """log κ by ``condition_number`` against ``torch.linalg.svdvals``."""

    def by_torch() -> Tensor:
        sigma = torch.linalg.svdvals(X)
        return (sigma[..., 0] / sigma[..., -1]).log()

    calls = {
        "torch.linalg.svdvals": by_torch,
        "condition_number": lambda: spectral.condition_number(X, log=True),
    }
    X64 = X[: repeats.num_checked].cpu().double()
    sigma = torch.linalg.svdvals(X64)
    deficient = sigma[..., -1] <= oracle.rounding_floor(X64, sigma[..., :1])[..., 0]
    expected = (sigma[..., 0] / sigma[..., -1]).log()

    def errors(result: Tensor) -> dict[str, Any]:
        result = result[: repeats.num_checked].cpu().double()
        both = result.isfinite() & ~deficient
        infinite = {"num_infinite": int(result.isinf().sum()), "num_deficient": int(deficient.sum())}
        worst = (result - expected)[both].abs().max().item() if both.any() else None
        return {"error_log_kappa": worst} | infinite | oracle.kappas(X64)

    return _compare(calls, X, repeats, errors, what="condition_number")


def mapping(X: Tensor, repeats: Repeats) -> list[dict[str, Any]]:
    """``spectral_map`` with σ → σ^0.7 against ``torch.linalg.svd`` and a product."""

    def by_torch() -> Tensor:
        U, sigma, Vt = torch.linalg.svd(X, full_matrices=False)
        return (U * (sigma**EXPONENT).unsqueeze(-2)) @ Vt

    def power(sigma: Tensor) -> Tensor:
        return sigma**EXPONENT

    calls = {
        "torch.linalg.svd": by_torch,
        "spectral_map exact": lambda: spectral.spectral_map(X, power, precision="exact"),
        "spectral_map fast": lambda: spectral.spectral_map(X, power, precision="fast"),
    }
    checked = X[: repeats.num_checked].cpu().double()
    expected = oracle.map_spectrum(checked, EXPONENT, relative=False)

    def errors(result: Tensor) -> dict[str, float]:
        return oracle.matrix_errors(result[: repeats.num_checked], expected, checked)

    rows = _compare(calls, X, repeats, errors, what="spectral_map")
    precisions = (None, "exact", "fast")
    return [row | {"precision": precision} for row, precision in zip(rows, precisions, strict=True)]


def eigenvectors(X: Tensor, repeats: Repeats, dtype: torch.dtype) -> list[dict[str, Any]]:
    """``eigh`` of the smaller Gram matrices against ``torch.linalg.eigh``."""
    G = X.double().mT @ X.double() if X.shape[-2] > X.shape[-1] else X.double() @ X.double().mT
    G = (G / torch.linalg.matrix_norm(G)[..., None, None]).to(dtype)
    solver = f"eigh ({eigen.solver_name(G.device)})"
    calls = {"torch.linalg.eigh": lambda: torch.linalg.eigh(G), solver: lambda: eigen.eigh(G)}
    G64 = G[: repeats.num_checked].cpu().double()
    expected = torch.linalg.eigvalsh(G64)

    def errors(result: Result) -> dict[str, float]:
        values, V = (t[: repeats.num_checked].cpu().double() for t in result)
        identity = torch.eye(V.shape[-1], dtype=torch.float64)
        residual = torch.linalg.matrix_norm(G64 @ V - V * values.unsqueeze(-2)) / torch.linalg.matrix_norm(G64)
        return {
            "error_values": ((values.sort(-1).values - expected).abs().amax(-1) / expected.abs().amax(-1)).max().item(),
            "error_residual": residual.max().item(),
            "error_orthogonality": torch.linalg.matrix_norm(V.mT @ V - identity).max().item(),
        }

    return _compare(calls, G, repeats, errors, what="eigh")


def _compare(
    calls: dict[str, Callable[[], Result]],
    X: Tensor,
    repeats: Repeats,
    errors: Callable[[Result], dict[str, Any]],
    *,
    what: str,
) -> list[dict[str, Any]]:
    """Time ``calls``, the first of which is torch's, and put the errors beside the times."""
    baseline = next(iter(calls))
    every = {baseline: repeats.torch_every}
    timings = interleave(calls, rounds=repeats.rounds, clock=clock_for(X.device.type, repeats.in_a_row), every=every)
    shape = "×".join(map(str, X.shape))
    dtype = str(X.dtype).removeprefix("torch.")
    rows = []
    for name, call in calls.items():
        row = timing_row(timings[name], timings[baseline])
        row |= {
            "name": f"{name} {shape} {dtype}",
            "baseline": baseline,
            "what": what,
            "ours": name != baseline,
        }
        rows.append(row | {"shape": shape, "dtype": dtype, "speedup": 1 / row["ratio"]} | errors(call()))
        print(f"  {rows[-1]['name']}: {row['median_ms']:.3f} ms, {1 / row['ratio']:.1f}×", flush=True)
    return rows
