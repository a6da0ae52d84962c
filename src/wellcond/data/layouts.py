"""Sets with masks and boxes as their makers lay them out on disk. Floor 6; imports no torch.

    VOC        JPEGImages/ID.jpg  Annotations/ID.xml  SegmentationClass/ID.png  ImageSets/{Segmentation,Main}/SET.txt
               as it unpacks, VOCdevkit/VOC2012/…: give the year's folder, or VOCdevkit or what it lies in, where it
               holds one year
    COCO       {train,val}{2014,2017}/NAME.jpg, also in images/   annotations/instances_{train,val}{2014,2017}.json
               COCO-Stuff's maps NAME.png in stuffthingmaps/{train,val}2017/, or annotations/{train,val}2017/
    ADE20K     images/{training,validation}/NAME.jpg  annotations/{training,validation}/NAME.png

A text file inside such a folder names the pictures of a set of its own, one in a line, by name or number: VOC's
ImageSets/Main/trainval.txt, or the list of COCO 20k (19,817 pictures of train2014: Vo et al., 2020; LOST, TokenCut).

Pictures are read as they are stored, never turned by their EXIF: so were they annotated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .annotations import read_mask
from .files import read_image
from .records import Record, refuse_extras

Half = str  # "train" or "val"


class LaidOut:
    """Pictures by path, with what is known of each; boxes and masks are read when asked for.

    `has_background`: 0 in the masks is no class, but what no object covers.
    """

    def __init__(
        self,
        title: str,
        pictures: Sequence[Path],
        *,
        masks: "Callable[[Path], NDArray[np.uint8]] | None" = None,
        boxes: Callable[[Path], NDArray[np.float64]] | None = None,
        num_segments: int = 0,
        has_background: bool = False,
    ) -> None:
        if not pictures:
            raise ValueError(f"{title} has no pictures; check the folder")
        self.title, self.paths, self.num_segments = title, list(pictures), num_segments
        self.has_background = has_background
        self._read: Mapping[str, Callable[[Path], Any]] = {
            name: read for name, read in (("mask", masks), ("boxes", boxes)) if read is not None
        }
        self.fields = tuple(self._read)

    @property
    def fingerprint(self) -> str:
        """Names, lengths and times of the files."""
        found = [(path.name, path.stat()) for path in self.paths]
        return "\n".join(f"{name} {s.st_size} {s.st_mtime_ns}" for name, s in found)

    def __len__(self) -> int:
        return len(self.paths)

    def labels(self) -> None:
        return None

    def records(self, indices: Sequence[int], extras: Sequence[str] = ()) -> Iterator[Record]:
        refuse_extras(self.title, extras, self.fields)
        for index in indices:
            path = self.paths[index]
            held: dict[str, Any] = {}
            for name in extras:  # a mask is decoded by whoever wants it, in a thread; boxes are small
                held[name] = partial(self._read[name], path) if name == "mask" else self._read[name](path)
            yield Record(
                index=index, name=path.name, label=None, read=partial(read_image, path, upright=False), extras=held
            )


def open_layout(path: Path, half: Half) -> LaidOut | None:
    """The half of the set in a folder that is laid out so, or the set that a text file in one names; None otherwise."""
    from . import ade20k, coco, voc  # each knows one layout

    if path.is_file() and path.suffix == ".txt":
        for root in path.resolve().parents:
            for layout in (voc, coco):
                if layout.is_here(root):
                    return layout.open_list(root, path)
        raise ValueError(f"{str(path)!r} lies in no VOC or COCO folder; put the list of pictures inside one")
    if not path.is_dir():
        return None
    for layout in (voc, coco, ade20k):
        if layout.is_here(path):
            return layout.open_half(path, half)
    ade20k.refuse_whole(path)
    devkit = path / "VOCdevkit" if (path / "VOCdevkit").is_dir() else path  # torchvision's root holds it
    if years := [folder for folder in sorted(devkit.glob("VOC*")) if voc.is_here(folder)]:
        if len(years) > 1:
            names = " and ".join(folder.name for folder in years)
            raise ValueError(f"{str(path)!r} holds {names}; give one of them, for example {str(years[-1])!r}")
        return voc.open_half(years[0], half)
    return None


def lines_of(path: Path) -> list[str]:
    """The lines of a list, without blank ones; ValueError where there are none."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} is no list of pictures: it is not text; fetch it again") from None
    if not any(lines):
        raise ValueError(f"{str(path)!r} names no pictures; give one in a line")
    return [line for line in lines if line]


def existing(paths: Sequence[Path], title: str) -> list[Path]:
    """The paths; ValueError that names the first that is missing."""
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{title} names {path.name}, but {str(path)!r} does not exist; fetch the set again")
    return list(paths)


def mask_beside(folder: Path, picture: Path, *, first_is_void: bool = False) -> NDArray[np.uint8]:
    """The class numbers of a picture; where 0 stands for "other" classes count from 1, and 0 becomes 255, void."""
    mask = read_mask(folder / f"{picture.stem}.png", picture.name)
    return mask - np.uint8(1) if first_is_void else mask  # 0 − 1 is 255 in eight bits
