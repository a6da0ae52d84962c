"""What `Monitor` costs at its defaults: 100 steps of training with it against 100 steps without, all in one run.

    python -m wellcond.bench.monitor --device cuda            ViT-Tiny/8 at 64 px, batch 1024, compiled
    python -m wellcond.bench.monitor --device cuda --captured   the step as one CUDA graph, the monitor outside
    python -m wellcond.bench.monitor --device cpu --quick     does it run?

Prints one JSON object. `share`: what the monitor says that a measurement takes (on CUDA between two events), over 100
plain steps. `ratio`: the monitored stretch over the plain one, by the clock of the device, with its bootstrap interval.
The bar is 1 % for the first, and that the interval of the second holds 1.01 or less.
"""

import argparse
import json
from dataclasses import replace
from typing import Any

import torch

from ..monitor import Monitor
from .command import check_device
from .record import hardware, versions
from .steps import CapturedStep, Step
from .timing import clock_for, interleave, timing_row
from .training import build_vit
from .workloads import Training, training

EVERY = 100


def measure(work: Training, *, device: str, rounds: int, seed: int = 0, every: int = EVERY) -> dict[str, Any]:
    """Stretches of `every` steps, so that each monitored one holds one measurement, in turn with plain ones."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(work.batch, 3, work.size, work.size, generator=generator).to(device)
    labels = torch.randint(work.num_classes, (work.batch,), generator=generator).to(device)
    step: Step | CapturedStep = Step(
        build_vit(work, seed), device=device, compiled=work.compiled, capturable=work.captured
    )
    model = step.model
    if work.captured:
        step = CapturedStep(step, images, labels)
    monitor = Monitor(model, every, images=images[:8], budget=None)

    def stretch(*after: Any) -> None:
        for _ in range(every):
            step(images, labels)
            for call in after:
                call()

    stretch(monitor.step)  # its first measurement loads libraries
    calls = {"plain": stretch, "monitored": lambda: stretch(monitor.step)}
    timings = interleave(calls, rounds=rounds, warmup=1, clock=clock_for(device))
    monitor.close()
    row = timing_row(timings["monitored"], timings["plain"], seed=seed)
    costs, step_ms = monitor._budget, timings["plain"].median / every
    measurement_ms = 1e3 * costs.spent / max(costs.num_counted, 1)
    return {
        "workload": work.title,
        "every": every,
        "step_ms": step_ms,
        "measurement_ms": measurement_ms,
        "num_measurements": costs.num_counted,
        "share": measurement_ms / (every * step_ms),
        "ratio": row["ratio"],
        "ratio_ci": row["ratio_ci"],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m wellcond.bench.monitor", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--part", choices=["a", "b"], default="b", help="a: ViT-B/16, b: ViT-Tiny/8")
    parser.add_argument("--captured", action="store_true", help="the step as one CUDA graph")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args(arguments)
    try:
        check_device(given.device)
    except ValueError as error:
        parser.error(str(error))
    work = training(given.part, device=given.device, quick=given.quick)
    title = work.title if given.captured else work.title.replace(", the whole step as one CUDA graph", "")
    work = replace(work, captured=given.captured and given.device == "cuda", title=title)
    found = measure(work, device=given.device, rounds=given.rounds, every=4 if given.quick else EVERY)
    origin = {"hardware": hardware(given.device), "versions": versions(), "captured": work.captured}
    print(json.dumps({**found, **origin}, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
