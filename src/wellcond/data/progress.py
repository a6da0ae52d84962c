"""A bar for what takes minutes: how many, how fast, how long still. Floor 6.

On standard error, so that the output of a command stays clean; where that is no terminal nothing moves.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..watching import watched

Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


@contextmanager
def bar(title: str, count: int) -> Iterator[Callable[[int], None]]:
    """`with bar("decoding", 100) as advance: advance(1)`."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not watched(console)) as shown:
        task = shown.add_task(title, total=count)
        yield lambda done: shown.advance(task, done)


def silent(title: str, count: int) -> AbstractContextManager[Callable[[int], None]]:
    """No bar, for work inside something that has one."""
    return nullcontext(lambda done: None)
