"""Part d of the graying benchmark: DCT graying against the same by ``torch-dct`` (FFT).

Both go from images to images: unfold, transform, shrink, transform back, fold. Like is compared with like: "fast" is
float32 and stands against a float32 FFT, "exact" is float64 inside and stands against a float64 FFT.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import oracle
from .images import Pictures, normalise
from .timing import clock_for, interleave, timing_row
from .training import graying_module
from .variants import EPSILON, PRECISIONS, Variant
from .workloads import Graying

BASELINE = {"fast": "torch_dct (FFT) float32", "exact": "torch_dct (FFT) float64"}


def fft_graying(patch_size: int, epsilon: float) -> Callable[[Tensor], Tensor]:
    """Images → images through ``torch_dct.dct_2d`` and ``idct_2d``; ImportError if torch-dct is missing."""
    import torch_dct

    def gray(images: Tensor) -> Tensor:
        B, C, H, W = images.shape
        p = patch_size
        blocks = images.reshape(B, C, H // p, p, W // p, p).permute(0, 2, 4, 3, 5, 1)
        coefficients = torch_dct.dct_2d(blocks.reshape(B, -1, p * p * C), norm="ortho")
        tokens = torch_dct.idct_2d(oracle.shrink(coefficients, epsilon), norm="ortho")
        return tokens.reshape(blocks.shape).permute(0, 5, 1, 3, 2, 4).reshape(B, C, H, W)

    return gray


def measure(work: Graying, pictures: Pictures, *, device: str) -> list[dict[str, Any]]:
    """Rows of one batch shape: torch-dct (the baseline), exact and fast, without autocast."""
    images = normalise(pictures.pixels, device)
    grayings: dict[str, Callable[[Tensor], Tensor]] = {}
    try:
        by_fft = fft_graying(work.patch_size, EPSILON["dct"])
    except ImportError as error:
        return [{"name": f"torch_dct (FFT) {work.shape}", "failed": f"torch-dct is not installed: {error}"}]
    grayings[BASELINE["fast"]] = by_fft
    grayings[BASELINE["exact"]] = lambda images: by_fft(images.double()).to(images.dtype)
    variants = [Variant(method="dct", precision=precision, placement="before") for precision in PRECISIONS]
    grayings |= {f"dct {v.precision}": graying_module(v, work.patch_size) for v in variants}

    def timed(gray: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def call() -> None:
            with torch.no_grad():
                gray(images)

        return call

    calls = {name: timed(gray) for name, gray in grayings.items()}
    timings = interleave(calls, rounds=work.rounds, clock=clock_for(device))
    count = min(work.num_error_images, len(images))
    tokens = oracle.tokens_of(images[:count], work.patch_size)
    expected = oracle.gray(tokens, "dct", EPSILON["dct"])
    rows = []
    for name, gray in grayings.items():
        with torch.no_grad():
            result = oracle.tokens_of(gray(images)[:count], work.patch_size)
        baseline = BASELINE["exact" if name in ("dct exact", BASELINE["exact"]) else "fast"]
        row = timing_row(timings[name], timings[baseline])
        row |= {
            "method": "dct",
            "epsilon": EPSILON["dct"],
            "ours": name.startswith("dct"),
            "shape": work.shape,
        }
        rows.append(row | {"name": f"{name} {work.shape}"} | oracle.matrix_errors(result, expected, tokens))
    return rows
