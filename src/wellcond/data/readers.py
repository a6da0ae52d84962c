"""Processes that read images ahead, from a cache into memory that they share with this one. Floor 6; imports no torch.

Each runs `reader.py` by its path: a fork would copy a process that has threads and CUDA in it, and multiprocessing's
spawn runs the user's script once more. The shared memory is a file without a name, so that /dev/shm, small in many
containers, has no say. Signals that ask a run to stop (Ctrl-C goes to the whole group, some schedulers' to every
process) are blocked in them: the run finishes its step, and ends them; without it they end with their standard input.
"""

import contextlib
import fcntl
import math
import mmap
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..stopping import SIGNALS
from .cache import Cache

PROGRAM = Path(__file__).with_name("reader.py")


class Readers:
    """At most `count` processes; `memory` has room for `slots` batches of `size` images, batch t in slot t mod `slots`.

    A process starts with its first batch, so one batch takes one of them.
    """

    def __init__(self, cache: Cache, *, count: int, slots: int, size: int) -> None:
        self.cache, self.slots, self.size = cache, slots, max(1, size)
        self._nbytes = math.prod(cache.images.shape[1:])  # of an image, uint8
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count
        assert isinstance(cache.images, np.memmap)
        self._begin = cache.images.offset  # not counted from the end of the file, which may be shorter by now
        with (cache.folder / "images.npy").open("rb") as file:
            self._file = _above_standard(file.fileno())
        self._shared = _unnamed(self.slots * self.size * self._nbytes)
        self.memory = mmap.mmap(self._shared, 0)

    def ask(self, batch: int, rows: NDArray[np.int64]) -> None:
        """Let batch number `batch` be read; its slot must be free."""
        if rows.dtype != np.int64 or rows.ndim != 1:
            raise TypeError(f"a batch is one row of int64 indices, not {rows.dtype} of shape {rows.shape}")
        if len(rows) > self.size:
            raise ValueError(f"a batch of {len(rows)} images follows one of {self.size}; the first must be the largest")
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self.cache):
            asked = f"images {rows.min()} to {rows.max()}"
            raise IndexError(f"{asked} of {self.cache.meta.title} are asked for, which has {len(self.cache)}")
        chosen = batch % len(self.processes)
        process = self.processes[chosen]
        if process is None:
            process = self.processes[chosen] = self._started()
        assert process.stdin is not None
        start = batch % self.slots * self.size * self._nbytes
        with contextlib.suppress(BrokenPipeError):  # it has ended: who waits for it learns why
            process.stdin.write(np.array([start, len(rows)], np.int64).tobytes() + rows.tobytes())
            process.stdin.flush()

    def wait(self, batch: int) -> None:
        """Until it is there. A process answers in the order in which it was asked."""
        process = self.processes[batch % len(self.processes)]
        assert process is not None and process.stdout is not None
        if not process.stdout.read(1):
            raise self._ended(process)

    def _started(self) -> subprocess.Popen[bytes]:
        numbers = [self._file, self._shared, self._begin, self._nbytes]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # what is blocked here stays so in there
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM), *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=numbers[:2],
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _ended(self, process: subprocess.Popen[bytes]) -> ChildProcessError:
        """Why it did: its last words, or the signal that took it."""
        assert process.stderr is not None
        status, words = process.wait(), process.stderr.read().decode(errors="replace").strip().splitlines()
        why = words[-1] if words else f"signal {-status}" if status < 0 else f"exit status {status}"
        return ChildProcessError(
            f"a process that reads images of {self.cache.meta.title} has ended ({why}); check memory and disk, then "
            "start the same command again"
        )

    def end(self) -> None:
        """At once: they have nothing to lose. The end of their input would not do where a disk hangs, or where the user
        has forked a process since, which keeps the pipe open."""
        for process in filter(None, self.processes):
            process.kill()

    def close(self) -> None:
        self.end()
        for process in filter(None, self.processes):
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):  # what was asked last may not have been sent
                    pipe.close()
        os.close(self._file)
        os.close(self._shared)


def _unnamed(nbytes: int) -> int:
    """A file in memory, or where there are none (macOS) one in the temporary folder, of which the name is gone."""
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("wellcond-images"), "rb+") if in_memory else tempfile.TemporaryFile() as file:
        file.truncate(nbytes)
        return _above_standard(file.fileno())


def _above_standard(handle: int) -> int:
    """A copy that is none of 0, 1, 2: where a daemon or `<&-` closed those, new files take their numbers, and in a
    reader its pipes do."""
    return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
