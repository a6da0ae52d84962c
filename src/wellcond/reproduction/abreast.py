"""`--jobs`: several runs of a claim at once, each in a process of its own. Small models leave room on a GPU for others.

A process (`worker.py`) reads variants and seeds from its standard input, a line each, and answers with the finished
run; it keeps pictures and compiled code for its next one. Several GPUs are dealt out in turns. The results file is
written by the process that asked, in the order in which runs end.

A worker whose standard input ends saves the run that it is at, and ends, too: so it is after a signal, after a mistake
in another run, and where this process was killed. The same command then goes on.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config import ReproduceConfig, to_json
from ..stopping import INTERRUPTED, REQUEUE, requeued
from .claim import Run
from .portions import Key


def measured(
    config: ReproduceConfig, missing: Iterable[Key], allows: Callable[[Key], bool]
) -> Iterator[tuple[Key, Run]]:
    """The runs that are missing, at most `config.jobs` at once, up to the first that is not allowed."""
    waiting = itertools.takewhile(allows, missing)
    with requeued(), Workers(config) as workers:
        running: dict[Future[Run], Key] = {}
        while True:
            for key in itertools.islice(waiting, config.jobs - len(running)):
                running[workers.begin(key)] = key
            if not running:
                return
            done = wait(running, return_when=FIRST_COMPLETED).done
            for future in sorted(done, key=lambda run: run.exception() is not None):  # a mistake ends the others
                yield running.pop(future), future.result()


class Workers:
    """Processes that come as they are needed, and end with the block."""

    def __init__(self, config: ReproduceConfig) -> None:
        self.config = config
        self.all: list[Worker] = []
        self.idle: list[Worker] = []
        self.threads = ThreadPoolExecutor(config.jobs)  # each waits for an answer

    def begin(self, key: Key) -> Future[Run]:
        if self.idle:
            worker = self.idle.pop()
        else:
            self.all.append(worker := Worker(self.config, len(self.all)))
        return self.threads.submit(self._measure, worker, key)

    def _measure(self, worker: "Worker", key: Key) -> Run:
        run = worker.measure(key)
        self.idle.append(worker)  # before its run is taken, which makes room for the next
        return run

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self.all:
            worker.leave()
        self.threads.shutdown()  # first: they may still read what is closed then
        for worker in self.all:
            worker.close()


class Worker:
    """One process, the `number`th."""

    def __init__(self, config: ReproduceConfig, number: int) -> None:
        self.words = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by `close`)
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.worker"], env=_environment(config, number),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, text=True,
        )  # fmt: skip
        self._say(to_json(config))

    def measure(self, key: Key) -> Run:
        """ValueError where the run cannot be made, SystemExit where its process was asked to stop."""
        self._say(key)
        assert self.process.stdout is not None
        answer = self.process.stdout.readline()
        if answer.endswith("\n"):
            run, mistake = json.loads(answer)
            if mistake:
                raise ValueError(mistake)
            return run
        status = self.process.wait()
        if status in (INTERRUPTED, -signal.SIGINT):
            raise SystemExit(INTERRUPTED)
        if status in (REQUEUE, -signal.SIGTERM):
            raise SystemExit(REQUEUE)
        raise ValueError(
            f"the process of {key[0]}, seed {key[1]} ended with status {status} ({self._last_words()}); the same "
            "command goes on; with fewer --jobs each has more memory"
        )

    def leave(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def close(self) -> None:
        assert self.process.stdout is not None
        self.process.wait()
        self.process.stdout.close()
        self.words.close()

    def _say(self, what: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the missing answer tells that it has ended
            print(json.dumps(what), file=self.process.stdin, flush=True)

    def _last_words(self) -> str:
        self.words.seek(0)
        lines = [line.strip() for line in self.words if line.strip()]
        return lines[-1] if lines else "without a word"


def _environment(config: ReproduceConfig, number: int) -> dict[str, str]:
    """This one's, with a GPU and a share of the cores for the `number`th of the processes."""
    import torch

    package = Path(__file__).parents[2]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(package), os.environ.get("PYTHONPATH"))))}
    # torch knows how many cores a batch system has left to this process
    found.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // config.jobs)))
    if config.device != "cpu" and (count := torch.cuda.device_count()) > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        found["CUDA_VISIBLE_DEVICES"] = visible.split(",")[number % count]
    return found
