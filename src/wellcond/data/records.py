"""What a source of pictures is: a length, labels, and records that are decoded when asked. Floor 6.

A source holds paths or row numbers, never pixels, so that a set of a million pictures costs no more memory than
one of a hundred.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (H, W, 3)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One picture of a source, not decoded yet."""

    index: int
    name: str  # for people: a path from the folder on, or a shard and its row
    label: int | None
    read: Callable[[], Pixels] = field(repr=False)  # ValueError or OSError that names the picture if it is damaged
    extras: Mapping[str, Any] = field(default_factory=dict, repr=False)  # those asked for, as the source holds them


class Source(Protocol):
    """Pictures with numbers 0 … len − 1."""

    title: str  # "procedural", "parquet:NAME" or "folder:NAME"

    def __len__(self) -> int: ...

    def labels(self) -> NDArray[np.int64] | None:
        """All of them, without a look at a picture; None if the set has none."""
        ...

    def records(self, indices: Sequence[int], extras: Sequence[str] = ()) -> Iterator[Record]:
        """The records of these numbers, which ascend; `extras` names further fields, such as mask or boxes."""
        ...


def has_labels(source: Source) -> bool:
    """Has every picture a class? Some sets have none, and some leave out a part (−1)."""
    labels = source.labels()
    return labels is not None and bool((labels >= 0).all())


def refuse_extras(title: str, extras: Sequence[str], known: Sequence[str]) -> None:
    """ValueError if a field is asked for that there is not."""
    if missing := [name for name in extras if name not in known]:
        has = f"it has {', '.join(known)}" if known else "it has only pictures and labels"
        raise ValueError(f"{title} has no {missing[0]!r}; {has}")
