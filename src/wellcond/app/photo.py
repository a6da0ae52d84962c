"""One photo grayed while the slider moves: the picture, its spectrum, κ before and after.

A photo is made no larger than SIDE, so that an answer follows the slider; κ is that of the reduced picture's
ImageNet-normalised, unclipped tokens, as `wellcond gray` has it.
"""

import html
import math
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wellcond import report
from wellcond.app.uploads import check_photo
from wellcond.data.files import read_image
from wellcond.data.procedural import CLASSES, procedural
from wellcond.photos.table import number
from wellcond.pictures import GrayedPicture, Spectrum, gray_picture

SIDE = 384  # of the picture that is grayed, at most
PATCHES = (8, 16, 32)
BUILT_IN = tuple(f"{index + 1} · {name}" for index, name in enumerate(CLASSES))
COLOURS = {"svd": report.SVD, "dct": report.DCT}
Pixels = NDArray[np.uint8]


def grayed(photo: str | None, built_in: str, method: str, epsilon: float, patch_size: int) -> GrayedPicture:
    """The uploaded photo, or the built-in one where there is none. ValueError in one line for anything odd."""
    if method not in COLOURS:
        raise ValueError(f"method is {method!r}; choose svd or dct")
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon <= 1:
        raise ValueError(f"ε is {epsilon!r}; choose it in (0, 1]")
    if patch_size not in PATCHES:
        raise ValueError(f"patch size is {patch_size!r}; choose one of {', '.join(map(str, PATCHES))}")
    pixels = _cut(_uploaded(photo) if photo else _generated(built_in), patch_size)
    before = _spectrum_before(pixels.tobytes(), pixels.shape, patch_size)
    kind = cast(Literal["svd", "dct"], method)
    return gray_picture(pixels, patch_size=patch_size, method=kind, epsilon=float(epsilon), spectrum_before=before)


def pictures(result: GrayedPicture, method: str, epsilon: float) -> str:
    """Both pictures and the numbers, as HTML; the pictures are in it, so no file is served."""
    before, after = result.spectrum_before, result.spectrum_after
    name = f"grayed, {method.upper()} {epsilon:g}"
    shown = [(result.before, "original", before), (result.after, name, after)]
    figures = "".join(_figure(pixels, title, spectrum) for pixels, title, spectrum in shown)
    height, width = result.before.shape[:2]
    note = f"{width} × {height} pixels, {result.num_tokens} tokens of width {result.width}; log is natural"
    return f'<div class="wc-pair">{figures}</div><p class="wc-note">{html.escape(note)}</p>'


def spectra(result: GrayedPicture, method: str, epsilon: float) -> report.Figure:
    """σ/σ_max before and after, logarithmic."""
    curves = [("original", result.spectrum_before, report.BEFORE)]
    curves.append((f"{method.upper()} {epsilon:g}", result.spectrum_after, COLOURS[method]))
    data = [_line(name, spectrum, colour) for name, spectrum, colour in curves if spectrum.sigma[0] > 0]
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "number of the singular value"}},
        "yaxis": {"title": {"text": "σ / σ_max"}, "type": "log", "exponentformat": "power", "dtick": 1},
        "hovermode": "x unified",
    }
    return report.Figure(data=data, layout=layout, height=320)


def _line(name: str, spectrum: Spectrum, colour: str) -> dict[str, Any]:
    relative = (spectrum.sigma / spectrum.sigma[0]).tolist()
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(range(1, len(relative) + 1)),
        "y": [float(f"{value:.4g}") if value > 0 else None for value in relative],
        "line": {"color": colour, "width": 2.5},
        "hovertemplate": "%{y:.2e}",
    }


def _figure(pixels: Pixels, title: str, spectrum: Spectrum) -> str:
    address = report.Picture(pixels=pixels, title=title).address
    log = f"log κ {spectrum.log_kappa:.2f}" if math.isfinite(spectrum.log_kappa) else "rank-deficient"
    caption = f"{html.escape(title)}<b>κ {number(spectrum.kappa)}</b><small>{log}</small>"
    return f'<figure><img src="{address}" alt="{html.escape(title)}"><figcaption>{caption}</figcaption></figure>'


def _uploaded(photo: str) -> Pixels:
    path = Path(photo)
    check_photo(path)  # it was when it came; it is not trusted to be the same file
    picture = Image.fromarray(read_image(Path(path.name), content=path.read_bytes()))
    picture.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
    return np.asarray(picture)


def _generated(name: str) -> Pixels:
    if name not in BUILT_IN:
        raise ValueError(f"there is no built-in picture {name!r}; choose one of the list")
    return procedural(BUILT_IN.index(name), size=SIDE).image


def _cut(pixels: Pixels, patch_size: int) -> Pixels:
    """The centre, of sides that are multiples of the patch."""
    height, width = pixels.shape[:2]
    if min(height, width) < patch_size:
        raise ValueError(
            f"the photo is {width} × {height} here, smaller than one patch of {patch_size}; choose another"
        )
    top, left = height % patch_size // 2, width % patch_size // 2
    return pixels[top : top + height - height % patch_size, left : left + width - width % patch_size]


@lru_cache(maxsize=16)
def _spectrum_before(content: bytes, shape: tuple[int, ...], patch_size: int) -> Spectrum:
    """Of the picture as it is: the same while the slider moves."""
    pixels = np.frombuffer(content, np.uint8).reshape(shape)
    return gray_picture(pixels, patch_size=patch_size, method="svd", epsilon=1.0).spectrum_before
