"""train: the only loop, for every objective.

Everything that decides step t is a function of (config, t) and of what a checkpoint holds, so a run that was killed and
resumed is the same run: the same weights, and the same bytes of metrics.jsonl.
"""

import time
import warnings
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from wellcond.config import TrainConfig
from wellcond.runs import METRICS, SUMMARY, Run
from wellcond.stopping import REQUEUE
from wellcond.training import checkpoints
from wellcond.training.along import Along
from wellcond.training.beginning import begin, check_classes, check_resume
from wellcond.training.capture import check_graph
from wellcond.training.contents import check_moved, follow, moved
from wellcond.training.feeding import ImageSupply
from wellcond.training.processes import Processes, process_group
from wellcond.training.signals import Interrupted, Stopped, StopWish, stop_signals
from wellcond.training.state import NotFinite
from wellcond.training.supply import OpenSupply, Supply
from wellcond.training.surroundings import surroundings
from wellcond.training.telling import Teller, import_writer
from wellcond.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a finished run says of itself; also in summary.json."""

    out: str
    steps: int
    epochs: int
    skipped: int
    loss: float | None
    top1: float | None
    top5: float | None
    val_loss: float | None = None


def train(
    config: TrainConfig, out: Path | str, *, open_supply: OpenSupply | None = None, console: Console | None = None
) -> Summary:
    """Train `config` in the run directory `out`, or continue there; returns when all epochs are done.

    A directory with another config is refused; fields in `MAY_CHANGE` may differ, and so may the place of the same
    images. A signal to stop saves and raises `Stopped`, a SystemExit with the status of stopping.py. Under torchrun
    every process calls this alike.
    """
    run = Run(out)
    check_resume(run, config)
    with ExitStack() as stack:
        processes = stack.enter_context(
            process_group(config.device, config.batch_size, config.accumulate, judging=bool(config.along.judges))
        )
        check_graph(config.graph, processes)
        if config.tensorboard:
            import_writer()
        stack.enter_context(surroundings(deterministic=config.deterministic, device=processes.device))
        wish = stack.enter_context(stop_signals())
        if processes.is_main:
            stack.enter_context(run.locked())
        done = bool(processes.agree(int(processes.is_main and _is_done(run))))
        if done and not moved(run, config):
            return _as_told(run.read_summary() or {}, run)
        with wish.at_once():
            supply = open_supply(config, processes) if open_supply else _open_images(run, config, processes, console)
        stack.callback(supply.close)
        check_moved(run, config, supply.contents)  # before anything is written
        if done:
            return _as_told(run.read_summary() or {}, run)
        check_classes(config, supply.num_classes)
        along = Along(config, processes.device) if config.along.judges and processes.is_main else None
        trainer = Trainer(config, run, supply, processes, along)
        stack.callback(trainer.close)
        if processes.is_main:  # only now: what cannot be built leaves no run behind
            begin(run, config, processes, supply)
        loop = Loop(trainer, wish, console if processes.is_main else None, stack)
        if processes.is_main:  # only now: the checkpoint, too, has found its images
            follow(run, config)
        return loop.run()


class Loop:
    """When to evaluate, monitor, save, go back and stop."""

    def __init__(self, trainer: Trainer, wish: StopWish, console: Console | None, stack: ExitStack) -> None:
        self.trainer, self.wish, self.config = trainer, wish, trainer.config
        self.start = time.time()
        resumed = trainer.restore()
        trainer.event("start", time=self.start, resumed=resumed)
        tally = trainer.tally
        self.teller = Teller(
            console,
            num_steps=trainer.num_steps,
            done=tally.step,
            batch_size=self.config.batch_size,
            name=f"{self.config.recipe} {self.config.model.name}",
        )
        stack.callback(self.teller.close)
        self.board = None
        if self.config.tensorboard and trainer.processes.is_main:
            # what it showed after this step is dropped
            self.board = import_writer()(str(trainer.run.path / "tensorboard"), purge_step=tally.step)
            stack.callback(self.board.close)
        if resumed:
            beginning = "continuing" if tally.step else "no checkpoint was saved yet: beginning again"
            self.teller.say(f"{beginning} from step {tally.step} of {trainer.num_steps}")
        self.warned: set[str] = set()

    def run(self) -> Summary:
        """To the end; a full disk ends it with words about what is safe."""
        try:
            return self._run()
        except OSError as error:
            raise checkpoints.told(error, self.trainer.run.checkpoints, self.trainer.tally.step) from None

    def _run(self) -> Summary:
        trainer = self.trainer
        if trainer.saved_step is None:
            trainer.save()  # what a rollback before the first checkpoint returns to
        while trainer.tally.step < trainer.num_steps or trainer.tally.epoch_end_due:
            try:
                stopping = self._step()
                self._maybe_save(stopping)
            except NotFinite as error:
                trainer.roll_back(f"{error} is not finite")
                continue
            if stopping:
                message = f"stopped at step {trainer.tally.step}, saved; the same command continues"
                self.teller.say(message)
                raise Stopped(self.wish.code or REQUEUE, message)
        trainer.check_learned()
        return self._finish()

    def _step(self) -> bool:
        """One step, and what follows it at the end of an epoch; True where the run is to stop."""
        trainer, tally = self.trainer, self.trainer.tally
        alone = trainer.processes.world_size == 1
        stopping = False
        if not tally.epoch_end_due:
            told = trainer.advance(bool(self.wish))
            stopping = bool(self.wish) if alone else told
            if trainer.tally.streak >= self.config.max_bad_steps:
                trainer.roll_back(f"{tally.streak} steps in a row had no finite loss or gradient")
                return stopping
            self.teller.step(tally.step)
            if tally.step % self.config.log_every == 0:
                self._log_window()
            tally.epoch_end_due = tally.step % trainer.supply.steps_per_epoch == 0
        if tally.epoch_end_due and not stopping:
            try:
                self._end_epoch()
            except Interrupted:
                return True
            to_go = tally.step < trainer.num_steps
            stopping = alone and to_go and bool(self.wish)  # several processes agree on it in their next step
        return stopping

    def _log_window(self) -> None:
        tally = self.trainer.tally
        self.teller.window(tally.step, tally.loss)
        if self.board is not None and tally.loss is not None:
            self.board.add_scalar("train/loss", tally.loss, tally.step)

    def _end_epoch(self) -> None:
        trainer, tally, config = self.trainer, self.trainer.tally, self.config
        epoch = tally.step // trainer.supply.steps_per_epoch
        last = tally.step == trainer.num_steps
        rate = self.teller.measure(tally.step)
        judged = config.along.due(epoch, last)
        if judged:
            trainer.account(trainer.records.drain())
            judged = not tally.streak  # such features are hardly finite; where they stay so, the run goes back
            if judged:
                trainer.save()  # judges take long, and the memory of a GPU may be too small for them
            else:
                why = f"the last {tally.streak} steps had no finite loss or gradient"
                warnings.warn(f"epoch {epoch}: not judged: {why}", stacklevel=2)
        numbers = self._look(epoch, last, judged)
        warning = None
        if trainer.processes.is_main:
            warning = trainer.objective.collapse(tally.means, epoch, config.epochs)
        if warning is not None and "objective" not in self.warned:
            self.warned.add("objective")
            warnings.warn(f"epoch {epoch}: {warning}", stacklevel=2)
        trainer.event("epoch", epoch=epoch, images_per_s=rate, seconds=time.time() - self.start)
        self.teller.epoch(epoch, config.epochs, tally.step, {"loss": tally.loss, **numbers})
        if self.board is not None:
            for name, value in numbers.items():
                if value is not None:
                    self.board.add_scalar(f"val/{name}", value, tally.step)
        self.teller.restart_clock(tally.step)
        tally.epoch_end_due = False

    def _look(self, epoch: int, last: bool, judged: bool) -> dict[str, float | None]:
        """Evaluation, judges along the way and monitoring, each where it is due: their numbers."""
        trainer, config = self.trainer, self.config
        numbers: dict[str, float | None] = {}
        if last or (config.evaluate_every and epoch % config.evaluate_every == 0):
            trainer.account(trainer.records.drain())
            alone = trainer.processes.world_size == 1  # several would have to agree between batches
            numbers |= trainer.evaluate(self.wish.between if alone else iter)
        if judged:
            numbers |= trainer.judge()
        if config.monitor_every and (last or epoch % config.monitor_every == 0):
            trainer.account(trainer.records.drain())
            self.teller.kappa, warning = trainer.monitor()
            numbers["log_kappa"] = self.teller.kappa
            if warning is not None and "collapse" not in self.warned:
                self.warned.add("collapse")
                warnings.warn(f"epoch {epoch}: {warning}; blocks after it can hardly tell tokens apart", stacklevel=2)
        return numbers

    def _maybe_save(self, stopping: bool) -> None:
        """Not inside a run of bad steps: a rollback must find what was before it."""
        trainer, tally = self.trainer, self.trainer.tally
        done = tally.step == trainer.num_steps
        due = tally.step % self.config.checkpoint_every == 0
        if due:
            trainer.account(trainer.records.drain())
        if stopping or done or (due and not tally.streak):
            trainer.save()

    def _finish(self) -> Summary:
        trainer, tally = self.trainer, self.trainer.tally
        summary = Summary(
            out=str(trainer.run.path),
            steps=tally.step,
            epochs=self.config.epochs,
            skipped=tally.skipped,
            loss=tally.loss,
            top1=tally.evaluation.get("top1"),
            top5=tally.evaluation.get("top5"),
            val_loss=tally.evaluation.get("val_loss"),
        )
        trainer.event("end", seconds=time.time() - self.start)
        if trainer.processes.is_main:
            trainer.run.write_summary(asdict(summary))
        return summary


def _is_done(run: Run) -> bool:
    """Is there a summary, and the checkpoint it speaks of, and its metrics.jsonl? What was damaged since is made again.

    Where there are none the numbers stand: who throws checkpoints away does not want to train again.
    """
    if run.read_summary() is None:
        return False
    steps = checkpoints.steps(run.checkpoints)
    if not steps:
        return True
    newest = run.checkpoints / checkpoints.name_of(steps[0])
    return checkpoints.find_damage(newest) is None and not checkpoints.missing_bytes(newest, run.path / METRICS)


def _as_told(done: dict[str, Any], run: Run) -> Summary:
    try:
        return Summary(**done)
    except TypeError:
        raise ValueError(
            f"{str(run.path / SUMMARY)!r} is no summary of a run; move it away, and the same command goes on"
        ) from None


def _open_images(run: Run, config: TrainConfig, processes: Processes, console: Console | None) -> Supply:
    def say(line: str) -> None:
        if console is not None and processes.is_main:
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    try:
        return ImageSupply(config, processes, say, admit=partial(check_moved, run, config))
    except Stopped as stopped:
        say(str(stopped))
        raise
