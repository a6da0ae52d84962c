"""COCO's boxes (Lin et al., 2014) and COCO-Stuff's masks (Caesar et al., 2018: 182 class numbers, 255 is void)."""

import json
import re
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .layouts import LaidOut, existing, lines_of, mask_beside

NUM_CLASSES = 182
YEARS = ("2017", "2014")


def is_here(folder: Path) -> bool:
    return (folder / "annotations").is_dir() and any(
        _pictures(folder, f"{h}{y}") for h in ("train", "val") for y in YEARS
    )


def open_half(root: Path, half: str) -> LaidOut:
    """train or val, of 2017 before 2014: every picture in the folder."""
    for year in YEARS:
        if folder := _pictures(root, f"{half}{year}"):
            pictures = sorted(folder.glob("[!.]*.jpg"))
            return _opened(root, f"{half}{year}", pictures, f"coco:{half}{year}")
    raise ValueError(f"{str(root)!r} has no pictures in {half}2017/ or {half}2014/; fetch them")


def open_list(root: Path, listed: Path) -> LaidOut:
    """The pictures of a list, of train2014 where a line does not say otherwise; a line is a name or a number."""
    pictures, split, splits = [], "train2014", set()
    for line in lines_of(listed):
        number = re.findall(r"\d+", line.rsplit(".", 1)[0])
        if not number:
            raise ValueError(f"{line!r} in {listed.name} is no picture of COCO; give its file name or its number")
        named = re.search(r"(train|val)20(14|17)", line)
        split = named[0] if named else split
        splits.add(split)
        folder = _pictures(root, split) or root / split
        prefix = f"COCO_{split}_" if split.endswith("2014") else ""
        pictures.append(folder / f"{prefix}{int(number[-1]):012d}.jpg")
    if len(splits) > 1:
        raise ValueError(f"{listed.name} names pictures of {' and '.join(sorted(splits))}; make one list for each")
    title = f"coco:{listed.stem}"
    return _opened(root, split, existing(pictures, title), title)


def _opened(root: Path, split: str, pictures: list[Path], title: str) -> LaidOut:
    instances = root / "annotations" / f"instances_{split}.json"
    maps = next((m for p in ("stuffthingmaps", "annotations") if (m := root / p / split).is_dir()), None)
    return LaidOut(
        title,
        pictures,
        masks=partial(mask_beside, maps) if maps else None,
        boxes=Instances(instances) if instances.is_file() else None,
        num_segments=NUM_CLASSES,
    )


class Instances:
    """Boxes by file name, read when the first is asked for; crowds are left out, as LOST and TokenCut do."""

    def __init__(self, path: Path) -> None:
        self.path, self.boxes = path, None

    def __call__(self, picture: Path) -> NDArray[np.float64]:
        if self.boxes is None:
            self.boxes = self._load()
        return np.array(self.boxes.get(picture.name, []), np.float64).reshape(-1, 4)

    def _load(self) -> dict[str, list[list[float]]]:
        try:
            content = json.loads(self.path.read_text())
            names = {image["id"]: image["file_name"] for image in content["images"]}
            boxes: dict[str, list[list[float]]] = defaultdict(list)
            for one in content["annotations"]:
                if not one.get("iscrowd"):
                    x, y, width, height = map(float, one["bbox"])
                    boxes[names[one["image_id"]]].append([x, y, x + width, y + height])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{str(self.path)!r} is no file of COCO instances ({error}); fetch it again") from None
        return boxes


def _pictures(root: Path, split: str) -> Path | None:
    return next((folder for folder in (root / split, root / "images" / split) if folder.is_dir()), None)
