"""What `Monitor` costs at its defaults: 200 steps of training with it against 200 steps without, all in one run.

`share`: what a measurement took (on CUDA between two events, so with what the host needs to launch it where the device
waits for that), over 200 plain steps. `num_skipped`: measurements that would have exceeded the monitor's budget.
`ratio`: the monitored stretch over the plain one, by the clock of the device, with its bootstrap interval.
"""

from dataclasses import replace
from typing import Any

import torch

from ..monitor import Monitor
from .steps import CapturedStep, Step
from .timing import clock_for, interleave, timing_row
from .training import build_vit
from .workloads import Training, training

EVERY = 200  # the default of Monitor


def rows(images: torch.Tensor, *, device: str, quick: bool, rounds: int) -> list[dict[str, Any]]:
    """ViT-Tiny/8 at 64 px, the step compiled and, on CUDA, as one CUDA graph with the monitor outside."""
    work = training("b", device=device, quick=quick)
    every = 4 if quick else EVERY
    found = [measure(replace(work, captured=False), images, rounds=rounds, every=every)]
    if device == "cuda":
        found.append(measure(work, images, rounds=rounds, every=every))
    return found


def measure(work: Training, images: torch.Tensor, *, rounds: int, every: int) -> dict[str, Any]:
    """Stretches of `every` steps, so that each monitored one holds one measurement, in turn with plain ones."""
    device = images.device.type
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(work.num_classes, (len(images),), generator=generator).to(device)
    step: Step | CapturedStep = Step(
        build_vit(work, seed=0), device=device, compiled=work.compiled, capturable=work.captured
    )
    model = step.model
    if work.captured:
        step = CapturedStep(step, images, labels)
    monitor = Monitor(model, every, images=images[:8])

    def stretch(*after: Any) -> None:
        for _ in range(every):
            step(images, labels)
            for call in after:
                call()

    stretch(monitor.step)  # its first measurement loads libraries
    calls = {"plain": stretch, "monitored": lambda: stretch(monitor.step)}
    timings = interleave(calls, rounds=rounds, warmup=1, clock=clock_for(device))
    monitor.close()
    row = timing_row(timings["monitored"], timings["plain"])
    costs, step_ms = monitor._budget, timings["plain"].median / every
    measurement_ms = 1e3 * costs.spent / max(costs.num_counted, 1)
    return row | {
        "name": f"ViT-Tiny/8 with a monitor, {'one CUDA graph' if work.captured else 'compiled'}",
        "every": every,
        "step_ms": step_ms,
        "measurement_ms": measurement_ms,
        "num_measurements": costs.num_counted,
        "num_skipped": monitor.num_skipped,
        "share": measurement_ms / (every * step_ms),
    }
