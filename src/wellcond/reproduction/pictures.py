"""`--data` → where each set of pictures is. A set that is not there is left out of a claim, and said so."""

from collections.abc import Sequence
from pathlib import Path

from ..data.arrays import CIFAR, FASHION, default_folder
from ..data.splits import open_split

VOC, PETS = "voc2012-animals-seg-320", "oxford-pets-128-subset"  # with masks and boxes, for judges
SETS = ("cifar10", "cifar100", "fashion-mnist", "tiny-imagenet", VOC, PETS)
STAND_IN = "procedural:48"  # of the quick version, where no data is given


def find(name: str, given: Sequence[str], *, image_size: int, quick: bool = False) -> str | None:
    """The source of the set `name`, as `data.train` takes it; None where it is in none of the places.

    `given` holds folders, which have the set in a folder of its name, and NAME=PATH; without any, the places are looked
    at where CIFAR and Fashion-MNIST are found by themselves. ValueError where a place that is named is not there.
    """
    for word in given:
        known, equals, place = word.partition("=")
        if not equals and not Path(word).expanduser().is_dir():
            raise ValueError(f"data is {word!r}, which is no folder; give one that holds {name}/, or {name}=PATH")
        if equals and known not in SETS:
            raise ValueError(f"data is {word!r}; the sets are {', '.join(SETS)}, for example cifar10=PATH")
        if equals and known == name:
            _check(name, source := _source(name, place), image_size)
            return source
    for folder in [Path(word).expanduser() for word in given if "=" not in word]:
        if (folder / name).is_dir():
            _check(name, source := _source(name, str(folder / name)), image_size)
            return source
        if name in CIFAR and (folder / CIFAR[name][1]).is_dir():
            return f"{name}:{folder}"
    if given:
        return None
    return STAND_IN if quick else _by_itself(name, image_size)


def _source(name: str, place: str) -> str:
    """A folder of the authors' own files is named through its set: cifar10:FOLDER."""
    folder = Path(place).expanduser()
    if name in CIFAR and (folder / CIFAR[name][1]).is_dir():
        return f"{name}:{place}"
    if name == FASHION and any(folder.glob("train-images-idx3-ubyte*")):
        return f"{name}:{place}"
    return f"./{place}" if place in SETS and folder.is_dir() else place  # the bare word is a source of that name


def _check(name: str, source: str, image_size: int) -> None:
    for split in ("train", "val"):
        try:
            open_split(source, split, image_size=image_size)
        except ValueError as error:
            raise ValueError(f"data {name}: {error}") from None


def _by_itself(name: str, image_size: int) -> str | None:
    if name in CIFAR and not (default_folder() / CIFAR[name][1]).is_dir():
        return None
    if name not in CIFAR and name != FASHION:
        return None
    try:
        open_split(name, "val", image_size=image_size)
    except ValueError:
        return None
    return name
