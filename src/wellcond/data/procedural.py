"""Procedural pictures: a textured shape on a 1/f background, with class, mask and box.

The embedded default of demo and tests: offline, endless, deterministic. Ten classes, shape × texture.
Natural images have amplitude spectra that fall about as 1/f (Field, 1987; between f^-0.8 and f^-1.5 by
scene: Tolhurst et al., 1992), so the background is such noise with random phases and a slope drawn for each
picture. That gives patch matrices steep singular spectra like those of photographs, which plain shapes
would not have.

Only `Generator.random` is drawn, whose stream numpy keeps between versions (PCG64 and SeedSequence are
frozen), and pixels are rounded to uint8: the same (seed, index, size) gives the same bits wherever sin and
the FFT agree to the twelfth digit.

Legend: S side of the picture; x to the right, y down, both in [-1, 1].

>>> sample = procedural(3, size=64)
>>> sample.image.shape, sample.mask.shape, CLASSES[sample.label]
((64, 64, 3), (64, 64), 'checked square')
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Random = Callable[..., Any]  # Generator.random: uniform in [0, 1), a number or an array

SHAPES = ("disc", "square", "triangle", "star", "ring")
TEXTURES = ("striped", "checked")
CLASSES = tuple(f"{texture} {shape}" for shape in SHAPES for texture in TEXTURES)


@dataclass(frozen=True, kw_only=True)
class Procedural:
    """One generated picture."""

    image: NDArray[np.uint8]  # (S, S, 3)
    label: int  # index into CLASSES
    mask: NDArray[np.bool_]  # (S, S), True on the shape
    box: tuple[int, int, int, int]  # x0, y0, x1, y1 in pixels, x1 and y1 exclusive


def procedural(index: int, *, size: int = 224, seed: int = 0) -> Procedural:
    """Picture number `index`; its class is `index % 10`, so every run of ten is balanced."""
    if size < 16:
        raise ValueError(f"size is {size}; a shape needs 16 pixels or more")
    if index < 0 or seed < 0:
        raise ValueError(f"index is {index} and seed is {seed}; both must be 0 or more")
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, index]))).random
    label = index % len(CLASSES)
    shape, texture = SHAPES[label // len(TEXTURES)], TEXTURES[label % len(TEXTURES)]

    radius = 0.42 + 0.26 * random()
    reach = 0.94 - radius  # the whole shape stays inside the picture
    centre = reach * (2 * random(2) - 1)
    x, y = _rotated_grid(size, centre, 2 * np.pi * random())
    distance = _DISTANCE[shape](x / radius, y / radius) * radius  # < 0 inside
    coverage = np.clip(0.5 - distance * size / 2, 0, 1)  # one pixel of blending at the edge

    hue = random()
    background = _background(size, random, hue + 0.35 + 0.3 * random())
    foreground = _foreground(size, random, hue, _TEXTURE[texture](x, y, random), distance / radius)
    shadow = 1 - 0.45 * np.exp(-np.maximum(distance, 0) / (0.12 * radius))
    blended = background * shadow[..., None] * (1 - coverage[..., None]) + foreground * coverage[..., None]
    noise = 0.004 * (random((size, size, 3)) + random((size, size, 3)) - 1)  # a sensor's, so that κ stays finite
    image = np.rint(255 * np.clip(blended + noise, 0, 1)).astype(np.uint8)
    mask = coverage > 0.5
    return Procedural(image=image, label=label, mask=mask, box=_bounding_box(mask))


def images(count: int, *, size: int = 224, seed: int = 0) -> NDArray[np.uint8]:
    """The first `count` pictures as one array (count, S, S, 3): what the examples begin with."""
    pixels = np.empty((count, size, size, 3), np.uint8)
    for index in range(count):
        pixels[index] = procedural(index, size=size, seed=seed).image
    return pixels


def _rotated_grid(size: int, centre: Array, angle: float) -> tuple[Array, Array]:
    """Coordinates of pixel centres in the shape's own frame."""
    line = (2 * np.arange(size) + 1) / size - 1
    dx, dy = line[None, :] - centre[0], line[:, None] - centre[1]
    cosine, sine = np.cos(angle), np.sin(angle)
    return cosine * dx + sine * dy, cosine * dy - sine * dx


def _polygon(num_sides: int) -> Callable[[Array, Array], Array]:
    """Distance to a regular polygon with corners on the unit circle."""

    def distance(x: Array, y: Array) -> Array:
        normals = 2 * np.pi * (np.arange(num_sides) + 0.5) / num_sides
        sides = [np.cos(a) * x + np.sin(a) * y for a in normals]
        return np.maximum.reduce(sides) - np.cos(np.pi / num_sides)

    return distance


def _star(x: Array, y: Array) -> Array:
    """Five rays: the circle's radius waves with the angle."""
    return np.hypot(x, y) - (0.7 + 0.3 * np.cos(5 * np.arctan2(y, x)))


_DISTANCE: dict[str, Callable[[Array, Array], Array]] = {
    "disc": lambda x, y: np.hypot(x, y) - 1,
    "square": _polygon(4),
    "triangle": _polygon(3),
    "star": _star,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.72) - 0.28,
}


def _striped(x: Array, y: Array, random: Random) -> Array:
    """Waves along x, bent a little along y; in [0, 1]."""
    frequency, bend = 14 + 10 * random(), 0.06 * random()
    return _soft_step(np.sin(frequency * (x + bend * np.sin(7 * y + 6 * random()))))


def _checked(x: Array, y: Array, random: Random) -> Array:
    """A chessboard; in [0, 1]."""
    frequency, phase = 9 + 8 * random(), 6 * random()
    return _soft_step(2 * np.sin(frequency * x + phase) * np.sin(frequency * y + phase))


_TEXTURE = {"striped": _striped, "checked": _checked}


def _soft_step(wave: Array) -> Array:
    return 0.5 + 0.5 * np.clip(2.5 * wave, -1, 1)


def _foreground(size: int, random: Random, hue: float, texture: Array, depth: Array) -> Array:
    """Two tones of one hue by the texture, 1/f grain, and light that falls off towards the edge."""
    light, dark = _colour(hue, 0.75, 0.95), _colour(hue + 0.08, 0.85, 0.42)
    tone = texture[..., None] * light + (1 - texture[..., None]) * dark
    grain = 0.05 * _one_over_f(size, random)[..., None]
    shading = 0.72 + 0.34 * np.sqrt(np.clip(-1.4 * depth, 0, 1))[..., None]
    return tone * shading + grain


def _background(size: int, random: Random, hue: float) -> Array:
    """1/f brightness plus a weaker 1/f drift between two neighbouring hues, as in foliage, cloud or stone."""
    slope = 1.2 + 0.3 * random()
    brightness = 0.52 + 0.18 * _one_over_f(size, random, slope)
    drift = 0.5 + 0.35 * _one_over_f(size, random, slope)
    first, second = _colour(hue, 0.42, 1.0), _colour(hue + 0.14, 0.3, 1.0)
    mixed = drift[..., None] * first + (1 - drift[..., None]) * second
    return np.clip(brightness, 0.04, 1)[..., None] * mixed


def _one_over_f(size: int, random: Random, slope: float = 1.0) -> Array:
    """(S, S) noise with amplitude f^-slope and random phases: mean 0, deviation 1."""
    fy, fx = np.fft.fftfreq(size)[:, None], np.fft.rfftfreq(size)[None, :]
    frequency = np.hypot(fy, fx)
    frequency[0, 0] = np.inf  # no mean
    spectrum = np.exp(2j * np.pi * random(frequency.shape)) * frequency**-slope
    noise = np.fft.irfft2(spectrum, s=(size, size))
    return noise / noise.std()


def _colour(hue: float, saturation: float, value: float) -> Array:
    """(3,) red, green, blue in [0, 1] by cosines around the colour wheel."""
    wheel = 0.5 + 0.5 * np.cos(2 * np.pi * (hue - np.array([0, 1 / 3, 2 / 3])))
    return value * (1 - saturation * (1 - wheel))


def _bounding_box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
