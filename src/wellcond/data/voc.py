"""Pascal VOC 2007 and 2012 (Everingham et al.): boxes in XML, masks as palette pictures, lists of names."""

import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .layouts import LaidOut, existing, lines_of, mask_beside

NUM_CLASSES = 21  # with the background; 255 is void


def is_here(folder: Path) -> bool:
    return (folder / "JPEGImages").is_dir() and (folder / "ImageSets").is_dir()


def open_half(root: Path, half: str) -> LaidOut:
    """train or val: of Segmentation where there are masks, else of Main."""
    kinds = [kind for kind in ("Segmentation", "Main") if (root / "ImageSets" / kind / f"{half}.txt").is_file()]
    if not kinds:
        raise ValueError(f"{str(root)!r} has no ImageSets/Segmentation/{half}.txt, nor one in Main; fetch it again")
    return open_list(root, root / "ImageSets" / kinds[0] / f"{half}.txt")


def open_list(root: Path, listed: Path) -> LaidOut:
    """The pictures of a list; with masks where each of them has one, or should: where it is a list of Segmentation."""
    # lists of a class name all pictures, with a second column: -1 where it is not there
    names = [line.split()[0].removesuffix(".jpg") for line in lines_of(listed) if line.split()[1:] != ["-1"]]
    title = f"voc:{root.resolve().name}/{listed.parent.name}/{listed.stem}"
    pictures = existing([root / "JPEGImages" / f"{name}.jpg" for name in names], title)
    masks, annotations = root / "SegmentationClass", root / "Annotations"
    masked = [(masks / f"{name}.png").is_file() for name in names]
    have_masks = all(masked) or (any(masked) and listed.parent.name == "Segmentation")
    return LaidOut(
        title,
        pictures,
        masks=partial(mask_beside, masks) if have_masks else None,
        boxes=partial(boxes_in_xml, annotations) if annotations.is_dir() else None,
        num_segments=NUM_CLASSES,
        has_background=True,
    )


def boxes_in_xml(folder: Path, picture: Path) -> NDArray[np.float64]:
    """(k, 4) of all objects, difficult ones too, as LOST and TokenCut do. VOC counts pixels from 1, ends included."""
    path = folder / f"{picture.stem}.xml"
    try:
        tree = ElementTree.parse(path)
        corners = [
            [float(found.findtext(name, "?")) for name in ("xmin", "ymin", "xmax", "ymax")]
            for found in tree.iterfind("object/bndbox")  # in 2012 some people are marked by a point instead
        ]
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise ValueError(f"the boxes of {picture.name} cannot be read from {str(path)!r}: {error}") from None
    return np.array(corners, np.float64).reshape(-1, 4) - [1, 1, 0, 0]
