"""Every picture of a source, decoded in threads, brought to one size, and handed on. Floor 6; imports no torch.

Small sets whose pictures are all of one square size stay as they are; others have the shorter side resized and the
centre square kept, at image_size / 0.875 pixels (256 for 224), the usual margin for cropping.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from .files import describe
from .reading import in_order
from .records import Pixels, Record, Source

MARGIN = 0.875  # of the stored side is the image size
LOOK = 32  # pictures that decide whether a set has one size
TOLERATED = 0.001  # share of damaged pictures
THREADS = min(16, os.cpu_count() or 1)


class TooManyDamaged(ValueError):
    """More pictures are damaged than a run should bear."""


def stored_side(source: Source, image_size: int) -> int:
    """The side of the squares to keep: the set's own if it has one that is not larger than needed."""
    largest = max(image_size, round(image_size / MARGIN))
    chosen = np.unique(np.linspace(0, len(source) - 1, min(LOOK, len(source))).astype(np.int64))
    sizes = set()
    for record in source.records(chosen.tolist()):
        try:
            sizes.add(record.read().shape[:2])
        except (ValueError, OSError):
            continue  # counted when all are read
    height, width = next(iter(sizes)) if len(sizes) == 1 else (0, 1)
    return height if height == width <= largest else largest


def squared(picture: Pixels, side: int) -> NDArray[np.uint8]:
    """(H, W, 3) → (3, side, side): as it is if it has that size, else resized and its centre kept."""
    if picture.shape[:2] != (side, side):
        fitted = ImageOps.fit(Image.fromarray(picture), (side, side), method=Image.Resampling.BICUBIC)
        picture = np.asarray(fitted)
    return np.ascontiguousarray(picture.transpose(2, 0, 1))


def fill(
    source: Source,
    side: int,
    write: Callable[[int, NDArray[np.uint8]], None],
    progress: Callable[[int], None] = lambda done: None,
) -> dict[int, str]:
    """`write(index, (3, side, side))` for each picture, from several threads; what is wrong with those that fail.

    TooManyDamaged soon after more than TOLERATED of the source are. An error of `write` itself (a full disk) ends it.
    """
    damaged: dict[int, str] = {}

    def work(record: Record) -> None:
        try:
            pixels = squared(record.read(), side)
        except (ValueError, OSError) as error:
            damaged[record.index] = describe(Path(record.name), error)
        else:
            write(record.index, pixels)

    with closing(in_order(work, source.records(range(len(source))), THREADS)) as finished:
        for number, _ in enumerate(finished, 1):
            progress(1)
            if number % (4 * THREADS) == 0:
                refuse_rotten(source, damaged)
    refuse_rotten(source, damaged)
    return damaged


def refuse_rotten(source: Source, damaged: dict[int, str]) -> None:
    if len(damaged) > TOLERATED * len(source):
        first = damaged[min(damaged)]
        raise TooManyDamaged(
            f"{len(damaged)} of {len(source)} images of {source.title} are damaged, more than {TOLERATED:.1%}; "
            f"first {first}"
        )


def replacements(damaged: Iterable[int], labels: NDArray[np.int64]) -> dict[int, int]:
    """For each damaged picture the next good one with its label, around the end of the set; of any where none has it.

    >>> replacements([1, 2, 4], np.array([0, 0, 1, 1, 0]))
    {1: 0, 2: 3, 4: 0}
    """
    found = {}
    good = np.setdiff1d(np.arange(len(labels)), list(damaged))
    for index in sorted(damaged):
        alike = good[labels[good] == labels[index]]
        chosen = alike if len(alike) else good
        found[index] = int(chosen[np.searchsorted(chosen, index) % len(chosen)])
    return found
