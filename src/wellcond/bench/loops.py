"""Parts vit-tiny-32, vit-tiny-64 and vit-base-224 of the training benchmark: loops of recipes, in turns.

First the bare step on a constant batch, the loop and, where a set would not fit on the device, the loop with streamed
pictures; then the loop without graying and with either kind. Each model is compiled once and stays alive as long as it
is needed: compiling takes most of the time of this benchmark.
"""

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters

from .. import recipes
from ..config import GrayingConfig, TrainConfig
from ..data.cache import Cache
from ..training.feeding import ImageSupply
from ..training.processes import Processes, process_group
from ..training.trainer import Trainer
from .accuracy import Accuracy
from .loop import ConstantSupply, bare_stretch, beside, inner, open_trainer, whole_stretch
from .stock import images_of, open_stock
from .timing import HostClock, Timing, interleave, timing_row
from .variants import Variant


@dataclass(frozen=True, kw_only=True)
class Work:
    """A recipe with the batch of one GPU, and how long it is measured."""

    title: str
    recipe: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    cifar: bool = False  # which of the two sets
    count: int  # pictures
    side: int | None = None  # of the cache; None: as the pictures are
    steps: int  # of a stretch, which writes one row of metrics
    rounds: int
    streamed: bool = False
    grayed: bool = True
    num_error_images: int = 32


WORKS = {
    "vit-tiny-32": Work(
        title="ViT-Tiny/4, 32 px, batch 512", recipe="cifar10-vit-tiny", cifar=True, count=50_000,
        steps=50, rounds=12, grayed=False,
    ),
    "vit-tiny-64": Work(
        title="ViT-Tiny/8, 64 px, batch 1024", recipe="tiny-imagenet-vit-tiny", changes={"batch_size": 1024},
        count=20_000, steps=50, rounds=10,
    ),
    "vit-base-224": Work(
        title="ViT-B/16, 224 px, batch 256, from a uint8 cache of 256 px", recipe="imagenet-vit-b",
        changes={"batch_size": 256}, count=3_072, side=256, steps=24, rounds=5, streamed=True, num_error_images=8,
    ),
}  # fmt: skip
STREAM_WORKERS = 4  # they read workers + 2 batches ahead: few beside the steps of a stretch
SMALL = (("embed_dim", 48), ("depth", 1), ("num_heads", 3))
QUICK = {"steps": 2, "rounds": 2, "count": 24, "num_error_images": 4}


def work_of(part: str, *, quick: bool) -> Work:
    work = WORKS[part]
    if not quick:
        return work
    side = None if work.side is None else 72
    return replace(work, title=f"a very small ViT in place of {work.title}", side=side, **QUICK)


def config_of(work: Work, *, device: str, quick: bool) -> TrainConfig:
    """The recipe's own config: what is timed is what `wellcond train` runs."""
    changes: dict[str, Any] = {**work.changes, "device": device, "log_every": work.steps}
    if quick:
        changes |= {"batch_size": 8, "model.options": SMALL, "compile": False}
        changes |= {"model.image_size": 64, "data.image_size": 64} if work.side else {}
    if device == "cpu":
        changes |= {"precision": "float32"}
    return recipes.get(work.recipe, **changes)


def measure(
    part: str, data: Path | None, *, device: str, quick: bool, folder: Path
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of one workload, and its settings; `folder` is for what does not stay."""
    work = work_of(part, quick=quick)
    config = config_of(work, device=device, quick=quick)
    began = time.perf_counter()
    size = config.data.image_size
    cache = open_stock(data, count=work.count, image_size=size, side=work.side, folder=folder / "cache")
    print(f"  {len(cache)} pictures of {cache.meta.side} px decoded ({time.perf_counter() - began:.1f} s)", flush=True)
    torch.compiler.reset()  # else the models of an earlier part would count as recompilations
    with (
        torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True),
        process_group(device, config.batch_size, 1) as processes,
    ):
        rows = Loops(work, config, cache, processes, folder / part).rows()
    settings = {"images": cache.meta.title, "num_distinct_images": len(cache), "cache_px": cache.meta.side}
    return rows, settings | {"work": asdict(work), "batch": config.batch_size}


class Loops:
    """The trainers of one workload; what cannot be built is a row that says why."""

    def __init__(self, work: Work, config: TrainConfig, cache: Cache, processes: Processes, folder: Path) -> None:
        self.work, self.config, self.cache, self.folder = work, config, cache, folder
        self.processes, self.device = processes, processes.device
        self.images = images_of(cache, self.device)
        self.failures: dict[str, str] = {}

    def rows(self) -> list[dict[str, Any]]:
        plain = self._built("loop", lambda: self._trainer(self.config, "loop"), needed=True)
        assert plain is not None
        rows = self._against_bare(plain)
        self._forget()
        if self.work.grayed:
            rows += self._against_ungrayed(plain)
        plain.close()
        del plain
        self._forget()
        return rows

    def _against_bare(self, plain: Trainer) -> list[dict[str, Any]]:
        steps = self.work.steps
        bare = self._built("constant batch", lambda: beside(plain, ConstantSupply(plain.supply)), needed=True)
        assert bare is not None
        calls = {"constant batch": bare_stretch(bare, steps), "loop": whole_stretch(plain, steps)}
        streamed = self._built("loop, streamed", lambda: self._streamed(plain)) if self.work.streamed else None
        if streamed is not None:
            calls["loop, streamed"] = whole_stretch(streamed, steps)
        timings = self._timed(calls)
        if streamed is not None:
            streamed.supply.close()
        rows = [self._row(name, timings[name], timings["constant batch"]) for name in calls]
        for row in rows:
            row["step"] = plain.step.reason
            if row["name"] != "constant batch":
                row["share"] = 1 / row["ratio"]
        return rows + self._failed()

    def _against_ungrayed(self, plain: Trainer) -> list[dict[str, Any]]:
        variants = {f"loop, {v.name}": v for v in (Variant(method="dct"), Variant(method="svd"))}
        built = {name: self._built(name, lambda v=v, n=name: self._grayed(v, n)) for name, v in variants.items()}
        trainers = {"loop, not grayed": plain} | {name: t for name, t in built.items() if t is not None}
        calls = {name: whole_stretch(trainer, self.work.steps) for name, trainer in trainers.items()}
        timings = self._timed(calls)
        rows = [self._row(name, timing, timings["loop, not grayed"]) for name, timing in timings.items()]
        accuracy = self._accuracy(plain)
        for row in rows[1:]:
            variant, trainer = variants[row["name"]], trainers[row["name"]]
            row |= self._errors(accuracy, variant, trainer)
        for trainer in trainers.values():
            if trainer is not plain:
                trainer.close()
        failed = self._failed()
        for row in failed:
            row |= {"method": variants[row["name"]].method}
        return rows + failed

    # trainers

    def _trainer(self, config: TrainConfig, name: str) -> Trainer:
        """Compiled and captured by a first step."""
        supply = ImageSupply(config, self.processes, images=self.images)
        trainer = open_trainer(config, supply, self.processes, self.folder / name.replace(" ", "-").replace(",", ""))
        if config.compile and self.device.type == "cuda":
            self._compile(trainer)
        trainer.advance(stop=False)
        return trainer

    def _compile(self, trainer: Trainer) -> None:
        """A model that ran the code compiled for another one would be measured for nothing."""
        images, targets = trainer.supply.prepare(trainer.supply.inputs(0))
        before = counters["stats"]["unique_graphs"]
        with inner(trainer).autocast():
            trainer.called(images, targets)
        if counters["stats"]["unique_graphs"] == before:
            raise RuntimeError("the model runs code that was compiled for another one")

    def _streamed(self, plain: Trainer) -> Trainer:
        images = images_of(self.cache, self.device, resident=False, workers=STREAM_WORKERS)
        streamed = beside(plain, ImageSupply(self.config, self.processes, images=images))
        streamed.advance(stop=False)
        return streamed

    def _grayed(self, variant: Variant, name: str) -> Trainer:
        assert variant.method == "dct" or variant.method == "svd"
        assert variant.epsilon is not None
        graying = GrayingConfig(method=variant.method, epsilon=variant.epsilon, precision="fast")
        return self._trainer(replace(self.config, model=replace(self.config.model, graying=graying)), name)

    def _built(self, name: str, build: Callable[[], Trainer], needed: bool = False) -> Trainer | None:
        began, built = time.perf_counter(), None
        try:
            built = build()
        except Exception as error:
            if needed:
                raise
            self.failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
        print(f"  {name}: {self.failures.get(name, 'built')} ({time.perf_counter() - began:.1f} s)", flush=True)
        return built

    def _forget(self) -> None:
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # rows

    def _timed(self, calls: Mapping[str, Callable[[], None]]) -> dict[str, Timing]:
        print(f"  timing {', '.join(calls)}: {self.work.rounds} rounds of {self.work.steps} steps", flush=True)
        return interleave(calls, rounds=self.work.rounds, warmup=1, clock=HostClock())

    def _row(self, name: str, timing: Timing, baseline: Timing) -> dict[str, Any]:
        """Times of a step, not of a stretch."""
        mine, base = (_per_step(t, self.work.steps) for t in (timing, baseline))
        row = timing_row(mine, base) | {"name": name}
        return row | {"images_per_s": 1e3 * self.config.batch_size / row["median_ms"]}

    def _failed(self) -> list[dict[str, Any]]:
        rows = [{"name": name, "failed": why} for name, why in self.failures.items()]
        self.failures = {}
        return rows

    def _accuracy(self, plain: Trainer) -> Accuracy:
        images, _ = plain.supply.prepare(plain.supply.inputs(0))
        patch = self.config.model.patch_size or 16
        return Accuracy(images, patch_size=patch, count=self.work.num_error_images, autocast=inner(plain).autocast)

    def _errors(self, accuracy: Accuracy, variant: Variant, trainer: Trainer) -> dict[str, Any]:
        """Of the augmented batch that training sees, grayed by itself and inside the model."""
        from .training import graying_module

        errors = accuracy.of_tokens(variant, graying_module(variant, accuracy.patch_size))
        errors = errors | {"meets_error": variant.meets_error(errors)}
        model = trainer.objective.get_submodule("model")
        words = {"method": variant.method, "epsilon": variant.epsilon, "precision": variant.precision}
        return words | errors | accuracy.of_embedding(variant, model)


def _per_step(timing: Timing, steps: int) -> Timing:
    return replace(timing, samples=[milliseconds / steps for milliseconds in timing.samples])
