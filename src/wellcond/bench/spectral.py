"""``wellcond bench spectral`` → ``results/bench-spectral.json``: spectra against ``torch.linalg``.

    condition  ``condition_number`` against ``torch.linalg.svdvals``
    map        ``spectral_map``, exact and fast, against ``torch.linalg.svd`` and a product
    eigen      the batched symmetric eigensolver against ``torch.linalg.eigh``
    limits     the first two where the CPU can win little, so without a bar: one large float32 matrix that is nearly
               square, a few so small that calls cost more than LAPACK, and float64, whose SVD is torch's

256 token matrices of 197 × 768; on the CPU also 8 matrices of each of several shapes, many tiny and single ones.
"""

from typing import Any

from ..config import BenchConfig
from .bars import Bar
from .command import Part, check_device, chosen_parts, main, run_parts
from .variants import ERROR_BARS

PARTS = ["condition", "map", "eigen", "limits"]
SEED = 0
CPU_SHAPES = [(64, 192), (196, 768), (257, 192), (197, 768), (256, 48)]
CPU_MANY = [(300, (16, 48)), (1000, (4, 12))]  # tiny ones, shared out between threads
CPU_SINGLE = [(197, 192), (17, 48)]  # the hard cases for a Gram matrix: one matrix, nearly square, tiny
LIMITS_FLOAT32 = [(1, (785, 768)), (4, (16, 48)), (1, (16, 48)), (1, (4, 12))]
LIMITS_FLOAT64 = [
    *CPU_MANY, (8, (197, 768)), (8, (64, 192)), (8, (257, 192)),
    (1, (197, 768)), (1, (197, 192)), (1, (65, 192)), (1, (17, 48)),
]  # fmt: skip
MANY = (256, (197, 768))
OURS = {"ours": True}

BARS = (
    Bar(
        "condition_number: times faster than torch.linalg.svdvals",
        "condition", "cuda", "speedup", 50, "at least", where=OURS,
    ),
    Bar("spectral_map: times faster than torch.linalg.svd", "map", "cuda", "speedup", 100, "at least", where=OURS),
    Bar("condition_number on the CPU: time over torch.linalg.svdvals'", "condition", "cpu", "ratio", 1.0, where=OURS),
    Bar("spectral_map on the CPU: time over torch.linalg.svd's", "map", "cpu", "ratio", 1.0, where=OURS),
    Bar("log κ against float64, on CUDA", "condition", "cuda", "error_log_kappa", 1e-3, where=OURS),
    Bar("log κ against float64, on the CPU", "condition", "cpu", "error_log_kappa", 1e-3, where=OURS),
    *(
        Bar(
            f"spectral_map {precision} on {device}: {quantity}",
            "map", device, quantity, limit, where={**OURS, "precision": precision},
        )
        for device in ("cuda", "cpu")
        for precision, limits in ERROR_BARS.items()
        for quantity, limit in zip(("error_fro", "error_log_sigma"), limits, strict=True)
    ),
)  # fmt: skip


def run(config: BenchConfig, *, parts: str | None = None, commit: str | None = None) -> dict[str, Any]:
    """Measure ``parts`` ("condition,map"; None: all) and merge them into the results file."""
    check_device(config.device)
    chosen = chosen_parts(parts, PARTS, PARTS if config.device == "cpu" else PARTS[:-1])
    return run_parts(config, chosen, lambda part: _measure(part, config), bars=BARS, commit=commit, parts=parts)


def _measure(part: str, config: BenchConfig) -> Part:
    import torch

    from . import spectra
    from .matrices import token_matrices

    rows, images = [], ""
    for batch, shape in _sizes(part, config):
        repeats = _repeats(config, batch * shape[0] * shape[1])
        X, images = token_matrices(shape, batch=batch, data=config.data, device=config.device, seed=SEED)
        if part == "condition":
            rows += spectra.condition(X, repeats)
        elif part == "map":
            rows += spectra.mapping(X, repeats)
        elif part == "limits":
            X = X.double() if (batch, shape) in LIMITS_FLOAT64 else X
            rows += spectra.condition(X, repeats) + spectra.mapping(X, repeats)
        else:
            for dtype in (torch.float32, torch.float64):
                rows += spectra.eigenvectors(X, repeats, dtype)
    return rows, {"images": images, "seeds": {"images": SEED, "weights": SEED, "bootstrap": SEED}}


def _sizes(part: str, config: BenchConfig) -> list[tuple[int, tuple[int, int]]]:
    """(batch, (n, d)) of each measurement."""
    if config.quick:
        return [(2, (16, 48)), (2, (17, 48))]
    if part == "limits":
        return LIMITS_FLOAT32 + LIMITS_FLOAT64
    if config.device == "cpu":
        few = [(8, shape) for shape in CPU_SHAPES] + CPU_MANY + [(1, shape) for shape in CPU_SINGLE]
        return few if part == "eigen" else [*few, MANY]
    return [(256, (196, 768)), (1024, (64, 192))] if part == "eigen" else [MANY]


def _repeats(config: BenchConfig, num_entries: int) -> Any:
    """Calls of a few dozen microseconds are timed more often and some in a row: any interrupt is as long as one."""
    from .spectra import Repeats

    if config.quick:
        return Repeats(rounds=3, torch_every=1, num_checked=2)
    if config.device == "cpu":
        tiny, many = num_entries < 10_000, num_entries > 10_000_000
        rounds, in_a_row = (101, 20) if tiny else (5 if many else 21, 1)
        return Repeats(rounds=rounds, torch_every=1, num_checked=8, in_a_row=in_a_row)
    return Repeats(rounds=30, torch_every=8, num_checked=32)


if __name__ == "__main__":
    main(run, "spectral", PARTS)
