"""Part c of the graying benchmark: what graying a batch costs by itself, beside a plain copy of that batch.

The copy reads and writes every pixel once: no graying can be much faster than that.
"""

from typing import Any

import torch

from . import oracle
from .accuracy import Accuracy
from .images import Pictures, normalise
from .timing import clock_for, interleave, timing_row
from .training import graying_module
from .variants import METHODS, PRECISIONS, Variant
from .workloads import Graying


def measure(work: Graying, pictures: Pictures, *, device: str) -> list[dict[str, Any]]:
    """Rows of one batch shape: copy, and each method in each precision, under the autocast of training."""
    images = normalise(pictures.pixels, device)

    def autocast() -> torch.autocast:
        return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")

    def timed(module: torch.nn.Module) -> Any:
        def call() -> None:
            with torch.no_grad(), autocast():
                module(images)

        return call

    variants = [Variant(method=m, precision=p, placement="before") for m in METHODS for p in PRECISIONS]
    modules = {v.name: graying_module(v, work.patch_size) for v in variants}
    calls = {"copy": images.clone, **{name: timed(module) for name, module in modules.items()}}
    timings = interleave(calls, rounds=work.rounds, clock=clock_for(device))
    accuracy = Accuracy(images, patch_size=work.patch_size, count=work.num_error_images, autocast=autocast)
    rows: list[dict[str, Any]] = [timing_row(timings["copy"], timings["copy"]) | oracle.kappas(accuracy.tokens)]
    for v in variants:
        errors = accuracy.of_tokens(v, modules[v.name])
        row = timing_row(timings[v.name], timings["copy"])
        row |= {"method": v.method, "precision": v.precision, "epsilon": v.epsilon}
        rows.append(row | errors | {"meets_error": v.meets_error(errors)})
    for row in rows:
        row["shape"] = work.shape
        row["name"] = f"{row['name'].removesuffix(' before')} {work.shape}"
    return rows
