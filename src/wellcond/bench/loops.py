"""Parts vit-tiny-32, vit-tiny-64, vit-base-224 and dino-64 of the training benchmark: loops of recipes, in turns.

First the bare step on a constant batch, the loop and, where a set would not fit on the device, the loop with streamed
pictures; then the loop with attention kernels of our own; then without graying and with either kind. Each model is
compiled once and lives as long as it is needed: compiling takes most of the time of this benchmark.
"""

import gc
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from ..config import GrayingConfig, TrainConfig
from ..data.cache import Cache
from ..training.feeding import ImageSupply
from ..training.processes import Processes, process_group
from ..training.trainer import Trainer
from .accuracy import Accuracy
from .loop import ConstantSupply, bare_stretch, beside, inner, open_trainer, whole_stretch
from .recipe_loops import Work, config_of, work_of
from .stock import images_of, open_stock
from .timing import HostClock, interleave, timing_row
from .training import graying_module
from .variants import Variant

BARE, LOOP, STREAMED, UNGRAYED = "constant batch", "loop", "loop, streamed", "loop, not grayed"
TORCHS, SHORT = "loop, torch's attention", "loop, short attention"
GRAYED = {f"loop, {v.name}": v for v in (Variant(method="dct"), Variant(method="svd"))}
STREAM_WORKERS = 4  # they read workers + 2 batches ahead: few beside the steps of a stretch

Row = dict[str, Any]
Result = TypeVar("Result")


def measure(part: str, data: Path | None, *, device: str, quick: bool, folder: Path) -> tuple[list[Row], Row]:
    """Rows of one workload, and its settings; `folder` is for what does not stay."""
    work = work_of(part, quick=quick)
    config = config_of(work, device=device, quick=quick)
    began, size = time.perf_counter(), config.data.image_size
    cache = open_stock(data, count=work.count, image_size=size, side=work.side, folder=folder / "cache")
    print(f"  {len(cache)} pictures of {cache.meta.side} px decoded ({time.perf_counter() - began:.1f} s)", flush=True)
    torch.compiler.reset()  # else the models of an earlier part would count as recompilations
    with (
        torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True),
        process_group(device, config.batch_size, 1) as processes,
    ):
        forget(processes.device)  # of a part that failed
        rows = Loops(work, config, cache, processes, folder / part).rows()
    settings = {"images": cache.meta.title, "num_distinct_images": len(cache), "cache_px": cache.meta.side}
    return rows, settings | {"work": asdict(work), "batch": config.batch_size}


class Loops:
    """The trainers of one workload. What fails is a row that says why, and the rest is measured."""

    def __init__(self, work: Work, config: TrainConfig, cache: Cache, processes: Processes, folder: Path) -> None:
        self.work, self.config, self.cache, self.folder = work, config, cache, folder
        self.processes, self.device = processes, processes.device
        self.images = images_of(cache, self.device)
        self.failures: dict[str, str] = {}

    def rows(self) -> list[Row]:
        began = time.perf_counter()
        plain = self._trainer(self.config, LOOP)
        print(f"  {LOOP}: built, {plain.step.reason} ({time.perf_counter() - began:.1f} s)", flush=True)
        rows = self._attempt(LOOP, lambda: self._against_bare(plain)) or []
        forget(self.device)
        if self.work.short:
            rows += self._attempt(SHORT, lambda: self._against_torchs(plain)) or []
        if self.work.grayed:
            rows += self._attempt(UNGRAYED, lambda: self._against_ungrayed(plain)) or []
        plain.close()
        return rows + self._failed()

    def _failed(self) -> list[Row]:
        """Rows that miss the bars they were for."""
        why = dict(self.failures)
        if UNGRAYED in why:
            why = dict.fromkeys(GRAYED, why[UNGRAYED]) | why
        return [{"name": name, "failed": reason, **_kind(name)} for name, reason in why.items()]

    def _against_bare(self, plain: Trainer) -> list[Row]:
        steps = self.work.steps
        trainers = {BARE: beside(plain, ConstantSupply(plain.supply)), LOOP: plain}
        calls = {BARE: bare_stretch(trainers[BARE], steps), LOOP: whole_stretch(plain, steps)}
        streamed = self._attempt(STREAMED, lambda: self._streamed(plain)) if self.work.streamed else None
        if streamed is not None:
            trainers[STREAMED], calls[STREAMED] = streamed, whole_stretch(streamed, steps)
        rows = self._timed(calls, trainers)
        for row in rows[1:]:
            row["share"] = 1 / row["ratio"]
        if streamed is not None:
            streamed.supply.close()
        return rows

    def _against_torchs(self, plain: Trainer) -> list[Row]:
        torchs = self._trainer(replace(self.config, short_attention="off"), TORCHS)
        trainers = {TORCHS: torchs, SHORT: plain}
        rows = self._timed({name: whole_stretch(t, self.work.steps) for name, t in trainers.items()}, trainers)
        torchs.close()
        return rows

    def _against_ungrayed(self, plain: Trainer) -> list[Row]:
        trainers = {UNGRAYED: plain}
        for name, variant in GRAYED.items():
            grayed = self._attempt(name, lambda v=variant, n=name: self._grayed(v, n))
            if grayed is not None:
                trainers[name] = grayed
        calls = {name: whole_stretch(trainer, self.work.steps) for name, trainer in trainers.items()}
        rows = self._timed(calls, trainers)
        accuracy = self._accuracy(plain)
        for row in rows[1:]:
            variant, trainer = GRAYED[row["name"]], trainers[row["name"]]
            row |= {"epsilon": variant.epsilon, "precision": variant.precision}
            errors = self._attempt(f"{row['name']}, errors", lambda v=variant, t=trainer: _errors(accuracy, v, t))
            row |= errors or {}  # a time that was paid for is kept without them
            trainer.close()
        return rows

    # trainers

    def _trainer(self, config: TrainConfig, name: str) -> Trainer:
        """Compiled and captured by a first step."""
        supply = ImageSupply(config, self.processes, images=self.images)
        trainer = open_trainer(config, supply, self.processes, self.folder / name.replace(", ", "-").replace(" ", "-"))
        if config.compile and self.device.type == "cuda":
            _compile(trainer)
        trainer.advance(stop=False)
        return trainer

    def _streamed(self, plain: Trainer) -> Trainer:
        images = images_of(self.cache, self.device, resident=False, workers=STREAM_WORKERS)
        streamed = beside(plain, ImageSupply(self.config, self.processes, images=images))
        streamed.advance(stop=False)
        return streamed

    def _grayed(self, variant: Variant, name: str) -> Trainer:
        method, epsilon = variant.method, variant.epsilon
        graying = GrayingConfig(method=method, epsilon=epsilon, precision=variant.precision)  # type: ignore[arg-type]
        return self._trainer(replace(self.config, model=replace(self.config.model, graying=graying)), name)

    def _attempt(self, name: str, call: Callable[[], Result]) -> Result | None:
        """What the call gives; None, and a failure of that name, where it raises."""
        began = time.perf_counter()
        try:
            return call()
        except Exception as error:
            traceback.print_exc()
            self.failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            return None
        finally:
            print(f"  {name}: {self.failures.get(name, 'done')} ({time.perf_counter() - began:.1f} s)", flush=True)

    # rows

    def _timed(self, calls: Mapping[str, Callable[[], None]], trainers: Mapping[str, Trainer]) -> list[Row]:
        """Times of a step, against those of the first call."""
        print(f"  timing {' | '.join(calls)}: {self.work.rounds} rounds of {self.work.steps} steps", flush=True)
        stretches = interleave(calls, rounds=self.work.rounds, warmup=1, clock=HostClock())
        timings = [timing.times(1 / self.work.steps) for timing in stretches.values()]
        rows = [timing_row(timing, timings[0]) for timing in timings]
        for row in rows:
            row |= {"images_per_s": 1e3 * self.config.batch_size / row["median_ms"], **_kind(row["name"])}
            row["step"] = trainers[row["name"]].step.reason
        return rows

    def _accuracy(self, plain: Trainer) -> Accuracy:
        """On the augmented batch that training sees."""
        images, _ = plain.supply.prepare(plain.supply.inputs(0))
        patch_size = self.config.model.patch_size or 16
        count, autocast = self.work.num_error_images, inner(plain).autocast
        return Accuracy(images, patch_size=patch_size, count=count, autocast=autocast)


def _compile(trainer: Trainer) -> None:
    """RuntimeError where the model runs code that dynamo compiled for another: that would be measured for nothing."""
    inputs = trainer.supply.inputs(0)
    images, targets = trainer.supply.prepare(inputs)
    before = counters["stats"]["unique_graphs"]
    with inner(trainer).autocast(), trainer.drops.of(inputs.get("keys")):
        trainer.called(images, targets)
    if counters["stats"]["unique_graphs"] == before:
        raise RuntimeError("the model runs code that was compiled for another one")


def forget(device: torch.device) -> None:
    """Give back the memory of graphs that nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _kind(name: str) -> Row:
    """Which bars a row is for."""
    if name in GRAYED:
        return {"kind": "grayed", "method": GRAYED[name].method}
    if name == SHORT:
        return {"kind": "attention"}
    return {"kind": "loop" if name in (LOOP, STREAMED) else "baseline"}


def _errors(accuracy: Accuracy, variant: Variant, trainer: Trainer) -> Row:
    """Of the grayed tokens, and of the patch embedding inside the model that was timed."""
    errors = accuracy.of_tokens(variant, graying_module(variant, accuracy.patch_size))
    model = trainer.objective.get_submodule("model")
    return {**errors, "meets_error": variant.meets_error(errors), **accuracy.of_embedding(variant, model)}
