"""The bar while a model is measured: images done, images a second, time left. Quiet where nobody watches. Floor 8."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..watching import watched


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:.1f} images/s" if speed else "", style="progress.data.speed")


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr that goes away when it is done; call what it gives with the number of images done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not watched(console)) as bar:
        task = bar.add_task(f"measuring {name}", total=total)

        def done(count: int) -> None:
            bar.update(task, completed=count)
            if count >= total:  # the images are through; what follows has no count
                bar.update(task, description="skips, Jacobians, advice")

        yield done
