"""Pictures for loops: as many of a source as a benchmark needs, decoded into a cache of the side that it needs.

A training loop cannot tell 20,000 pictures from a million that lie in the same memory, and decoding those takes
minutes. Pictures smaller than `side` are enlarged when they are decoded: Tiny-ImageNet stands in for ImageNet, its
cache has the bytes of ImageNet's, and augmentation does the same work on them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ..data.cache import Cache, open_cache
from ..data.feeds import open_feed
from ..data.files import centre_square
from ..data.fingerprints import fingerprint
from ..data.generated import GeneratedSource
from ..data.records import Pixels, Record, Source
from ..data.splits import open_split
from ..training.feeding import Images
from .images import NUM_PROCEDURAL


class Some:
    """`count` pictures spread over `source`, brought to squares of `side` (None: left as they are)."""

    def __init__(self, source: Source, count: int, side: int | None) -> None:
        self.source, self.side, self.title = source, side, source.title
        self.chosen = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).astype(np.int64))
        self.fingerprint = f"{fingerprint(source)} {len(self.chosen)} {side}"

    def __len__(self) -> int:
        return len(self.chosen)

    def labels(self) -> NDArray[np.int64] | None:
        labels = self.source.labels()
        return None if labels is None else labels[self.chosen]

    def records(self, indices: Sequence[int], extras: Sequence[str] = ()) -> Iterator[Record]:
        wanted = self.chosen[np.asarray(indices, np.int64)].tolist()
        for index, record in zip(indices, self.source.records(wanted, extras), strict=True):
            yield replace(record, index=int(index), read=partial(self._read, record))

    def _read(self, record: Record) -> Pixels:
        pixels = record.read()
        return pixels if self.side is None else centre_square(Image.fromarray(pixels), self.side)


def open_stock(data: Path | None, *, count: int, image_size: int, side: int | None, folder: Path) -> Cache:
    """The training pictures of `data`, or the validation pictures where it has no others; None: procedural ones."""
    if data is None:
        source: Source = GeneratedSource(min(count, NUM_PROCEDURAL), size=image_size)
    else:
        place = str(data.absolute())  # a folder here may be called cifar10, as one of the sources is
        try:
            source = open_split(place, "train", image_size=image_size)
        except ValueError:
            source = open_split(place, "val", image_size=image_size)
    return open_cache(Some(source, count, side), image_size, folder)


def images_of(cache: Cache, device: torch.device, *, resident: bool = True, workers: int = 4) -> Images:
    """The cache as a loop takes it: on the device, or streamed to it by `workers` processes."""
    feed = open_feed(cache, device, "yes" if resident else "no", workers)
    return Images(train=cache, val=cache, feed_of=lambda _: feed)
