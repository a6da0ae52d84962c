"""What a run says while it runs: a progress bar on a terminal, one line per epoch into a pipe, TensorBoard if asked."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wellcond.extras import install
from wellcond.watching import watched


class Teller:
    """The voice of rank 0; with `console=None` it is silent."""

    def __init__(self, console: Console | None, *, num_steps: int, done: int, batch_size: int, name: str) -> None:
        self.console, self.batch_size = console, batch_size
        self.mark, self.mark_step = time.perf_counter(), done
        self.kappa: float | None = None
        self.rate = 0.0
        self.bar: Progress | None = None
        if console is not None and watched(console):
            columns = (
                TextColumn(name),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[said]}"),
            )
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task("", total=num_steps, completed=done, said="")
            self.bar.start()

    def step(self, done: int) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=done)

    def window(self, done: int, loss: float | None) -> None:
        """After a row of metrics: images a second since the last one, and the loss."""
        if self.bar is not None:
            said = f"{self.measure(done):,.0f} img/s  loss {loss:.4f}" if loss is not None else "loss not finite"
            said += f"  log κ {self.kappa:.2f}" if self.kappa is not None else ""
            self.bar.update(self.task, said=said)

    def measure(self, done: int) -> float:
        """Images a second since the last epoch or start."""
        seconds = time.perf_counter() - self.mark
        if done > self.mark_step and seconds > 0:
            self.rate = (done - self.mark_step) * self.batch_size / seconds
        return self.rate

    def epoch(self, number: int, epochs: int, done: int, numbers: dict[str, Any]) -> None:
        rate = self.measure(done)
        words = "  ".join(f"{name} {value:.4g}" for name, value in numbers.items() if value is not None)
        self.say(f"epoch {number}/{epochs}  {words}  {rate:,.0f} img/s")

    def restart_clock(self, done: int) -> None:
        """What came since the last epoch's end (evaluation, a checkpoint) is not training time."""
        self.mark, self.mark_step = time.perf_counter(), done

    def say(self, text: str) -> None:
        if self.console is not None:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()


def import_writer() -> Any:
    """The class of TensorBoard's writer; ValueError where the extra is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ValueError(f"tensorboard is not installed; leave it off, or {install('tensorboard')}") from None
    return SummaryWriter
