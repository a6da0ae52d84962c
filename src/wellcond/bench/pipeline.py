"""Part pipeline of the training benchmark: whole epochs of `wellcond train` and of a timm pipeline, in turns.

Both see CIFAR-10 in batches of 512 with the recipe's augmentation and write or read the loss as often. An epoch of timm
begins as its users' does: with workers that are there already and a wait for their first batch, which is recorded.
"""

import gc
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo

from ..training.feeding import ImageSupply
from ..training.processes import process_group
from .baseline import WORKERS, Baseline, open_loader
from .loop import open_trainer, wait, whole_stretch
from .recipe_loops import config_of, work_of
from .stock import images_of, open_stock
from .timing import HostClock, interleave, timing_row

ROUNDS = 3


def measure(
    data: Path | None, *, device: str, quick: bool, folder: Path
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of both, and of timm's step and loader by themselves."""
    work = work_of("vit-tiny-32", quick=quick)
    config = config_of(work, device=device, quick=quick)
    workers = 2 if quick else WORKERS
    cache = open_stock(
        data, count=work.count, image_size=config.data.image_size, side=work.side, folder=folder / "cache"
    )
    torch.compiler.reset()
    with (
        torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True),
        process_group(device, config.batch_size, 1) as processes,
    ):
        loader = open_loader(config, cache, processes.device, workers)
        for _ in loader:  # its processes are forked now, before the device has much work
            break
        baseline = Baseline(config, loader, processes.device)
        supply = ImageSupply(config, processes, images=images_of(cache, processes.device))
        trainer = open_trainer(config, supply, processes, folder / "pipeline")
        steps = trainer.supply.steps_per_epoch
        calls = {
            "timm": baseline.epoch,
            "wellcond": whole_stretch(trainer, steps),
            "timm, constant batch": baseline.constant_epoch,
            "timm, loader alone": baseline.load_epoch,
        }
        timings = interleave(
            {name: _settled(name, call, processes.device) for name, call in calls.items()},
            rounds=1 if quick else ROUNDS,
            warmup=1,
            clock=HostClock(),
        )
        trainer.close()
    rows = [timing_row(timing, timings["timm"]) for timing in timings.values()]
    for row in rows:
        row |= {"epoch_ms": row["median_ms"], "images_per_s": 1e3 * steps * config.batch_size / row["median_ms"]}
    waits = baseline.first_batch_s[1:]  # the first was the warm-up
    running = np.asarray(rows[0]["samples_ms"]) - 1e3 * np.asarray(waits)
    rows[0] |= {"workers": workers, "first_batch_s": waits}
    rows[1] |= {"speedup": 1 / rows[1]["ratio"]}
    rows[1] |= {"speedup_after_first_batch": float(np.median(running)) / rows[1]["median_ms"]}
    settings = {"images": cache.meta.title, "num_distinct_images": len(cache)}
    del calls, baseline, trainer, loader
    gc.collect()  # the processes of the loader end
    return rows, settings | {"work": asdict(work), "batch": config.batch_size, "steps_per_epoch": steps}


def _settled(name: str, call: Any, device: torch.device) -> Any:
    """The call, a wait for the device, and a line about how long it took."""

    def settled() -> None:
        began = time.perf_counter()
        call()
        wait(device)
        print(f"  epoch of {name}: {time.perf_counter() - began:.2f} s", flush=True)

    return settled
