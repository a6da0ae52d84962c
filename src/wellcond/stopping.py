"""Signals that ask a run to stop, and the exit status that answers them. Floor 0: no torch.

SIGTERM and SIGUSR1 (what schedulers send before they take a machine) end with 75, EX_TEMPFAIL of sysexits.h: "try
again". torchrun restarts on it (`--max-restarts`), LSF requeues with `REQUEUE_EXIT_VALUES=75`, a Slurm script does
with `[ $? = 75 ] && scontrol requeue $SLURM_JOB_ID`. Ctrl-C ends with 130.
"""

import atexit
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

REQUEUE, INTERRUPTED = 75, 130
OF_SCHEDULERS = (signal.SIGTERM, *([signal.SIGUSR1] if hasattr(signal, "SIGUSR1") else []))
SIGNALS = (signal.SIGINT, *OF_SCHEDULERS)


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[[int, Any], Any]) -> Iterator[None]:
    """By `handler` until the end of the block; afterwards the handlers are what they were.

    In the main thread: only there Python allows handlers. In others nothing is changed.
    """
    alone = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers} if alone else {}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


@contextmanager
def requeued() -> Iterator[None]:
    """A scheduler's signal ends the process at once with `REQUEUE`: for work of which there is nothing to save."""
    if threading.current_thread() is threading.main_thread():
        atexit.register(_deaf)
    with handled(OF_SCHEDULERS, _leave):
        yield


def _leave(_number: int, _frame: Any) -> None:
    raise SystemExit(REQUEUE)


def _deaf() -> None:
    """While Python shuts down, which takes torch a while, a scheduler that asks again must not change the status."""
    for number in OF_SCHEDULERS:
        signal.signal(number, signal.SIG_IGN)
