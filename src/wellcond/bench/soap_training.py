"""Whole training steps, the loop's own, with SOAP and with AdamW: one batch that never changes, nothing around it.

SOAP twice, with the same trainer: refreshing after each step, and beside the next one (`overlap`, on CUDA).
"""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import DataConfig, ModelConfig, OptimConfig, TrainConfig
from ..optim import SOAP
from ..runs import Run
from ..training.processes import process_group
from ..training.supply import Contents
from ..training.trainer import Trainer
from .timing import clock_for, interleave, timing_row

FREQUENCY = 10  # steps between refreshes, and steps that are timed at once
OPTIMIZERS = {
    "adamw": OptimConfig(name="adamw", lr=1e-4, min_lr=0, clip=1.0),
    "soap": OptimConfig(name="soap", lr=1e-4, min_lr=0, clip=1.0, precondition_frequency=FREQUENCY),
}


class OneBatch:
    """A supply of one batch of images with random labels."""

    classes: Sequence[str] = ()
    fingerprint = val_fingerprint = "one batch"
    steps_per_epoch = 1

    def __init__(self, images: Tensor, num_classes: int) -> None:
        self.num_classes, self.images = num_classes, images
        self.contents: Contents = {}
        labels = torch.randint(num_classes, (len(images),), generator=torch.Generator().manual_seed(0))
        self.labels = labels.to(images.device)

    def indices(self, step: int) -> Tensor:
        return torch.arange(len(self.images))

    def inputs(self, step: int) -> dict[str, Tensor]:
        return {}

    def prepare(self, inputs: Any) -> tuple[Tensor, Tensor]:
        return self.images, self.labels

    def validation(self) -> Iterable[tuple[Tensor, Tensor]]:
        yield self.images, self.labels

    def fixed_images(self, count: int) -> Tensor:
        return self.images[:count]

    def close(self) -> None:
        pass


def workload(device: str, *, quick: bool) -> TrainConfig:
    """ViT-B/16 at 224 px with batch 512, compiled; very small where it is only to run."""
    small = quick or device == "cpu"
    size = 32 if small else 224
    options = (("embed_dim", 24), ("depth", 2), ("num_heads", 3)) if small else ()
    return TrainConfig(
        recipe="bench-soap",
        model=ModelConfig(
            name="vit_base_patch16_224",
            image_size=size,
            patch_size=8 if small else 16,
            num_classes=1000,
            options=options,
        ),
        data=DataConfig(train="one batch", val="one batch", image_size=size),
        epochs=100_000,
        batch_size=4 if small else 512,
        compile=not small,
        device=device,  # pyright: ignore[reportArgumentType]
    )


def rows(config: TrainConfig, images: Tensor, *, rounds: int) -> list[dict[str, Any]]:
    """Ten steps at a time, in turn."""
    torch.compiler.reset()
    supply, trainers = OneBatch(images, config.model.num_classes), {}
    with tempfile.TemporaryDirectory() as folder, process_group(config.device, config.batch_size, 1) as processes:
        for name, optim in OPTIMIZERS.items():
            path = Path(folder) / name
            path.mkdir()
            trainer = Trainer(replace(config, optim=optim), Run(path), supply, processes)
            set_overlap(trainer, True)  # a graph that was captured so serves both
            trainer.restore()
            trainer.advance(stop=False)  # compile, capture, the first bases
            trainers[name] = trainer
        variants = {"adamw": (trainers["adamw"], False), "soap": (trainers["soap"], False)}
        if config.device == "cuda":
            variants["soap, refreshed beside the next step"] = (trainers["soap"], True)
        calls = {name: lambda variant=variant: ten_steps(*variant) for name, variant in variants.items()}
        timings = interleave(calls, rounds=rounds, warmup=2, clock=clock_for(config.device))
        found = []
        for name, (trainer, overlap) in variants.items():
            row = timing_row(timings[name], timings["adamw"]) | {"optimizer": trainer.config.optim.name}
            row |= {"default": not overlap, "step_ms": timings[name].median / FREQUENCY, "kind": trainer.step.reason}
            found.append(row | {"images_per_s": 1e3 * len(images) / row["step_ms"]})
        for trainer in trainers.values():
            trainer.close()
    return found


def ten_steps(trainer: Trainer, overlap: bool) -> None:
    """And everything that they leave to do."""
    set_overlap(trainer, overlap)
    for _ in range(FREQUENCY):
        trainer.step({}, lr=1e-4)
    trainer.updates.wait()


def set_overlap(trainer: Trainer, overlap: bool) -> None:
    for part in trainer.updates.parts:
        if isinstance(part, SOAP):
            part.overlap = overlap
