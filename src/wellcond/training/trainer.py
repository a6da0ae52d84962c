"""One run in flight: steps, the rows they leave, checkpoints, and the way back when numbers stop being finite."""

import gc
import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.config import TrainConfig
from wellcond.evaluation.accuracy import count_correct
from wellcond.evaluation.losses import sum_losses
from wellcond.objectives import build_objective
from wellcond.optim import WeightAverage, average_weight, build_updates, learning_rate, weight_decay
from wellcond.runs import METRICS, TIMINGS, Log, Run
from wellcond.skips import load_own
from wellcond.training import checkpoints, monitoring
from wellcond.training.adopting import adopt_
from wellcond.training.along import Along, headlines
from wellcond.training.annealing import Annealing, set_gain
from wellcond.training.capture import CapturedStep, capture
from wellcond.training.contents import check_seen, seen
from wellcond.training.dropping import Drops
from wellcond.training.loading import PREFIXES
from wellcond.training.models import build_model, initial_model
from wellcond.training.processes import Processes, distribute, in_step
from wellcond.training.records import Record, Records
from wellcond.training.sharding import whole
from wellcond.training.short_attention import shorten_
from wellcond.training.state import NotFinite, Parts, collect_random, restore_random, seed_random
from wellcond.training.step import DTYPES, Step, cast_floats
from wellcond.training.supply import Supply
from wellcond.training.tally import Tally


class Diverged(ValueError):
    """Loss or gradient stayed without finite values, also after going back to the last checkpoint."""


Between = Callable[[Iterable[Any]], Iterable[Any]]  # batches handed on, with a look in between


class Trainer:
    """Holds what `state.py` saves, the two logs (rank 0 only) and the step; `loop.py` decides when what is called."""

    def __init__(
        self, config: TrainConfig, run: Run, supply: Supply, processes: Processes, along: Along | None = None
    ) -> None:
        self.config, self.run, self.supply, self.processes = config, run, supply, processes
        self.along = along  # rank 0 only
        self.images = seen(supply)
        self.num_steps = config.epochs * supply.steps_per_epoch
        model = initial_model(config, supply.fixed_images)
        if config.monitor_every:
            monitoring.check(model, supply.fixed_images(2))
        self.adopted = self._adopt_into(model)
        self.objective = build_objective(config, model).to(processes.device).train()
        if config.short_attention != "off":
            shorten_(self.objective, processes.device, asked=config.short_attention == "on")
        self.annealing = None
        if config.model.anneal_skips:
            self.annealing = Annealing(self.objective, config.model, self.num_steps, processes.device)
        self.drops = Drops(self.objective)
        called = distribute(self.objective, processes, config.parallel)
        products = "tf32" if config.precision == "bf16" else "float32"
        self.updates = build_updates(self.objective, config.optim, products=products)
        self.average = WeightAverage(self.objective) if config.ema is not None else None
        self.parts = Parts(self.objective, self.updates, self.average)
        self.called, prepare = called, supply.prepare
        if config.compile and processes.device.type == "cuda":
            self.called = torch.compile(called, dynamic=False)
            prepare = torch.compile(prepare, dynamic=False)
        self.step: Step | CapturedStep = Step(
            self.objective, self.called, prepare, self.updates, self.average, self.drops, config, processes
        )
        self.captured = False
        self.records = Records(processes.device)
        self.tally = Tally()
        self.metrics: Log | None = None  # both opened by `restore`, this one cut to where its checkpoint saw it
        self.timings: Log | None = None
        self.rolled_back_to: int | None = None
        self.saved_step: int | None = None
        self.saved_due = False  # before its end of an epoch, which a signal left to the next start

    def _adopt_into(self, model: nn.Module) -> bool:
        """Start from another run; where this one has checkpoints already, that one may be gone."""
        source = self.config.pretrained
        if source is None or (checkpoints.steps(self.run.checkpoints) and not Run(source).exists()):
            return source is None
        adopt_(model, source, self.config.model)
        return True

    # one step

    def advance(self, stop: bool) -> bool:
        """One step and what has become known of earlier ones; True where some rank wished to stop."""
        step, config = self.tally.step, self.config
        inputs = self.supply.inputs(step)
        if not self.captured:
            assert isinstance(self.step, Step)
            self.step, self.captured = capture(self.step, inputs, config.graph)[0], True
        self._turn_skips()
        self._set_numbers(step)
        numbers = self.step(
            inputs,
            lr=self.learning_rate(step),
            average_weight=0.0 if config.ema is None else average_weight(step, config.ema),
            stop=stop,
            weight_decay=weight_decay(step, config.optim, num_steps=self.num_steps),
        )
        self.tally.step += 1
        return self.account(self.records.put(step, numbers))

    def learning_rate(self, step: int) -> float:
        config = self.config
        return learning_rate(step, config.optim, steps_per_epoch=self.supply.steps_per_epoch, epochs=config.epochs)

    def _turn_skips(self) -> float | None:
        """Set the gain of annealed skips to that of now."""
        if self.annealing is None:
            return None
        self.annealing.turn(self.tally.step)
        return self.annealing.at(self.tally.step)

    def _set_numbers(self, step: int) -> None:
        """The objective's own schedules, by kernels that carry the number."""
        shape = {"steps_per_epoch": self.supply.steps_per_epoch, "epochs": self.config.epochs}
        for name, value in self.objective.numbers(step, **shape).items():
            self.objective.get_buffer(name).fill_(value)

    def account(self, due: list[Record]) -> bool:
        """Count, keep what was skipped, write rows."""
        for record in due:
            self.tally.add(record)
            done = record.step + 1
            if record.bad:
                self._keep_for_replay(record)
            if done % self.config.log_every == 0 or done == self.num_steps:
                means = self.tally.close_window(self.step.metric_names)
                lr = self.learning_rate(record.step)
                self.write("train", done, {"lr": lr, **means, "skipped": self.tally.skipped})
        return any(record.stop for record in due)

    def write(self, kind: str, done: int, row: dict[str, Any]) -> None:
        """A row of metrics.jsonl: no clock in it."""
        if self.metrics is not None:
            epoch = (done - 1) // self.supply.steps_per_epoch + 1
            self.metrics.append({"kind": kind, "step": done, "epoch": epoch, **row})
            self.metrics.flush()

    def event(self, what: str, **numbers: Any) -> None:
        """A row of timings.jsonl."""
        if self.timings is not None:
            self.timings.append({"event": what, "step": self.tally.step, **numbers})
            self.timings.flush()

    def _keep_for_replay(self, record: Record) -> None:
        indices = self.supply.indices(record.step).tolist()
        epoch = record.step // self.supply.steps_per_epoch
        loss, norm = repr(record.loss), repr(record.grad_norm)
        if self.processes.is_main:
            batch = {"step": record.step, "epoch": epoch, "loss": loss, "grad_norm": norm, "indices": indices}
            path = self.run.keep_for_replay(record.step, batch)
            warnings.warn(
                f"step {record.step} skipped: loss {loss}, gradient norm {norm}; its batch is in {str(path)!r}",
                stacklevel=2,
            )

    # after an epoch

    def evaluate(self, between: Between = iter) -> dict[str, float]:
        """Numbers over the validation set, of the averaged weights where there are any.

        With labels top-1 and top-5 in percent, without them the objective's own loss. `between` hands on the batches.
        """
        self._turn_skips()
        self._set_numbers(self.tally.step - 1)  # those of the last step, which may have been made before a restart
        with self.average.applied() if self.average is not None else nullcontext():
            self.tally.evaluation, images = (
                self._accuracy(between) if self.config.objective == "supervised" else self._validation_loss(between)
            )
        self.write("eval", self.tally.step, {**self.tally.evaluation, "images": images})
        return self.tally.evaluation

    def _accuracy(self, between: Between) -> tuple[dict[str, float], int]:
        counts = count_correct(self.objective, between(self._validation()), forward=self._forward)
        top1, top5, images = self.processes.sum_(counts).tolist()
        return {"top1": 100 * top1 / images, "top5": 100 * top5 / images}, images

    def _validation_loss(self, between: Between) -> tuple[dict[str, float], int]:
        batches = ((images, targets, True) for images, targets in between(self.supply.validation()))
        if self.sharded:
            images, targets = next(iter(self.supply.validation()))
            batches = in_step(batches, self.processes, (images[:1], targets[:1], False))
        total, images = self.processes.sum_(sum_losses(self.objective, batches, forward=self._forward)).tolist()
        return {"val_loss": total / images}, int(images)

    def _forward(self, images: Tensor, *targets: Tensor) -> Tensor:
        """The objective's call in evaluation, in the precision of training."""
        step = self.step.step if isinstance(self.step, CapturedStep) else self.step
        alone = self.processes.world_size == 1  # DDP's wrapper is for training
        # a short last batch would be compiled for its own sake
        full = len(images) == self.config.batch_size // (self.processes.world_size * self.config.accumulate)
        called = self.called if alone and (full or not targets) else self.objective
        with step.autocast():
            return called(images.to(step.dtype), *(cast_floats(t, step.dtype) for t in targets))

    def _validation(self) -> Iterable[tuple[Tensor, Tensor]]:
        batches = self.supply.validation()
        if not self.sharded:
            return batches
        images = self.supply.fixed_images(1)
        return in_step(batches, self.processes, (images, torch.full((1,), -1, device=images.device)))

    @property
    def sharded(self) -> bool:
        return self.config.parallel == "fsdp" and self.processes.world_size > 1

    def monitor(self) -> tuple[float | None, str | None]:
        """Rows of the conditioning; mean log κ and a warning of collapse."""
        model = self._plain("model")
        images = self.supply.fixed_images(self.config.monitor_images)
        if not self.processes.is_main:
            return None, None
        rows = monitoring.measure(model, images.to(DTYPES[self.config.precision]))
        for row in rows:
            self.write("probe", self.tally.step, asdict(row))
        return monitoring.mean_log_kappa(rows), monitoring.collapse(rows)

    def judge(self) -> dict[str, float]:
        """Rows of the judges along the way, by rank 0 while the others wait; the number that stands for each."""
        with self.average.applied() if self.average is not None else nullcontext():
            model = self._plain(PREFIXES[self.config.objective].removesuffix("."))
            rows = [] if self.along is None else list(self.along.look(model.to(self.processes.device)))
        for row in rows:
            self.write("judge", self.tally.step, row)
        return headlines(rows)

    def _plain(self, name: str) -> nn.Module:
        """A module as who looks at it wants it: with the skips of now, and whole where it is sharded (a copy then)."""
        gain = self._turn_skips()
        model = self.objective.get_submodule(name)
        if self.sharded:
            tensors = {key: whole(t).cpu() for key, t in model.state_dict().items()}
            model = build_model(self.config.model, initialized=False).to(DTYPES[self.config.precision])
            if gain is not None:
                set_gain(model, self.config.model, gain)
            load_own(model, tensors)
        return model

    # checkpoints

    def save(self) -> None:
        """A checkpoint of this step; NotFinite, on every rank, where a tensor is not."""
        self.account(self.records.drain())
        if (self.saved_step, self.saved_due) == (self.tally.step, self.tally.epoch_end_due):
            return
        tensors = self.parts.collect(self.processes)
        tensors["random"] = collect_random(self.processes)
        if self.metrics is not None:
            self._check_still_there()
            state = {
                "format": 1,
                "tally": self.tally.to_json(),
                "world_size": self.processes.world_size,
                "metrics_bytes": self.metrics.sync(),
                "rolled_back_to": self.rolled_back_to,
                **self.images,
            }
            if self.annealing is not None:
                state["skip_gain"] = self.annealing.at(self.tally.step)
            about = {"cut": self.config.model.cut, "activation": self.config.model.activation}
            checkpoints.save(self.run.checkpoints, self.tally.step, tensors, state, keep=self.config.keep, about=about)
        self.saved_step, self.saved_due = self.tally.step, self.tally.epoch_end_due
        self.processes.wait()

    def _check_still_there(self) -> None:
        """Who saved on would fill a folder that is no run, and be told so when all epochs are done."""
        if not self.run.exists():
            raise ValueError(
                f"{str(self.run.path)!r} is no run any more at step {self.tally.step}: it was moved or deleted; bring "
                "it back, or name its new place with --out, and the same command continues"
            )

    def restore(self, *, beginning: bool = True) -> bool:
        """Continue from the newest whole checkpoint; False where there is none, and the beginning if that may be."""
        log = self.run.path / METRICS
        if self.processes.is_main:
            checkpoints.put_back(self.run.checkpoints)
        found = checkpoints.newest_whole(self.run.checkpoints, log) if self.processes.is_main else None
        step = self.processes.agree(-1 if found is None else found)
        self.records = Records(self.processes.device)
        if step < 0:
            if not beginning:
                return False
            if not self.adopted:
                raise ValueError(f"pretrained is {self.config.pretrained!r}, which is no run any more; bring it back")
            seed_random(self.processes, seed=self.config.seed, step=0)
            self._open_logs(0)
            return False
        path = self.run.checkpoints / checkpoints.name_of(step)
        state = checkpoints.read_state(path)
        images = seen(self.supply)
        check_seen(state, images, self.run, self.config)
        # those it began with, of which these may be a copy: it stays the same run to the bit
        self.images = {name: state.get(name, here) for name, here in images.items()}
        self.parts.restore({file: checkpoints.read_tensors(path, file) for file in self.parts.live()})
        restore_random(checkpoints.read_tensors(path, "random"), self.processes, seed=self.config.seed, step=step)
        self.tally = Tally.from_json(state["tally"])
        self.rolled_back_to = state["rolled_back_to"]
        self.saved_step, self.saved_due = step, self.tally.epoch_end_due
        self._open_logs(state["metrics_bytes"])
        return True

    def _open_logs(self, length: int) -> None:
        if self.processes.is_main:
            if self.metrics is not None:
                self.metrics.close()
            self.metrics = Log(self.run.path / METRICS, length=length)
            self.timings = self.timings or Log(self.run.path / TIMINGS)

    def roll_back(self, why: str) -> None:
        """Once from each checkpoint; Diverged the second time."""
        base, at = self.saved_step, self.tally.step
        if base == self.rolled_back_to:
            raise self._diverged(f"{why} (step {at}), again after going back to step {base}")
        self.event("rollback", to=base, why=why)
        warnings.warn(f"{why} (step {at}); going back to step {base} once", stacklevel=2)
        if not self.restore(beginning=False):
            raise self._diverged(f"{why} (step {at}), and there is no whole checkpoint to go back to")
        self.rolled_back_to = base

    def check_learned(self) -> None:
        """Diverged where the run was over before its bad steps were too many: not one of its steps was taken."""
        if self.tally.skipped and self.tally.skipped == self.tally.step:
            raise self._diverged("no step had a finite loss and gradient")

    def _diverged(self, why: str) -> Diverged:
        return Diverged(
            f"{why}; the batches are in {str(self.run.path / 'replay')!r}: lower optim.lr, clip the gradient "
            "(optim.clip 1), or look at these images"
        )

    def close(self) -> None:
        """Close the logs and let go of DDP: one that outlives its process group may wait for ever on its way out."""
        for log in (self.metrics, self.timings):
            if log is not None:
                log.close()
        del self.step, self.called
        if self.processes.world_size > 1:
            gc.collect()


__all__ = ["Diverged", "NotFinite", "Trainer"]
