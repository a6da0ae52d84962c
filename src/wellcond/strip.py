"""A before/after strip as one picture: original, grayed, singular spectrum. Floor 0: pillow and numpy only.

Drawn at three times the size and reduced, because pillow's lines have no smooth edges of their own.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

SCALE = 3  # of the drawing over the result
HEIGHT = 288  # of a panel
MAX_WIDTH = 2 * HEIGHT  # of a picture's panel; wider pictures are made lower
INK, FAINT, GRID, PAPER = "#1f2733", "#6b7686", "#e4e8ee", "#ffffff"
BEFORE, AFTER = "#8a94a6", "#2f6fde"
Pixels = NDArray[np.uint8]
Point = tuple[float, float]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One singular spectrum with its name and colour."""

    sigma: NDArray[np.float64]
    name: str
    colour: str = BEFORE


def draw_strip(pictures: Sequence[tuple[Pixels, str]], curves: Sequence[Curve]) -> Image.Image:
    """Pictures with their captions side by side, then the spectra on a logarithmic axis."""
    gap, caption, font = 20, 30, ImageFont.load_default(15)
    tiles = [_tile(pixels) for pixels, _ in pictures]
    titles = [title for _, title in pictures]
    widths = [max(tile.width, math.ceil(font.getlength(title))) for tile, title in zip(tiles, titles, strict=True)]
    plot_width = int(1.45 * HEIGHT)
    width = gap + sum(w + gap for w in widths) + plot_width + gap
    strip = Image.new("RGB", (width, HEIGHT + caption + 2 * gap), PAPER)
    draw = ImageDraw.Draw(strip)
    left = gap
    for tile, title, panel in zip(tiles, titles, widths, strict=True):
        draw.text((left, gap - 2), title, fill=INK, font=font)
        strip.paste(tile, (left, gap + caption))
        left += panel + gap
    draw.text((left, gap - 2), "singular values", fill=INK, font=font)
    strip.paste(draw_spectra(curves, (plot_width, HEIGHT)), (left, gap + caption))
    return strip


def _tile(pixels: Pixels) -> Image.Image:
    """A picture that fills the panel's height or its greatest width; small ones are enlarged in blocks so that
    pixels stay visible."""
    image = Image.fromarray(pixels)
    scale = min(HEIGHT / image.height, MAX_WIDTH / image.width)
    method = Image.Resampling.LANCZOS if scale <= 2 else Image.Resampling.NEAREST
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), method)


def draw_spectra(curves: Sequence[Curve], size: tuple[int, int]) -> Image.Image:
    """σ_k / σ_max against k, logarithmic upwards."""
    width, height = (SCALE * side for side in size)
    image = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(image)
    frame = (44 * SCALE, 6 * SCALE, width - 8 * SCALE, height - 24 * SCALE)
    relative = [_relative(curve.sigma) for curve in curves]
    lowest = min((math.log10(float(r.min())) for r in relative if r.size), default=-1.0)
    decades = max(1, math.ceil(-lowest - 1e-9))
    longest = max((len(curve.sigma) for curve in curves), default=1)
    _draw_axes(draw, frame, decades, longest)
    drawn: list[Point] = []
    for curve, values in zip(curves, relative, strict=True):
        points = [_place(frame, k, v, decades, longest) for k, v in enumerate(values)]
        if len(points) == 1:
            points.append((points[0][0] + 8 * SCALE, points[0][1]))
        if points:
            draw.line(points, fill=curve.colour, width=2 * SCALE, joint="curve")
        drawn += _along(points)
    _draw_legend(draw, frame, curves, drawn)
    return image.resize(size, Image.Resampling.LANCZOS)


def _relative(sigma: NDArray[np.float64]) -> NDArray[np.float64]:
    """σ/σ_max without zeros (a logarithmic axis has no place for them) and not under 1e-12."""
    top = sigma[0] if sigma.size else 0.0
    if not top > 0:
        return np.empty(0)
    return np.maximum(sigma[sigma > 0] / top, 1e-12)


def _along(points: Sequence[Point]) -> list[Point]:
    """Points of the line through `points`, dense enough to tell what it passes."""
    steps = max(2, 200 // max(1, len(points)))
    parts = (np.linspace(a, b, steps) for a, b in itertools.pairwise(points))
    return [(float(x), float(y)) for part in parts for x, y in part]


def _place(frame: Box, k: int, value: float, decades: int, longest: int) -> Point:
    left, top, right, bottom = frame
    x = left + (right - left) * k / max(1, longest - 1)
    return x, top + (bottom - top) * min(1.0, -math.log10(value) / decades)


def _draw_axes(draw: ImageDraw.ImageDraw, frame: Box, decades: int, longest: int) -> None:
    left, top, right, bottom = frame
    font = ImageFont.load_default(11 * SCALE)
    for decade in range(0, decades + 1, max(1, math.ceil(decades / 6))):
        y = top + (bottom - top) * decade / decades
        draw.line([(left, y), (right, y)], fill=GRID, width=SCALE)
        label = "1" if decade == 0 else f"1e-{decade}"
        draw.text((left - 6 * SCALE, y), label, fill=FAINT, font=font, anchor="rm" if decade else "rt")
    for position, label, anchor in ((left, "1", "lt"), (right, str(longest), "rt")):
        draw.text((position, bottom + 8 * SCALE), label, fill=FAINT, font=font, anchor=anchor)
    title = "number of the singular value"
    draw.text(((left + right) / 2, bottom + 8 * SCALE), title, fill=FAINT, font=font, anchor="mt")


def _draw_legend(draw: ImageDraw.ImageDraw, frame: Box, curves: Sequence[Curve], drawn: Sequence[Point]) -> None:
    """Names on paper, in the corner that hides least of what was drawn: a falling curve leaves the upper right one."""
    font = ImageFont.load_default(12 * SCALE)
    widest = max((draw.textlength(curve.name, font=font) for curve in curves), default=0)
    box = _freest_corner(frame, (widest + 42 * SCALE, (18 * len(curves) + 4) * SCALE), drawn)
    draw.rectangle(box, fill=PAPER)
    for row, curve in enumerate(curves):
        y = box[1] + (11 + 18 * row) * SCALE
        draw.line([(box[0] + 8 * SCALE, y), (box[0] + 28 * SCALE, y)], fill=curve.colour, width=3 * SCALE)
        draw.text((box[0] + 34 * SCALE, y), curve.name, fill=INK, font=font, anchor="lm")


def _freest_corner(frame: Box, size: Point, drawn: Sequence[Point]) -> Box:
    """The box of this size in the corner of the frame with the fewest points in it; of equals the upper right one."""
    left, top, right, bottom = frame
    (width, height), margin = size, 3 * SCALE
    xs, ys = (right - margin - width, left + margin), (top + margin, bottom - margin - height)
    boxes = [(x, y, x + width, y + height) for y in ys for x in xs]
    return min(boxes, key=lambda b: sum(b[0] <= x <= b[2] and b[1] <= y <= b[3] for x, y in drawn))
