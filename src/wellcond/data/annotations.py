"""Masks and boxes of a source's pictures, whatever the source holds them in. Floor 6; imports no torch.

    mask     a PNG of class numbers (its bytes, or a file), or an array; a bool array is where the picture's class is
    boxes    boxes, bbox or objects of a parquet file (one box, a list of them, or {"bbox": […], …}); box; arrays

Boxes come out as (k, 4) float64 x0, y0, x1, y1 in pixels, ends exclusive. Whole numbers in a parquet file are pixels,
the last one included (Tiny-ImageNet's 0 … 63 is the whole picture), so 1 is added to their ends; fractions are
coordinates and stay. Sets that hold x, y, width, height are told apart by the user: nothing in the file says so.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from .records import Source

MASK = "mask"
BOXES = ("boxes", "bbox", "objects", "box")
BoxForm = Literal["corners", "sizes"]


def fields_of(source: Source) -> tuple[str, ...]:
    """What records of the source may hold beside picture and label."""
    return tuple(getattr(source, "fields", ()))


def box_field(source: Source) -> str | None:
    return next((name for name in BOXES if name in fields_of(source)), None)


def mask_field(source: Source) -> str | None:
    return MASK if MASK in fields_of(source) else None


def mask_of(value: Any, name: str, label: int | None = None) -> NDArray[np.uint8] | None:
    """(H, W) uint8, or None where there is none; a bool array becomes label + 1 where it is True."""
    value = value() if callable(value) else value
    if isinstance(value, dict):
        value = value.get("bytes")
    if value is None:
        return None
    if isinstance(value, bytes | Path):
        value = read_mask(value, name)
    mask = _array(value)
    if mask.ndim != 2:
        begins = " ".join(str(value)[:60].split())
        raise ValueError(f"the mask of {name} is {begins}; give a picture of class numbers, for example a PNG")
    if mask.dtype == bool:
        return mask.astype(np.uint8) * np.uint8(1 if label is None else label + 1)
    if mask.dtype.kind not in "iu" or mask.min(initial=0) < 0 or mask.max(initial=0) > 255:
        raise ValueError(f"the mask of {name} holds {mask.min()} … {mask.max()}; give class numbers from 0 to 255")
    return mask.astype(np.uint8)


def read_mask(content: bytes | Path, name: str) -> NDArray[np.uint8]:
    """The class numbers of a one-channel picture; those of a palette are its indices."""
    try:
        with Image.open(io.BytesIO(content) if isinstance(content, bytes) else content) as image:
            if image.mode not in ("L", "P", "1", "I", "I;16"):
                raise ValueError(f"the mask of {name} has the mode {image.mode}; give one channel of class numbers")
            mask = np.asarray(image)
    except UnidentifiedImageError:
        raise ValueError(f"the mask of {name} cannot be read: no image that Pillow knows; fetch it again") from None
    except (OSError, SyntaxError) as error:
        raise ValueError(f"the mask of {name} cannot be read: {error}; fetch it again") from None
    if mask.max(initial=0) > 255:
        raise ValueError(f"the mask of {name} holds class {mask.max()}; numbers up to 255 are understood")
    return mask.astype(np.uint8)


def boxes_of(
    value: Any, name: str, form: BoxForm = "corners", *, exclusive: bool = False, option: str = "--boxes"
) -> NDArray[np.float64]:
    """(k, 4), k = 0 where there are none; `form` is sizes for x, y, width, height; `exclusive`: ends are, in any case.

    >>> boxes_of([0, 0, 63, 31], "a").tolist(), boxes_of({"bbox": [[0.0, 0.0, 9.5, 4.0]]}, "a").tolist()
    ([[0.0, 0.0, 64.0, 32.0]], [[0.0, 0.0, 9.5, 4.0]])
    """
    if isinstance(value, np.ndarray):
        if not np.isfinite(value).all():
            raise ValueError(f"the boxes of {name} are {value.tolist()}; give four numbers for each")
        boxes = value.astype(np.float64).reshape(-1, 4)
        if (turned := (boxes[:, 2:] < boxes[:, :2]).any(1)).any():
            raise ValueError(f"a box of {name} is {boxes[turned][0].tolist()}, which ends before it begins; mend it")
        return boxes
    if isinstance(value, dict):
        value = value.get("bbox", value.get("boxes"))
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict):
        value = [one.get("bbox") for one in value]
    boxes = _array([] if value is None else value)
    if boxes.size and (boxes.shape[-1:] != (4,) or boxes.dtype.kind not in "iuf" or not np.isfinite(boxes).all()):
        raise ValueError(f"the boxes of {name} are {str(value)[:60]}; give four numbers for each")
    whole, boxes = boxes.dtype.kind in "iu", boxes.astype(np.float64).reshape(-1, 4)
    if form == "sizes":
        boxes[:, 2:] += boxes[:, :2]
    elif (boxes[:, 2:] < boxes[:, :2]).any():
        wrong = boxes[(boxes[:, 2:] < boxes[:, :2]).any(1)][0].tolist()
        raise ValueError(f"a box of {name} is {wrong}, which ends before it begins; say {option} sizes for x, y, w, h")
    elif whole and not exclusive:
        boxes[:, 2:] += 1
    return boxes


def _array(value: Any) -> NDArray[Any]:
    """The value as an array; one without numbers where its lists are of different lengths."""
    try:
        return np.asarray(value)
    except ValueError:
        return np.array(None)


def check_boxes(boxes: NDArray[np.float64], pixels: NDArray[np.uint8], name: str, *, in_pixels: bool = False) -> None:
    """ValueError if a box lies beside its picture: of another picture, of another size, or in another form.

    `in_pixels`: it is known that they are no shares of the sides.
    """
    height, width = pixels.shape[:2]
    if not in_pixels and len(boxes) and boxes.max() <= 1 and (boxes % 1).any():
        raise ValueError(
            f"a box of {name} is {boxes[0].tolist()}, shares of the picture's sides; give x0, y0, x1, y1 in its pixels"
        )
    beside = (boxes[:, :2] > [width, height]).any(1) | (boxes[:, 2:] < 0).any(1)
    if beside.any():
        raise ValueError(
            f"a box of {name} is {boxes[beside][0].tolist()}, outside the picture of {width} × {height} px; "
            "give x0, y0, x1, y1 in its pixels"
        )


def check_mask(mask: NDArray[np.uint8], pixels: NDArray[np.uint8], name: str) -> None:
    """ValueError if a mask is of another size than its picture."""
    if mask.shape != pixels.shape[:2]:
        (h, w), (H, W) = mask.shape[:2], pixels.shape[:2]
        raise ValueError(f"the mask of {name} is {w} × {h} px, but the picture is {W} × {H}; give masks of its size")


def matching(source: Source, where: Sequence[str], option: str = "--where") -> list[int]:
    """Numbers of the records in which every FIELD=VALUE of `where` holds."""
    pairs = [condition.partition("=") for condition in where]
    for condition, (_, sign, _) in zip(where, pairs, strict=True):
        if not sign:
            raise ValueError(f"where is {condition!r}; write FIELD=VALUE, for example bbox_source=voc2012")
    if not pairs:
        return list(range(len(source)))
    names = [name for name, _, _ in pairs]
    records = source.records(range(len(source)), names)
    found = [r.index for r in records if all(str(r.extras[name]) == value for name, _, value in pairs)]
    if not found:
        raise ValueError(f"no picture of {source.title} has {', '.join(where)}; check {option}")
    return found
