"""Small public sets that are arrays: CIFAR-10, CIFAR-100 (torchvision's files) and Fashion-MNIST (idx files). Floor 6.

Nothing is fetched. A set is looked for in the folder that is given, else in $WELLCOND_DATA, else
in the user's cache folder.
"""

import gzip
import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .records import Pixels, Record, refuse_extras

CIFAR = {"cifar10": ("CIFAR10", "cifar-10-batches-py"), "cifar100": ("CIFAR100", "cifar-100-python")}
FASHION = "fashion-mnist"
FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot",
)  # fmt: skip
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where the package dataset-fashion-mnist puts the files


class ArraySource:
    """Pictures (N, H, W, 3) or grey ones (N, H, W), and their labels, in memory."""

    def __init__(self, title: str, pixels: NDArray[np.uint8], labels: NDArray[Any], classes: Sequence[str]) -> None:
        if len(pixels) != len(labels):
            raise ValueError(f"{title} has {len(pixels)} pictures but {len(labels)} labels; fetch it again")
        self.title, self.pixels, self.classes = title, pixels, tuple(classes)
        self._labels = np.asarray(labels, np.int64)

    def __len__(self) -> int:
        return len(self.pixels)

    def labels(self) -> NDArray[np.int64]:
        return self._labels

    def records(self, indices: Sequence[int], extras: Sequence[str] = ()) -> Iterator[Record]:
        refuse_extras(self.title, extras, ())
        for index in indices:
            name = f"{self.title} {index}"
            yield Record(index=index, name=name, label=int(self._labels[index]), read=partial(self._read, index))

    def _read(self, index: int) -> Pixels:
        picture = self.pixels[index]
        return np.repeat(picture[..., None], 3, 2) if picture.ndim == 2 else picture


def default_folder() -> Path:
    """$WELLCOND_DATA, else `sets` in the user's cache folder."""
    if given := os.environ.get("WELLCOND_DATA"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wellcond" / "sets"


def open_cifar(name: str, *, train: bool, folder: Path | None = None) -> ArraySource:
    """`cifar10` or `cifar100` from the files of their authors, checked by torchvision against their MD5 sums."""
    import torchvision.datasets  # needs torch, which takes a while to import

    folder = folder or default_folder()
    kind, inner = CIFAR[name]
    if not (folder / inner).is_dir():
        here = f"; the folder {name} here is ./{name}" if Path(name).is_dir() else ""
        raise ValueError(
            f"there is no {name} in {str(folder)!r}; put the folder {inner} there (its authors have it at "
            f"https://www.cs.toronto.edu/~kriz/cifar.html), or name its place as {name}:FOLDER{here}"
        )
    try:
        loaded = getattr(torchvision.datasets, kind)(str(folder), train=train)
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"{name} in {str(folder)!r} could not be read: {error}; remove it and fetch it again"
        ) from None
    return ArraySource(f"{name}-{'train' if train else 'test'}", loaded.data, loaded.targets, loaded.classes)


def open_fashion_mnist(*, train: bool, folder: Path | None = None) -> ArraySource:
    """Fashion-MNIST (Xiao et al., 2017): 28 × 28 grey, from its four idx files, packed (.gz) or not."""
    split = "train" if train else "t10k"
    names = f"{split}-images-idx3-ubyte", f"{split}-labels-idx1-ubyte"
    places = [folder] if folder else [default_folder() / FASHION, DEBIAN]
    for place in places:
        files = [next((p for p in (place / name, place / f"{name}.gz") if p.is_file()), None) for name in names]
        if files[0] and files[1]:
            pixels, labels = read_idx(files[0]), read_idx(files[1])
            return ArraySource(f"{FASHION}-{'train' if train else 'test'}", pixels, labels, FASHION_CLASSES)
    looked = " and ".join(repr(str(place)) for place in places)
    raise ValueError(
        f"there is no {names[0]} in {looked}; put the four idx files there, or name their place as {FASHION}:FOLDER"
    )


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of bytes: two zeros, type 8, the number of axes, each length as a big-endian int32, the bytes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if content[:3] != b"\0\0\x08":
            raise ValueError("it does not begin as one")
        shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)
    except (ValueError, EOFError, gzip.BadGzipFile, IndexError) as error:
        raise ValueError(f"{str(path)!r} is no idx file of bytes, or a damaged one ({error}); fetch it again") from None
