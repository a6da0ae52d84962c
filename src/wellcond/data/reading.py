"""Some pictures of a source, decoded in threads, in constant memory. Floor 6; imports no torch.

Which ones: the source is cut into as many equal stretches as pictures are wanted, and one is drawn at random from
each. That covers sets that are sorted by class, and does not fall into step with sets that repeat. It depends on
the seed only. The first FIRST pictures are drawn so by themselves and the rest after them, so that they, too, cover
the whole source: a reader that keeps only its first pictures has no lopsided choice.
"""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
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


def read_pictures(
    source: Source,
    count: int,
    *,
    prepare: Callable[[Pixels], Prepared],
    seed: int = 0,
    skipped: list[str] | None = None,
    extras: Sequence[str] = (),
) -> Generator[tuple[Record, Prepared], None, None]:
    """`count` pictures of the source, or all if it has fewer, each through `prepare` in the thread that decodes it.

    A damaged one is named in `skipped` and replaced by another while there are any; ValueError if none is readable.
    """
    skipped = [] if skipped is None else skipped
    rng = np.random.default_rng(seed)
    remaining = np.arange(len(source))
    missing, num_failed_rounds = min(count, len(source)), 0
    wanted, first = missing, True
    with ThreadPoolExecutor(THREADS) as pool:
        while missing and len(remaining):
            drawn = min(missing, FIRST) if first else missing << num_failed_rounds  # a rotten set ends soon
            chosen = spread(len(remaining), min(drawn, len(remaining)), rng)
            before = len(skipped)
            records = source.records(remaining[chosen].tolist(), extras)
            with closing(_decoded(pool, records, prepare, skipped)) as decoded:
                for done in decoded:
                    yield done
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


def _decoded(
    pool: ThreadPoolExecutor,
    records: Iterable[Record],
    prepare: Callable[[Pixels], Prepared],
    skipped: list[str],
) -> Generator[tuple[Record, Prepared], None, None]:
    """In order, a few ahead of the reader."""
    waiting: deque[tuple[Record, Future[Prepared]]] = deque()
    records = iter(records)
    try:
        while True:
            while len(waiting) < 2 * THREADS and (record := next(records, None)) is not None:
                waiting.append((record, pool.submit(lambda record: prepare(record.read()), record)))
            if not waiting:
                return
            record, future = waiting.popleft()
            try:
                result = future.result()
            except (ValueError, OSError) as error:
                skipped.append(describe(Path(record.name), error))
            else:
                yield record, result
    finally:
        for _, future in waiting:
            future.cancel()
