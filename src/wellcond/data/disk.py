"""What a cache needs of the disk: a lock, whole writes, checksums of blocks. Floor 6."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

BLOCK = 1 << 24  # bytes that share a checksum
THREADS = min(8, os.cpu_count() or 1)  # hashing and reading leave the interpreter's lock


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[bool]:
    """An exclusive lock, which the system takes back when the process dies; False where there are no locks.

    `waiting` is called once if another process holds it.
    """
    import fcntl  # not on every system

    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            yield False
            return
        yield True


def reserve(handle: int, start: int, length: int) -> None:
    """Room on the disk: a full one is met now, and not as a fault in mapped memory."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, start, length)


def write_all(handle: int, content: bytes, offset: int) -> None:
    """All bytes at this place; `os.pwrite` may write fewer."""
    view = memoryview(content)
    while view:
        done = os.pwrite(handle, view, offset)
        view, offset = view[done:], offset + done


def fsync_folder(folder: Path) -> None:
    """So that a rename inside it survives a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def num_blocks(path: Path) -> int:
    return -(-path.stat().st_size // BLOCK)


def checksums(path: Path, numbers: list[int]) -> list[str]:
    """Of these blocks of the file, BLAKE2b with 64 bits."""
    with path.open("rb") as file, ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(partial(_checksum, file.fileno()), numbers))


def _checksum(handle: int, number: int) -> str:
    return hashlib.blake2b(os.pread(handle, BLOCK, number * BLOCK), digest_size=8).hexdigest()
