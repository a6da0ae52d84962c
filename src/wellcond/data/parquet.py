"""Parquet shards as a source, in the hub's schema: `image{bytes,path}`, `label`, and what else there is. Floor 6.

Read row group by row group, a few rows at a time and only the columns asked for, so that memory depends neither
on the number of rows nor on the size of a row group.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from .files import read_image
from .records import Pixels, Record, refuse_extras

PICTURES = ("image", "img")  # what the hub's sets call the column
LABELS = ("label", "labels", "fine_label")  # the last is CIFAR-100's
BATCH = 64  # rows that are in memory at once, still encoded
BUFFER = 1 << 20  # bytes; with a buffer pyarrow streams a column chunk instead of loading the whole of it


class ParquetSource:
    """The rows of the shards, in the order given; lengths come from their footers."""

    def __init__(self, shards: Sequence[Path], title: str) -> None:
        self.shards, self.title = list(shards), title
        opened = [_opened(shard) for shard in self.shards]
        self.columns = opened[0].schema_arrow.names
        self.picture = self._picture_column(opened)
        self.label = label_column(self.columns)
        if twice := [name for name in (self.picture, self.label) if self.columns.count(name) > 1]:
            raise ValueError(f"{self.shards[0].name!r} has the column {twice[0]!r} twice; rename one of them")
        self.classes = _class_names(opened[0].schema_arrow.metadata, self.label)
        self.lengths = [file.metadata.num_rows for file in opened]
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        if not len(self):
            raise ValueError(f"{title} has no rows; give other parquet files")

    def __len__(self) -> int:
        return int(self.starts[-1])

    def labels(self) -> NDArray[np.int64] | None:
        """−1 where a row has none."""
        if self.label is None:
            return None
        return np.concatenate([_labels(shard, self.label) for shard in self.shards])

    @property
    def fields(self) -> tuple[str, ...]:
        """The other columns."""
        return tuple(name for name in self.columns if name not in (self.picture, self.label))

    def records(self, indices: Sequence[int], extras: Sequence[str] = ()) -> Iterator[Record]:
        refuse_extras(self.title, extras, self.fields)
        wanted = [self.picture, *([self.label] if self.label else []), *extras]
        for number, shard in enumerate(self.shards):
            low, high = np.searchsorted(indices, self.starts[number : number + 2])
            rows = np.asarray(indices[low:high], np.int64) - self.starts[number]
            for row, values in _rows(shard, rows, wanted) if len(rows) else ():
                name, content = encoded(values[self.picture], f"{shard.name} row {row}")
                yield Record(
                    index=int(self.starts[number]) + row,
                    name=name,
                    label=values[self.label] if self.label else None,
                    read=partial(decode, name, content),
                    extras={extra: values[extra] for extra in extras},
                )

    def _picture_column(self, opened: Sequence[pyarrow.parquet.ParquetFile]) -> str:
        for shard, file in zip(self.shards, opened, strict=True):
            names = file.schema_arrow.names
            if not any(picture in names for picture in PICTURES):
                raise ValueError(
                    f"{shard.name!r} has the columns {names}, but no 'image' with bytes and path; rename the one that "
                    "holds the pictures"
                )
            if names != self.columns:
                raise ValueError(
                    f"{shard.name!r} has the columns {names}, but {self.shards[0].name!r} has {self.columns}; "
                    "give shards of one set"
                )
        return next(picture for picture in PICTURES if picture in self.columns)


def label_column(columns: Sequence[str]) -> str | None:
    return next((name for name in LABELS if name in columns), None)


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...]:
    """As the hub's library writes them into a file's schema; none where they are not there."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return ()
    return tuple(map(str, names))


def _labels(shard: Path, name: str) -> NDArray[np.int64]:
    """Whole numbers, −1 where a row has none; ValueError where they are anything else."""
    column = _table(shard, [name]).column(name)
    if not len(column):  # a shard without rows may not even know their type
        return np.empty(0, np.int64)
    if pyarrow.types.is_unsigned_integer(column.type):  # has no −1
        with contextlib.suppress(pyarrow.ArrowInvalid):  # beyond 64 bits: refused below
            column = column.cast(pyarrow.int64())
    if pyarrow.types.is_signed_integer(column.type) or pyarrow.types.is_floating(column.type):
        found = column.fill_null(-1).to_numpy()
        # whole fractions are what pandas makes of a column with gaps
        if np.isfinite(found).all() and (found == np.floor(found)).all():
            return found.astype(np.int64)
    raise ValueError(
        f"the column {name!r} of {shard.name!r} holds {column.type}, for example {column[0].as_py()!r}; "
        "give each class a whole number from 0 on"
    )


def _rows(shard: Path, rows: NDArray[np.int64], columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of these numbers, which ascend; row groups without any are not read."""
    file = _opened(shard)
    start = 0
    for group in range(file.num_row_groups):
        end = start + file.metadata.row_group(group).num_rows
        inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)]
        if len(inside):
            yield from _rows_of_group(file, shard, group, start, inside, columns)
        start = end


def _rows_of_group(
    file: pyarrow.parquet.ParquetFile,
    shard: Path,
    group: int,
    start: int,
    rows: NDArray[np.int64],
    columns: list[str],
) -> Iterator[tuple[int, dict[str, Any]]]:
    batches = file.iter_batches(batch_size=BATCH, row_groups=[group], columns=columns, use_threads=False)
    while len(rows):  # not on to the end of the group when the last row asked for is found
        try:
            batch = next(batches)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{shard.name!r} is damaged: {error}; fetch it again") from None
        end = start + batch.num_rows
        inside, rows = np.split(rows, [np.searchsorted(rows, end)])
        for row in inside.tolist():  # not `take`, which has no kernel for views of bytes
            yield row, batch.slice(row - start, 1).to_pylist()[0]
        start = end


def encoded(value: Any, name: str) -> tuple[str, bytes | None]:
    """The picture's name and its bytes; sets without names have the bytes alone."""
    if isinstance(value, dict):
        path = value.get("path")
        return (f"{name} ({path})" if path else name), value.get("bytes")
    return name, value


def decode(name: str, content: bytes | None) -> Pixels:
    if not isinstance(content, bytes) or not content:
        raise ValueError(f"{name!r}: no picture in this row")
    return read_image(Path(name), content=content)


def _opened(shard: Path) -> pyarrow.parquet.ParquetFile:
    try:
        return pyarrow.parquet.ParquetFile(shard, buffer_size=BUFFER)
    except (pyarrow.ArrowException, ValueError) as error:
        raise ValueError(f"{str(shard)!r} is not a parquet file, or a damaged one ({error}); fetch it again") from None


def _table(shard: Path, columns: list[str]) -> pyarrow.Table:
    try:
        return _opened(shard).read(columns=columns)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{shard.name!r} is damaged: {error}; fetch it again") from None
