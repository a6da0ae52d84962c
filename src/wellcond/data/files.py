"""Photographs on disk → uint8 arrays (H, W, 3). Part of the room data, floor 6.

Whatever is wrong with a file comes out as a ValueError that names the file.
"""

import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

ORIENTATION = 0x0112  # in EXIF: how the camera was held
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif"})


def find_images(folder: Path, unreadable: list[str] | None = None) -> list[Path]:
    """The image files under `folder`, by name, sorted; hidden ones are left out.

    Links to folders are followed, and a link to a picture that is gone counts as one: it is missed when it is read.
    A folder that may not be read is an error; one inside it is added to `unreadable`, with the reason, if that
    list is given.
    """

    def complain(error: OSError) -> None:
        if unreadable is None or Path(error.filename) == folder:
            raise error
        unreadable.append(describe(Path(error.filename), error))

    found = []
    for where, folders, names in os.walk(folder, onerror=complain, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and not _leads_back(Path(where, name))]
        paths = (Path(where, name) for name in names if not name.startswith("."))
        found += [p for p in paths if p.suffix.lower() in SUFFIXES and (p.is_file() or p.is_symlink())]
    found.sort()
    if not found:
        but = f", but could not read {unreadable[0]}" if unreadable else ""
        raise ValueError(f"no image in {str(folder)!r}; looked for {', '.join(sorted(SUFFIXES))}{but}")
    return found


def _leads_back(path: Path) -> bool:
    """Is it a link to a folder on the way to it? Following it would never end."""
    return path.is_symlink() and path.resolve() in {parent.resolve() for parent in path.absolute().parents}


def describe(path: Path, error: Exception) -> str:
    """What is wrong with a file, beginning with its name.

    >>> describe(Path("a.png"), PermissionError(13, "Permission denied", "a.png"))
    "'a.png': Permission denied"
    """
    return f"{str(path)!r}: {error.strerror}" if isinstance(error, OSError) and error.strerror else str(error)


def image_size(path: Path) -> tuple[int, int]:
    """(width, height) as the picture will be shown, from the header alone."""
    with _opened(path) as image:
        width, height = image.size
        turned = image.getexif().get(ORIENTATION) in (5, 6, 7, 8)
    return (height, width) if turned else (width, height)


def read_image(
    path: Path,
    *,
    content: bytes | None = None,
    patch_size: int = 1,
    crop: bool = False,
    resize: int | None = None,
    upright: bool = True,
) -> NDArray[np.uint8]:
    """The picture in RGB, from the file or from its `content`, for which `path` is only the name.

    `upright` turns it as its EXIF says. `resize` brings the shorter side to that many pixels and cuts the centre
    square; `crop` cuts both sides to the nearest multiple of `patch_size`, from the centre.
    """
    with _opened(path, content) as image:
        image.load()  # a PNG may have its EXIF after its pixels
        turn = UPRIGHT.get(image.getexif().get(ORIENTATION, 1)) if upright else None
        # not ImageOps.exif_transpose: it writes the EXIF again, and fails where another entry of it is wrong
        picture = _eight_bits(image if turn is None else image.transpose(turn)).convert("RGB")
    if resize is not None:
        return centre_square(picture, resize)
    if crop:
        width, height = (side - side % patch_size for side in picture.size)
        left, top = (picture.width - width) // 2, (picture.height - height) // 2
        picture = picture.crop((left, top, left + width, top + height))
    return np.asarray(picture)


def centre_square(image: Image.Image, side: int) -> NDArray[np.uint8]:
    """The centre of the picture, its shorter side brought to `side` pixels (bicubic)."""
    return np.asarray(ImageOps.fit(image, (side, side), method=Image.Resampling.BICUBIC))


class _Unclear(ValueError):
    """A picture that Pillow reads, but nobody knows how it was meant."""


def _eight_bits(image: Image.Image) -> Image.Image:
    """What Pillow may bring to RGB: 16-bit greys on 0 … 255, which its own conversion would cut off at 255 and turn
    white."""
    if image.mode == "F":
        raise _Unclear("its pixels are fractions, whose range is not known")
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        return image.convert("RGBA")  # the same colours; straight to RGB Pillow warns, of every picture anew
    if not image.mode.startswith("I"):
        return image
    greys = np.asarray(image).astype(np.float64)
    if greys.min() < 0 or greys.max() > 65535:
        raise _Unclear(f"its pixels run from {greys.min():.0f} to {greys.max():.0f}, more than 16 bits")
    return Image.fromarray((greys / 257).round().astype(np.uint8))


@contextmanager
def _opened(path: Path, content: bytes | None = None) -> Iterator[Image.Image]:
    """The open image; decoding inside the block is covered too (a truncated JPEG fails only there)."""
    try:
        with Image.open(path if content is None else io.BytesIO(content)) as image:
            yield image
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Image.DecompressionBombError:
        raise ValueError(f"{str(path)!r}: too many pixels for a photograph; make it smaller first") from None
    # all are how Pillow says 'damaged'
    except (OSError, RuntimeError, SyntaxError, ValueError, EOFError, struct.error) as error:
        unknown = "cannot identify" in str(error)
        reason = "not an image that Pillow knows" if unknown else f"damaged ({error})"
        reason = str(error) if isinstance(error, _Unclear) else reason
        raise ValueError(f"{str(path)!r}: {reason}; save it again as PNG or JPEG") from None
