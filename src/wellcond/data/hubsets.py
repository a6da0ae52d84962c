"""Sets of the Hugging Face hub as a source, `hf:NAME`, through its library, which is an extra. Floor 6."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..extras import install
from .parquet import PICTURES, decode, encoded, label_column
from .records import Record, refuse_extras

SPLITS = {"train": ("train",), "val": ("validation", "val", "valid", "test")}


class HubSource:
    """The rows of one split; pictures stay encoded until they are asked for."""

    def __init__(self, name: str, split: str) -> None:
        self.title = f"hf:{name}-{split}"
        self.rows = _load(name, split)
        names = list(self.rows.column_names)
        picture = next((column for column in PICTURES if column in names), None)
        if picture is None:
            raise ValueError(f"hf:{name} has the columns {names}, but no 'image'; choose a set of images")
        self.picture, self.label = picture, label_column(names)
        self.classes = tuple(getattr(self.rows.features[self.label], "names", None) or ()) if self.label else ()
        self.rows = _undecoded(self.rows, picture)
        self.fingerprint = str(getattr(self.rows, "_fingerprint", ""))

    def __len__(self) -> int:
        return len(self.rows)

    def labels(self) -> NDArray[np.int64] | None:
        """−1 where a row has none, as in test splits."""
        if self.label is None:
            return None
        return np.array([-1 if label is None else label for label in self.rows[self.label]], np.int64)

    def records(self, indices: Sequence[int], extras: Sequence[str] = ()) -> Iterator[Record]:
        refuse_extras(self.title, extras, ())
        for index in indices:
            row = self.rows[int(index)]
            name, content = encoded(row[self.picture], f"{self.title} row {index}")
            label = row[self.label] if self.label else None
            yield Record(index=index, name=name, label=label, read=partial(decode, name, content))


def _load(name: str, split: str) -> Any:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(f"hf:{name} needs the library datasets; {install('hub')}") from None
    errors = []
    for candidate in SPLITS[split]:
        try:
            return datasets.load_dataset(name, split=candidate)
        except (ValueError, KeyError) as error:  # no such split, or no such set
            errors.append(str(error).splitlines()[0])
        except OSError as error:
            raise ValueError(f"hf:{name} could not be fetched: {error}; check the name and the network") from None
    raise ValueError(f"hf:{name} has no split {' or '.join(SPLITS[split])}: {errors[0]}")


def _undecoded(rows: Any, picture: str) -> Any:
    import datasets  # pyright: ignore[reportMissingImports]

    return rows.cast_column(picture, datasets.Image(decode=False))
