"""The training or the validation half of what a name or a path stands for. Floor 6; imports no torch by itself.

procedural[:COUNT]                 generated; the halves have different seeds, so no picture is in both
cifar10 | cifar100 | fashion-mnist [:FOLDER]    their own train and test files
hf:NAME                            a set of the hub (extra)
a folder with train/ and val/      that half of it, as ImageNet and Tiny-ImageNet are laid out; also Train/ and Val/
a folder of VOC, COCO or ADE20K    that half of it, with masks and boxes; or a list of its pictures (layouts.py)
a folder of train-*.parquet, val-*.parquet     that half (or train.parquet, train_0.parquet), also in data/ inside
a pattern such as DIR/train-*.parquet, a file, any other folder     all of it: the name says which half
"""

import re
from pathlib import Path
from typing import Literal

from .arrays import CIFAR, FASHION, open_cifar, open_fashion_mnist
from .generated import GeneratedSource
from .layouts import open_layout
from .records import Source
from .sources import PROCEDURAL, find_shards, open_source

Split = Literal["train", "val"]
WORDS = {"train": ("train", "training"), "val": ("val", "validation", "valid", "test")}
COUNTS = {"train": 10_000, "val": 2_000}  # of procedural pictures
SEEDS = {"train": 0, "val": 1}


def open_split(name: str, split: Split, *, image_size: int) -> Source:
    """The source of `split`; ValueError that quotes `name` if there is none."""
    head, _, tail = name.partition(":")
    if head == PROCEDURAL:
        return GeneratedSource(_count(name, tail, split), size=image_size, seed=SEEDS[split])
    if head in CIFAR or head == FASHION:
        folder = Path(tail).expanduser() if tail else None
        if head == FASHION:
            return open_fashion_mnist(train=split == "train", folder=folder)
        return open_cifar(head, train=split == "train", folder=folder)
    if head == "hf":
        from .hubsets import HubSource  # pyarrow takes a while to import

        return HubSource(tail, split)
    path = Path(name).expanduser()
    return open_layout(path, split) or _from_path(path, split)


def _count(name: str, tail: str, split: Split) -> int:
    if not tail:
        return COUNTS[split]
    if not tail.isdecimal() or not int(tail):
        raise ValueError(f"{name!r} should be procedural:COUNT, for example procedural:5000")
    return int(tail)


def _from_path(path: Path, split: Split) -> Source:
    if "*" in path.name:
        shards = find_shards(path.parent, path.name)
        if not shards:
            raise ValueError(f"no file matches {str(path)!r}; check the pattern")
        return _shards(shards, f"parquet:{path.parent.resolve().name}/{path.name}")
    if path.is_dir():
        folders = _folders(path)
        for word in WORDS[split]:
            if word in folders:
                return open_source(folders[word])
            for place in (path, path / "data"):
                if shards := _named(place, word):
                    _check_whole(shards)
                    return _shards(shards, f"parquet:{path.resolve().name}-{word}")
        others = [other for half in WORDS.values() for other in half]
        if missing := [other for other in others if other in folders or _has_shards(path, other)]:
            raise ValueError(
                f"{str(path)!r} has a half named {missing[0]}, but none named {' or '.join(WORDS[split])}; "
                f"name the {split} data by itself"
            )
    return open_source(path)


def _folders(path: Path) -> dict[str, Path]:
    """Those of the halves. Capitals count where both have some: Train beside Bus and Car is a class."""
    words = [word for half in WORDS.values() for word in half]
    named = (found for found in path.glob("*") if found.name.lower() in words and found.is_dir())
    alike = {found.name.lower(): found for found in sorted(named)}
    if not all(any(word in alike for word in half) for half in WORDS.values()):
        alike = {}
    return alike | {word: path / word for word in words if (path / word).is_dir()}


def _has_shards(path: Path, word: str) -> bool:
    return any(_named(place, word) for place in (path, path / "data"))


def _named(place: Path, word: str) -> list[Path]:
    """Shards of one half: train-00000-of-00002.parquet as on the hub, else train.parquet, train_0.parquet."""
    others = (path for path in place.glob(f"{word}*.parquet") if not path.name[len(word)].isalpha())
    return sorted(place.glob(f"{word}-*.parquet")) or sorted(others)


def _check_whole(shards: list[Path]) -> None:
    """ValueError if the names of the shards count more than there are: a download that was stopped."""
    counted = [re.search(r"-(\d+)-of-(\d+)$", shard.stem) for shard in shards]
    totals = {int(match[2]) if match else 0 for match in counted}
    found = {int(match[1]) for match in counted if match}
    if len(totals) == 1 and len(found) < (total := totals.pop()):
        first = next(number for number in range(total) if number not in found)
        place, word = shards[0].parent, shards[0].name.partition("-")[0]
        raise ValueError(
            f"{str(place)!r} has {len(found)} of the {total} shards of {word} and lacks number {first}; fetch "
            f"the rest, or say that these shall do: {place / word}-*.parquet"
        )


def _shards(shards: list[Path], title: str) -> Source:
    from .parquet import ParquetSource

    return ParquetSource(shards, title)
