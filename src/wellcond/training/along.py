"""Judges along the way: what `wellcond evaluate` would say of a run, every few epochs (Cutting the Skip, Fig. 2).

They look at the weights that `load` would give of a checkpoint saved then: the average where the run keeps one, DINO's
teacher. Nothing of training moves: the model is only read, torch's generators are put back, and each judge starts anew
every time, so what it says hangs on the weights alone and a resumed run writes the same rows. A judge of its own on a
GPU may add in another order and differ in the last digits, also where training is deterministic.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from wellcond.config import TrainConfig
from wellcond.config.along import TITLES
from wellcond.data.progress import silent
from wellcond.evaluation import JUDGES, Backbone, Settings, Subject
from wellcond.training.annotated import Squares
from wellcond.training.models import build_model
from wellcond.training.pictures import Pictures
from wellcond.training.step import DTYPES
from wellcond.training.subjects import PROBING, annotated, forward_of


class Along:
    """The judges of a config. What can be wrong with their pictures, or the model, is told when it is made."""

    def __init__(self, config: TrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.subjects: dict[str | None, Subject] = {}
        model = build_model(config.model, initialized=False).to(DTYPES[config.precision])
        for source in dict.fromkeys(source for _, source in config.along.asked()):
            self.subjects[source] = self._subject(source, model)

    def _subject(self, source: str | None, model: nn.Module) -> Subject:
        along = self.config.along
        judges = {judge for judge, of in along.asked() if of == source}
        pictures = Pictures(
            self.config, source, self.device, along.batch_size, own_head=False, progress=silent, spelled=_spelled
        )  # fmt: skip
        settings = Settings(
            probe_epochs=along.probe_epochs, segmentation_epochs=along.segmentation_epochs, batch_size=along.batch_size
        )
        subject = Subject(model=model, forward=model, batches=pictures.batches, settings=settings)
        try:
            if judges & PROBING:
                pictures.check_halves()
            subject = annotated(subject, Backbone(model), pictures, along, judges)
            if "segmentation" in judges:
                for half in ("train", "val"):
                    cast(Squares, subject.segments(half)).decode()
            return subject
        except ValueError as error:
            raise ValueError(f"along.judges: {error}") from None

    def look(self, model: nn.Module) -> Iterator[dict[str, Any]]:
        """One row for each judge: its name, its source where that is another than the run's, its numbers."""
        own = {"model": model, "forward": forward_of(model, self.config.precision)}
        subjects = {source: replace(subject, **own) for source, subject in self.subjects.items()}
        for judge, source in self.config.along.asked():
            subject = subjects[source]
            with untouched(self.device):
                try:
                    values = dict(JUDGES[judge](subject))
                except torch.OutOfMemoryError:
                    count = self.config.along.batch_size
                    raise ValueError(
                        f"the GPU has too little memory for {judge} of {count} images; the same command goes on with "
                        f"--along.batch-size {max(1, count // 4)}"
                    ) from None
            yield {"judge": judge, **({} if source is None else {"data": source}), **values}


def _spelled(option: str) -> str:
    """An option of `wellcond evaluate`, as a config's `along` has it."""
    return "JUDGE=SOURCE" if option == "data" else f"--along.{option}"


@contextmanager
def untouched(device: torch.device) -> Iterator[None]:
    """torch's generators as before; kernels that are not deterministic are allowed inside."""
    modes = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.use_deterministic_algorithms(modes[0] and device.type == "cpu", warn_only=modes[1])
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(modes[0], warn_only=modes[1])


def headlines(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The number that stands for each judge, as the line of an epoch names it; of two sources the first."""
    found: dict[str, float] = {}
    for row in rows:
        number = next((row[name] for judge, name in TITLES if judge == row["judge"] and name in row), None)
        if number is not None:
            found.setdefault(row["judge"], number)
    return found
