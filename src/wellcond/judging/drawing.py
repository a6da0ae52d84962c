"""Overlays: boxes, objects, classes and PCA colours on a small picture."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
TRUE, FOUND = (62, 190, 96), (240, 72, 56)
SIDE = 160  # of a picture on the page
PALETTE = [(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167)]


def small(pixels: Pixels) -> tuple[Pixels, float]:
    """The picture with its longer side at SIDE, and the scale."""
    height, width = pixels.shape[:2]
    times = SIDE / max(height, width)
    size = (max(1, round(width * times)), max(1, round(height * times)))
    way = Image.Resampling.NEAREST if times > 2 else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(pixels).resize(size, way)), times


def with_object(pixels: Pixels, box: Iterable[float] | None, mask: NDArray[np.bool_], true_boxes: Iterable) -> Pixels:
    """What is not the object darkened, its box in red, true ones in green."""
    shown, times = small(pixels)
    inside = fitted(mask.astype(np.uint8), shown) > 0
    shown = np.where(inside[..., None], shown, (shown * 0.45).astype(np.uint8))
    for true in true_boxes:
        shown = framed(shown, [value * times for value in true], TRUE)
    return shown if box is None else framed(shown, [value * times for value in box], FOUND)


def with_truth(pixels: Pixels, boxes: Iterable, mask: Pixels | None) -> Pixels:
    """True boxes in green; what is not of the true object darkened."""
    shown, times = small(pixels)
    if mask is not None:
        inside = fitted(mask, shown) == 1
        shown = np.where(inside[..., None], shown, (shown * 0.45).astype(np.uint8))
    for true in boxes:
        shown = framed(shown, [value * times for value in true], TRUE)
    return shown


def with_classes(pixels: Pixels, classes: NDArray) -> Pixels:
    """Each class but 0 in a colour of its own, void (255) in white."""
    shown, _ = small(pixels)
    numbers = fitted(classes.astype(np.uint8), shown)
    colour = np.array([(0, 0, 0), *PALETTE * 36, *PALETTE[:2], (255, 255, 255)], np.float64)[:256]
    colour[255] = 255
    tinted = 0.45 * shown + 0.55 * colour[numbers]
    return np.where((numbers > 0)[..., None], tinted, 0.6 * shown).astype(np.uint8)


def as_colours(colours: NDArray, pixels: Pixels, patch_size: tuple[int, int]) -> Pixels:
    """(h, w, 3) in 0 … 1, patches as squares, at the size of the picture; what covers its padding is left out."""
    shown, _ = small(pixels)
    rows, columns = (
        number * side / (-(-side // patch) * patch)
        for number, side, patch in zip(colours.shape, pixels.shape, patch_size, strict=False)
    )
    map_ = Image.fromarray((255 * colours).round().astype(np.uint8))
    return np.asarray(map_.resize((shown.shape[1], shown.shape[0]), Image.Resampling.NEAREST, (0, 0, columns, rows)))


def fitted(numbers: Pixels, like: Pixels) -> Pixels:
    return np.asarray(Image.fromarray(numbers).resize((like.shape[1], like.shape[0]), Image.Resampling.NEAREST))


def framed(pixels: Pixels, box: Iterable[float], colour: tuple[int, int, int], width: int = 2) -> Pixels:
    """A frame inside the box, which may reach beyond the picture."""
    height, length = pixels.shape[:2]
    x0, y0, x1, y1 = (round(value) for value in box)
    x0, x1 = max(0, min(x0, length - 1)), max(1, min(x1, length))
    y0, y1 = max(0, min(y0, height - 1)), max(1, min(y1, height))
    pixels = np.array(pixels)
    for rows, columns in (
        (slice(y0, y0 + width), slice(x0, x1)),
        (slice(max(y0, y1 - width), y1), slice(x0, x1)),
        (slice(y0, y1), slice(x0, x0 + width)),
        (slice(y0, y1), slice(max(x0, x1 - width), x1)),
    ):
        pixels[rows, columns] = colour
    return pixels
