"""Stretches of the training loop, and of its bare step on a batch that never changes, in one process and to one clock.

A stretch is a number of steps and then a wait for the device, timed on the host: whatever the host or the device cannot
hide is in it (order, gather, augmentation, step, numbers brought back, rows written). The bare step is the loop's own,
with the same weights and the same compiled model, captured once more on one batch; nothing is around it.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import TrainConfig
from ..runs import Run
from ..training.processes import Processes
from ..training.records import Records
from ..training.step import Step
from ..training.supply import Supply
from ..training.tally import Tally
from ..training.trainer import Trainer


class ConstantSupply:
    """One batch of another supply, augmented once and then always the same."""

    def __init__(self, supply: Supply) -> None:
        self.steps_per_epoch = supply.steps_per_epoch
        self.num_classes, self.classes = supply.num_classes, supply.classes
        self.fingerprint, self.val_fingerprint = supply.fingerprint, supply.val_fingerprint
        self.contents = supply.contents
        self.supply = supply
        inputs = supply.inputs(0)
        images, targets = supply.prepare(inputs)
        self.batch = images.clone(), targets.clone()
        self.keys = {"keys": inputs["keys"]} if "keys" in inputs else {}  # paths are dropped as in the loop

    def indices(self, step: int) -> Tensor:
        return self.supply.indices(0)

    def inputs(self, step: int) -> dict[str, Tensor]:
        return self.keys

    def prepare(self, inputs: Any) -> tuple[Tensor, Tensor]:
        return self.batch

    def validation(self) -> Iterable[tuple[Tensor, Tensor]]:
        return self.supply.validation()

    def fixed_images(self, count: int) -> Tensor:
        return self.supply.fixed_images(count)

    def close(self) -> None:
        pass


def open_trainer(config: TrainConfig, supply: Supply, processes: Processes, folder: Path) -> Trainer:
    """A trainer at its beginning; `folder` gets its logs. Its first `advance` compiles and captures."""
    folder.mkdir(parents=True)
    trainer = Trainer(config, Run(folder), supply, processes)
    trainer.restore()
    return trainer


def beside(trainer: Trainer, supply: Supply) -> Trainer:
    """Another loop over the same weights, optimizer and compiled model, fed by `supply`; captured on its own."""
    other = copy.copy(trainer)
    other.supply, other.tally, other.records = supply, Tally(), Records(trainer.processes.device)
    prepare: Any = supply.prepare
    config = trainer.config
    if isinstance(supply, ConstantSupply):
        config = replace(config, accumulate=1)
    elif config.compile and trainer.processes.device.type == "cuda":
        prepare = torch.compile(prepare, dynamic=False)
    other.step = Step(
        trainer.objective,
        trainer.called,
        prepare,
        trainer.updates,
        trainer.average,
        trainer.drops,
        config,
        trainer.processes,
    )
    other.captured = False
    return other


def inner(trainer: Trainer) -> Step:
    """The step under a captured one."""
    return trainer.step if isinstance(trainer.step, Step) else trainer.step.step


def whole_stretch(trainer: Trainer, steps: int) -> Callable[[], None]:
    """`steps` steps of the loop."""

    def call() -> None:
        for _ in range(steps):
            trainer.advance(stop=False)
        wait(trainer.processes.device)

    return call


def bare_stretch(trainer: Trainer, steps: int) -> Callable[[], None]:
    """`steps` bare steps of a loop that was set beside another over a `ConstantSupply`."""
    trainer.advance(stop=False)  # capture

    def call() -> None:
        for _ in range(steps):
            trainer.step({}, lr=1e-4)
        wait(trainer.processes.device)

    return call


def wait(device: torch.device) -> None:
    """Until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
