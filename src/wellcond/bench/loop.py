"""A step inside the whole loop (order, gather, augmentation, step, logging) against the bare step on a constant batch.

    python -m wellcond.bench.loop vit-tiny-32 cifar10      on a GPU; prints milliseconds and the ratio

Both are the loop's own step, captured as a CUDA graph where the machine allows it; the bare one is replayed on one
batch that never changes, with nothing around it. Interleaved rounds, medians (timing.py).
"""

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import AugmentConfig, DataConfig, ModelConfig, OptimConfig, TrainConfig
from ..runs import Run
from ..training.feeding import ImageSupply
from ..training.processes import Processes, process_group
from ..training.supply import Supply
from ..training.trainer import Trainer
from .timing import Timing, clock_for, interleave, ratio

_AUGMENT = AugmentConfig(crop="pad", randaugment="rand-m9-mstd0.5-inc1")
WORKLOADS: dict[str, dict[str, Any]] = {
    "vit-tiny-32": {"name": "vit_tiny_patch16_224", "image_size": 32, "patch_size": 4, "batch": 512},
    "vit-tiny-64": {"name": "vit_tiny_patch16_224", "image_size": 64, "patch_size": 8, "batch": 1024},
    "vit-base-224": {"name": "vit_base_patch16_224", "image_size": 224, "patch_size": 16, "batch": 256},
}


class ConstantSupply:
    """One batch of another supply, augmented once and then always the same."""

    def __init__(self, supply: Supply) -> None:
        self.steps_per_epoch, self.num_classes = supply.steps_per_epoch, supply.num_classes
        self.fingerprint = supply.fingerprint
        self.supply = supply
        images, targets = supply.prepare(supply.inputs(0))
        self.batch = images.clone(), targets.clone()

    def indices(self, step: int) -> Tensor:
        return self.supply.indices(0)

    def inputs(self, step: int) -> dict[str, Tensor]:
        return {}

    def prepare(self, inputs: Any) -> tuple[Tensor, Tensor]:
        return self.batch

    def validation(self) -> Iterable[tuple[Tensor, Tensor]]:
        return self.supply.validation()

    def fixed_images(self, count: int) -> Tensor:
        return self.supply.fixed_images(count)

    def close(self) -> None:
        pass


def measure(
    config: TrainConfig, processes: Processes, supply: Supply, folder: Path, *, rounds: int = 20, steps: int = 10
) -> tuple[dict[str, Timing], str]:
    """Timings of `steps` steps of the loop and of the bare step, by name; and what kind of step it was."""
    whole = _trainer(config, supply, processes, folder / "loop")
    bare = _trainer(replace(config, accumulate=1), ConstantSupply(supply), processes, folder / "bare")
    for trainer in (whole, bare):
        trainer.advance(stop=False)  # compile, capture

    def loop() -> None:
        for _ in range(steps):
            whole.advance(stop=False)

    def constant() -> None:
        for _ in range(steps):
            bare.step({}, lr=1e-4)

    clock = clock_for(processes.device.type)
    timings = interleave({"constant batch": constant, "loop": loop}, rounds=rounds, clock=clock)
    kind = type(whole.step).__name__
    for trainer in (whole, bare):
        trainer.close()
    return timings, kind


def _trainer(config: TrainConfig, supply: Supply, processes: Processes, folder: Path) -> Trainer:
    folder.mkdir(parents=True)
    trainer = Trainer(config, Run(folder), supply, processes)
    trainer.restore()
    return trainer


def workload(name: str, source: str, num_classes: int, **changes: Any) -> TrainConfig:
    """The config of a workload on a source of images."""
    if name not in WORKLOADS:
        raise ValueError(f"workload {name!r} is unknown; choose one of {', '.join(WORKLOADS)}")
    found = WORKLOADS[name]
    size = found["image_size"]
    return TrainConfig(
        recipe=name,
        model=ModelConfig(name=found["name"], image_size=size, patch_size=found["patch_size"], num_classes=num_classes),
        data=DataConfig(train=source, val=source, image_size=size, augment=_AUGMENT),
        optim=OptimConfig(clip=1.0, warmup_epochs=1),
        epochs=1000,
        batch_size=found["batch"],
        compile=True,
        **changes,
    )


def main(arguments: list[str]) -> None:
    name, source, *rest = arguments
    config = workload(name, source, int(rest[0]) if rest else 10)
    steps, folder = 10, Path(tempfile.mkdtemp())
    with process_group(config.device, config.batch_size, 1) as processes:
        supply = ImageSupply(config, processes)
        timings, how = measure(config, processes, supply, folder, steps=steps)
        supply.close()
    for label, timing in timings.items():
        per_step = timing.median / steps
        print(f"{label:<16} {per_step:8.3f} ms a step  {1e3 * config.batch_size / per_step:10,.0f} img/s")
    value, (low, high) = ratio(timings["constant batch"], timings["loop"])
    interval = f"[{100 * low:.1f}, {100 * high:.1f}]"
    print(f"the loop reaches {100 * value:.1f} % {interval} of the bare step ({how}, torch {torch.__version__})")


if __name__ == "__main__":
    main(sys.argv[1:])
