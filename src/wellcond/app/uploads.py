"""What an uploaded file must be: an image or safetensors, judged by its content and not by its name alone.

Nothing is unpickled: a file of weights is opened by safetensors or not at all. Of an image only the header is read
here, so that a small file that claims a huge picture (a decompression bomb) is refused before it is unpacked.
"""

import warnings
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from wellcond.data.files import SUFFIXES

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # what Pillow may try; not EPS, which runs code
MAX_PIXELS = 50_000_000
WEIGHTS = ".safetensors"


def check_upload(path: Path) -> None:
    """ValueError, in one line with the name of the file, unless it is an image or safetensors."""
    if path.suffix.lower() == WEIGHTS:
        check_weights(path)
    elif path.suffix.lower() in SUFFIXES:
        check_photo(path)
    else:
        raise ValueError(f"{path.name!r} is neither an image nor a {WEIGHTS} file; give one of these")


def check_photo(path: Path) -> None:
    """ValueError unless Pillow knows it as one of FORMATS with no more than MAX_PIXELS pixels."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit is lower
            with Image.open(path, formats=FORMATS) as image:
                width, height = image.size
    except Image.DecompressionBombError:
        raise ValueError(f"{path.name!r} has too many pixels for a photo; make it smaller first") from None
    except (UnidentifiedImageError, OSError, RuntimeError, SyntaxError, ValueError, EOFError):  # RuntimeError: of AVIF
        raise ValueError(f"{path.name!r} is not an image that is known here; save it as PNG or JPEG") from None
    if width * height > MAX_PIXELS:
        limit = f"the limit is {MAX_PIXELS // 1_000_000} million pixels"
        raise ValueError(f"{path.name!r} is {width} × {height}, and {limit}; make it smaller first")


def check_weights(path: Path) -> None:
    """ValueError unless safetensors can open it and finds tensors."""
    from safetensors import SafetensorError, safe_open

    if path.suffix.lower() != WEIGHTS:
        raise ValueError(f"{path.name!r} does not end in {WEIGHTS}; other files of weights are not opened here")
    try:
        with safe_open(path, framework="numpy") as file:
            found = bool(file.keys())
    except (SafetensorError, OSError, ValueError):
        what = "a pickle, which is not opened here" if _is_pickle(path) else "not a safetensors file, or a damaged one"
        raise ValueError(f"{path.name!r} is {what}; write it with safetensors.torch.save_file") from None
    if not found:
        raise ValueError(f"{path.name!r} holds no tensors; save the state dict of the model")


def _is_pickle(path: Path) -> bool:
    """By its first bytes: a pickle of protocol 2 and later, or the zip that torch.save puts one into."""
    with path.open("rb") as file:
        return file.read(4).startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04"))
