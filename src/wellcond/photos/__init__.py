"""`wellcond gray`: photographs on disk → grayed pictures, strips and a table of κ. Floor 8.

One photo gives PICTURE and PICTURE-strip.png; a folder gives a folder of both, and kappa.json with every row.
Sizes are checked from the headers before any work; a file in a folder that is damaged, too small or may not be
read is named, skipped and counted.
"""

import io
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from rich.console import Console
from rich.progress import track

from .. import strip
from ..atomic import write_bytes
from ..config import GrayConfig
from ..data.files import describe, read_image
from ..data.ours import NAMES, SOFTWARE
from ..finite import finite
from ..pictures import GrayedPicture, gray_picture
from ..watching import watched
from . import table
from .plan import Job, check_sizes, output_folder, plan


def run(config: GrayConfig) -> None:
    """Gray what `config.source` names and print κ before and after."""
    folder = config.source.is_dir()
    planned = plan(config)
    jobs, too_bad = check_sizes(planned.jobs, config, tolerant=folder)
    skipped = planned.skipped + too_bad
    rows: list[dict[str, Any]] = []
    progress = Console(stderr=True)
    for job in track(jobs, "graying", console=progress, disable=not folder or not watched(progress)):
        try:
            image = read_image(job.source, patch_size=config.patch_size, crop=config.crop, resize=config.resize)
        except (ValueError, OSError) as error:
            if not folder:
                raise
            skipped.append(describe(job.source, error))
        else:
            rows.append(gray_file(job, image, config))
    if not rows:
        raise ValueError(f"no readable image in {str(config.source)!r}; {len(skipped)} skipped, first {skipped[0]}")
    for reason in skipped:
        print(f"skipped {reason}", file=sys.stderr)
    if folder:
        write_bytes(output_folder(config) / "kappa.json", _rows_to_json(rows).encode())
    if config.json:
        print(_rows_to_json(rows), end="")
        return
    console = Console(highlight=False)
    table.show(console, rows, config)
    if planned.leftovers:
        line = f"ignored {len(planned.leftovers)} of an earlier run ({NAMES})"
        console.print(line, soft_wrap=True, markup=False)
    written = (
        f"{len(rows)} grayed, {len(skipped)} skipped → {output_folder(config)}"
        if folder
        else f"→ {jobs[0].picture}\n→ {jobs[0].strip}"
    )
    console.print(written, soft_wrap=True, markup=False)


def gray_file(job: Job, image: NDArray[np.uint8], config: GrayConfig) -> dict[str, Any]:
    """Gray the photo of one job, write its picture and strip, and return its row."""
    grayed = gray_picture(
        image,
        patch_size=config.patch_size,
        method=config.method,
        epsilon=config.epsilon,
        rescale=config.rescale,
        precision=config.precision,
        order=config.order,
    )
    _save(Image.fromarray(grayed.after), job.picture)
    _save(draw(grayed, f"{config.method.upper()} {config.epsilon:g}"), job.strip)
    before, after = grayed.spectrum_before, grayed.spectrum_after
    return {
        "image": str(job.source),
        "picture": str(job.picture),
        "strip": str(job.strip),
        "n": grayed.num_tokens,
        "d": grayed.width,
        "method": config.method,
        "epsilon": config.epsilon,
        "kappa_before": before.kappa,
        "kappa_after": after.kappa,
        "log_kappa_before": before.log_kappa,
        "log_kappa_after": after.log_kappa,
        "floor_count": before.floor_count,
        "share_at_0_or_255": float(np.mean((grayed.after == 0) | (grayed.after == 255))),
    }


def draw(grayed: GrayedPicture, name: str) -> Image.Image:
    """The before/after strip of one grayed picture, in words, for Pillow's own font has neither κ nor ∞."""
    before, after = grayed.spectrum_before, grayed.spectrum_after
    return strip.draw_strip(
        [(grayed.before, "original"), (grayed.after, f"grayed, {name}")],
        [
            strip.Curve(sigma=before.sigma, name=f"original, condition {_in_words(before.kappa)}", colour=strip.BEFORE),
            strip.Curve(sigma=after.sigma, name=f"{name}, condition {_in_words(after.kappa)}", colour=strip.AFTER),
        ],
    )


def _save(image: Image.Image, path: Path) -> None:
    """Encode in memory first: an unknown format or a full disk leaves no half file."""
    buffer = io.BytesIO()
    kind = Image.registered_extensions().get(path.suffix.lower(), "PNG")
    mark = PngInfo()
    mark.add_text("Software", SOFTWARE)
    options = {"quality": 95} if kind in ("JPEG", "WEBP") else {"pnginfo": mark} if kind == "PNG" else {}
    try:
        image.save(buffer, format=kind, **options)
    except (OSError, ValueError, RuntimeError, struct.error) as error:  # how Pillow's writers say 'too large'
        raise ValueError(
            f"{str(path)!r}: {kind} cannot hold {image.width}×{image.height} pixels ({error}); let --out end in .png"
        ) from None
    write_bytes(path, buffer.getvalue())


def _rows_to_json(rows: list[dict[str, Any]]) -> str:
    return json.dumps(finite(rows), indent=1, allow_nan=False) + "\n"


def _in_words(kappa: float) -> str:
    return table.number(kappa) if math.isfinite(kappa) else "infinite" if kappa > 0 else "undefined"
