"""Miniature copies of VOC, COCO and ADE20K as they lie on disk, drawn from the procedural pictures."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from wellcond.data.procedural import Procedural, procedural

SIZE = 40


def sample(index: int) -> Procedural:
    return procedural(index, size=SIZE)


def save(path: Path, pixels: np.ndarray, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    if path.suffix == ".png":
        image.putpalette([value for number in range(256) for value in (number, 0, 255 - number)])
    image.save(path, **options)


def numbers(drawn: Procedural, *, background: int = 0, shift: int = 1, border: int = 255) -> np.ndarray:
    """Class numbers with a border of void, as VOC has."""
    mask = np.where(drawn.mask, drawn.label + shift, background).astype(np.uint8)
    mask[0] = border
    return mask


def write_voc(root: Path, train: int = 4, val: int = 3) -> Path:
    """VOC counts from 1 and includes the end."""
    names = [f"2012_{index:06d}" for index in range(train + val)]
    for index, name in enumerate(names):
        drawn = sample(index)
        save(root / "JPEGImages" / f"{name}.jpg", drawn.image, quality=95)
        save(root / "SegmentationClass" / f"{name}.png", numbers(drawn))
        x0, y0, x1, y1 = drawn.box
        corners = {"xmin": x0 + 1, "ymin": y0 + 1, "xmax": x1, "ymax": y1}
        inside = "".join(f"<{key}>{value}</{key}>" for key, value in corners.items())
        text = f"<annotation><object><name>cat</name><difficult>1</difficult><bndbox>{inside}</bndbox></object>"
        (root / "Annotations").mkdir(exist_ok=True)
        (root / "Annotations" / f"{name}.xml").write_text(text + "</annotation>")
    for kind in ("Segmentation", "Main"):
        (root / "ImageSets" / kind).mkdir(parents=True, exist_ok=True)
        (root / "ImageSets" / kind / "train.txt").write_text("\n".join(names[:train]) + "\n")
        (root / "ImageSets" / kind / "val.txt").write_text("\n".join(names[train:]) + "\n")
    (root / "ImageSets" / "Main" / "trainval.txt").write_text("\n".join(names) + "\n")
    cats = [f"{name} {there:>2}" for name, there in zip(names[train:], (1, -1, 0), strict=False)]  # 0: difficult
    (root / "ImageSets" / "Main" / "cat_val.txt").write_text("\n".join(cats) + "\n")
    return root


def write_coco(root: Path, split: str = "train2014", count: int = 4, stuff: bool = False) -> Path:
    """Boxes as x, y, width, height; a crowd that does not count; maps of COCO-Stuff if asked for."""
    prefix = f"COCO_{split}_" if split.endswith("2014") else ""
    images, annotations = [], []
    for index in range(count):
        drawn, number = sample(index), 1000 + 7 * index
        name = f"{prefix}{number:012d}"
        save(root / split / f"{name}.jpg", drawn.image, quality=95)
        images.append({"id": number, "file_name": f"{name}.jpg"})
        x0, y0, x1, y1 = drawn.box
        annotations.append({"image_id": number, "bbox": [x0, y0, x1 - x0, y1 - y0], "iscrowd": 0})
        annotations.append({"image_id": number, "bbox": [0, 0, SIZE, SIZE], "iscrowd": 1})
        if stuff:
            save(root / "stuffthingmaps" / split / f"{name}.png", numbers(drawn, background=120, shift=0))
    content = json.dumps({"images": images, "annotations": annotations})
    (root / "annotations").mkdir(exist_ok=True)
    (root / "annotations" / f"instances_{split}.json").write_text(content)
    return root


def write_ade20k(root: Path, count: int = 3) -> Path:
    """0 is "other"; classes count from 1."""
    for folder, first in (("training", 0), ("validation", count)):
        for index in range(first, first + count):
            drawn = sample(index)
            save(root / "images" / folder / f"ADE_{index:08d}.jpg", drawn.image, quality=95)
            save(root / "annotations" / folder / f"ADE_{index:08d}.png", numbers(drawn, background=100, border=0))
    return root
