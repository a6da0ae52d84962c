"""What a cache needs of the disk: room, whole writes, checksums of blocks. Floor 6."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

BLOCK = 1 << 24  # bytes that share a checksum
THREADS = min(8, os.cpu_count() or 1)  # hashing and reading leave the interpreter's lock


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


def num_blocks(path: Path) -> int:
    return -(-path.stat().st_size // BLOCK)


def checksums(path: Path, numbers: list[int]) -> list[str]:
    """Of these blocks of the file, BLAKE2b with 64 bits."""
    with path.open("rb") as file, ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(partial(_checksum, file.fileno()), numbers))


def _checksum(handle: int, number: int) -> str:
    return hashlib.blake2b(os.pread(handle, BLOCK, number * BLOCK), digest_size=8).hexdigest()
