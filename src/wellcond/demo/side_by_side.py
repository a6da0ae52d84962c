"""Several trainings at once, each in a process of its own with one thread.

A step of a model this small gets little faster with two threads, and far slower where they wait for each other on a
busy machine; two runs on two cores do not. The bars read the run directories, as anybody may.
"""

import multiprocessing
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from wellcond.config import TrainConfig
from wellcond.runs import Run

AT_ONCE = 2


@dataclass(frozen=True, kw_only=True)
class Job:
    config: TrainConfig
    out: Path
    num_steps: int


def train_all(jobs: Mapping[str, Job], console: Console) -> None:
    """Train each job in its run directory; returns when all are done. An error of one ends all of them."""
    workers = min(AT_ONCE, os.cpu_count() or 1, len(jobs))
    pool = open_pool(workers)
    try:
        with _bars(jobs, console) as bars:
            waiting = {pool.submit(_train, job): name for name, job in jobs.items()}
            while waiting:
                done, _ = wait(waiting, timeout=1.0, return_when="FIRST_COMPLETED")
                bars.update()
                for future in done:
                    _tell(waiting.pop(future), future, jobs, console)
    finally:
        pool.shutdown(cancel_futures=True)


def open_pool(workers: int) -> ProcessPoolExecutor:
    """Processes that end with this one, however it ends: left alone they would keep the run directories for ever."""
    spawn = multiprocessing.get_context("spawn")  # torch's threads do not fork
    return ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _train(job: Job) -> list[str]:
    """In a process of its own: its warnings, each once."""
    import torch

    from wellcond.training import train

    torch.set_num_threads(1)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        train(job.config, job.out)
    return list(dict.fromkeys(str(w.message) for w in heard if issubclass(w.category, UserWarning)))


def _tell(name: str, future: Future[list[str]], jobs: Mapping[str, Job], console: Console) -> None:
    for warning in future.result():
        console.print(f"{name}: {warning}", style="yellow", markup=False, soft_wrap=True)
    if not console.is_terminal:
        _, top1 = _seen(jobs[name].out)
        console.print(f"{name}: done, {top1}", markup=False)


class _Bars:
    def __init__(self, shown: Progress, jobs: Mapping[str, Job]) -> None:
        self.shown, self.jobs = shown, jobs
        self.tasks: dict[str, TaskID] = {
            name: shown.add_task(name, total=job.num_steps, said="") for name, job in jobs.items()
        }

    def update(self) -> None:
        for name, job in self.jobs.items():
            step, said = _seen(job.out)
            self.shown.update(self.tasks[name], completed=step, said=said)


@contextmanager
def _bars(jobs: Mapping[str, Job], console: Console) -> Iterator[_Bars]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    said = TextColumn("{task.fields[said]}")
    with Progress(*columns, said, console=console, disable=not console.is_terminal) as shown:
        yield _Bars(shown, jobs)


def _seen(out: Path) -> tuple[int, str]:
    """How far a run is, and what it reached."""
    step, top1 = 0, ""
    for row in Run(out).rows():
        step = max(step, row["step"])
        top1 = f"top-1 {row['top1']:.1f} %" if row["kind"] == "eval" else top1
    return step, top1
