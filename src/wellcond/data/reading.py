"""Some pictures of a source, decoded in threads, in constant memory. Floor 6; imports no torch.

Which ones: the source is cut into as many equal stretches as pictures are wanted, and one is drawn at random from
each. That covers sets that are sorted by class, and does not fall into step with sets that repeat. It depends on
the seed only. The first FIRST pictures are drawn so by themselves and the rest after them, so that they, too, cover
the whole source: a reader that keeps only its first pictures has no lopsided choice.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .files import describe
from .records import Pixels, Record, Source

FIRST = 32
THREADS = min(8, os.cpu_count() or 1)  # Pillow decodes without the interpreter's lock
Prepared = TypeVar("Prepared")
Item = TypeVar("Item")
Result = TypeVar("Result")


def read_pictures(
    source: Source,
    count: int,
    *,
    prepare: Callable[[Pixels], Prepared],
    seed: int = 0,
    skipped: list[str] | None = None,
) -> Generator[tuple[Record, Prepared], None, None]:
    """`count` pictures of the source, or all if it has fewer, each through `prepare` in the thread that decodes it.

    A damaged one is named in `skipped` and replaced by another while there are any; ValueError if none is readable.
    """
    skipped = [] if skipped is None else skipped
    rng = np.random.default_rng(seed)
    remaining = np.arange(len(source))
    missing, num_failed_rounds = min(count, len(source)), 0
    wanted, first = missing, True

    def tried(record: Record) -> tuple[Record, Prepared | Exception]:
        try:
            return record, prepare(record.read())
        except (ValueError, OSError) as error:
            return record, error

    while missing and len(remaining):
        drawn = min(missing, FIRST) if first else missing << num_failed_rounds  # a rotten set ends soon
        chosen = spread(len(remaining), min(drawn, len(remaining)), rng)
        before = len(skipped)
        with closing(in_order(tried, source.records(remaining[chosen].tolist()))) as found:
            for record, prepared in found:
                if isinstance(prepared, Exception):
                    skipped.append(describe(Path(record.name), prepared))
                    continue
                yield record, prepared
                missing -= 1
                if not missing:
                    break
        remaining, first = np.delete(remaining, chosen), False
        num_failed_rounds += len(skipped) > before
    if missing == wanted:
        raise ValueError(f"no readable image in {source.title}; {len(skipped)} skipped, first {skipped[0]}")


def spread(length: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` different numbers below `length`, ascending, one from each of as many equal stretches.

    >>> spread(100, 4, np.random.default_rng(0)) // 25
    array([0, 1, 2, 3])
    """
    edges = np.arange(count + 1, dtype=np.int64) * length // count
    return rng.integers(edges[:-1], edges[1:])


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], threads: int = THREADS
) -> Generator[Result, None, None]:
    """work(item) of each, in threads, in order, a few ahead of the reader."""
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= 4 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
