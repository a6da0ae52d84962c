"""The procedural pictures as a source: as many as are asked for. Floor 6."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .procedural import CLASSES, procedural
from .records import Pixels, Record, refuse_extras

EXTRAS = ("mask", "box")


class GeneratedSource:
    """`length` procedural pictures of side `size`; picture `index` depends on (seed, index, size) only."""

    title = "procedural"
    classes = CLASSES
    fields = EXTRAS
    num_segments = len(CLASSES) + 1  # and the background

    def __init__(self, length: int, *, size: int = 224, seed: int = 0) -> None:
        self.length, self.size, self.seed = length, size, seed

    def __len__(self) -> int:
        return self.length

    def labels(self) -> NDArray[np.int64]:
        return np.arange(self.length) % len(CLASSES)

    def records(self, indices: Sequence[int], extras: Sequence[str] = ()) -> Iterator[Record]:
        refuse_extras(self.title, extras, EXTRAS)
        for index in indices:
            yield Record(
                index=index,
                name=f"procedural {index}",
                label=index % len(CLASSES),
                read=partial(self._draw, index),
                extras=self._extras(index, extras),
            )

    def _draw(self, index: int) -> Pixels:
        return procedural(index, size=self.size, seed=self.seed).image

    def _extras(self, index: int, wanted: Sequence[str]) -> dict[str, Any]:
        if not wanted:
            return {}
        sample = procedural(index, size=self.size, seed=self.seed)
        return {name: getattr(sample, name) for name in wanted}
