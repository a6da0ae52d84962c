"""The loop's answer to signals that ask it to stop: the step is finished, a checkpoint saved, the exit status says so.

Which signals, and which status, is in `wellcond.stopping`. A second Ctrl-C ends at once. While images are still being
decoded there is nothing to save: any of these signals ends at once.
"""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from wellcond.stopping import INTERRUPTED, REQUEUE, SIGNALS, handled

Batch = TypeVar("Batch")


class Stopped(SystemExit):
    """A run that was asked to stop and has saved what there was; `code` is the exit status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code)
        self.message = message

    def __str__(self) -> str:
        return self.message


class Interrupted(Exception):
    """Asked to stop inside an evaluation, of which nothing is written yet: the next start makes it."""


class StopWish:
    """Whether somebody asked to stop, and the exit status that answers."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.nothing_to_save = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, a signal raises `Stopped` where the run is."""
        self.nothing_to_save = True
        try:
            yield
        finally:
            self.nothing_to_save = False

    def between(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of an evaluation, which may last longer than a scheduler waits."""
        for batch in batches:
            if self:
                raise Interrupted
            yield batch

    def __bool__(self) -> bool:
        return self.code is not None

    def _hear(self, number: int, _frame: Any) -> None:
        if number == signal.SIGINT and self.code == INTERRUPTED:
            raise KeyboardInterrupt
        self.code = INTERRUPTED if number == signal.SIGINT else REQUEUE
        if self.nothing_to_save:
            self.nothing_to_save = False  # once: what follows is clearing up
            raise Stopped(self.code, "stopped before the images were ready; the same command begins again")


@contextmanager
def stop_signals() -> Iterator[StopWish]:
    """Listen until the end of the block."""
    wish = StopWish()
    with handled(SIGNALS, wish._hear):
        yield wish
