"""`wellcond gray`: photographs on disk → grayed pictures, strips and a table of κ. Floor 8.

One photo gives PICTURE and PICTURE-strip.png; a folder gives a folder of both, and kappa.json with every row.
Sizes are checked from the headers before any work; a damaged file in a folder is named, skipped and counted.
"""

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table

from .. import strip
from ..atomic import write_bytes
from ..config import GrayConfig
from ..data.files import read_image
from ..pictures import GrayedPicture, gray_picture
from .plan import Job, check_sizes, output_folder, plan

MAX_ROWS = 20  # of the printed table; kappa.json has them all


def run(config: GrayConfig) -> None:
    """Gray what `config.source` names and print κ before and after."""
    folder = config.source.is_dir()
    jobs = plan(config)
    jobs, skipped = check_sizes(jobs, config, tolerant=folder)
    rows: list[dict[str, Any]] = []
    progress = Console(stderr=True)
    for job in track(jobs, "graying", console=progress, disable=not folder or not progress.is_terminal):
        try:
            rows.append(gray_file(job, config))
        except ValueError as error:
            if not folder:
                raise
            skipped.append(str(error))
    if not rows:
        raise ValueError(f"no readable image in {str(config.source)!r}; {len(skipped)} skipped, first {skipped[0]}")
    for reason in skipped:
        print(f"skipped {reason}", file=sys.stderr)
    if folder:
        write_bytes(output_folder(config) / "kappa.json", _rows_to_json(rows).encode())
    _print(rows, config, num_skipped=len(skipped), jobs=jobs)


def gray_file(job: Job, config: GrayConfig) -> dict[str, Any]:
    """Gray one photo, write its picture and strip, and return its row."""
    image = read_image(job.source, patch_size=config.patch_size, crop=config.crop, resize=config.resize)
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
        "n": grayed.num_tokens,
        "d": grayed.width,
        "method": config.method,
        "epsilon": config.epsilon,
        "kappa_before": before.kappa,
        "kappa_after": after.kappa,
        "log_kappa_before": before.log_kappa,
        "log_kappa_after": after.log_kappa,
        "floor_count": before.floor_count,
    }


def draw(grayed: GrayedPicture, name: str) -> Image.Image:
    """The before/after strip of one grayed picture; it says "condition", for Pillow's own font has no κ."""
    before, after = grayed.spectrum_before, grayed.spectrum_after
    return strip.draw_strip(
        [(grayed.before, "original"), (grayed.after, f"grayed, {name}")],
        [
            strip.Curve(sigma=before.sigma, name=f"original, condition {_number(before.kappa)}", colour=strip.BEFORE),
            strip.Curve(sigma=after.sigma, name=f"{name}, condition {_number(after.kappa)}", colour=strip.AFTER),
        ],
    )


def _save(image: Image.Image, path: Path) -> None:
    """Encode in memory first: an unknown format or a full disk leaves no half file."""
    buffer = io.BytesIO()
    kind = Image.registered_extensions().get(path.suffix.lower(), "PNG")
    image.save(buffer, format=kind, **({"quality": 95} if kind in ("JPEG", "WEBP") else {}))
    write_bytes(path, buffer.getvalue())


def _rows_to_json(rows: list[dict[str, Any]]) -> str:
    finite = [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in r.items()} for r in rows]
    return json.dumps(finite, indent=1, allow_nan=False) + "\n"


def _print(rows: list[dict[str, Any]], config: GrayConfig, *, num_skipped: int, jobs: list[Job]) -> None:
    table = Table(title=f"Token graying by {config.method.upper()}, ε = {config.epsilon:g}", title_justify="left")
    table.add_column("image", overflow="fold")
    for heading in ("n × d", "κ before", "κ after", "log κ before", "log κ after"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows[:MAX_ROWS]:
        table.add_row(
            Path(row["image"]).name,
            f"{row['n']} × {row['d']}",
            *(_number(row[key]) for key in ("kappa_before", "kappa_after")),
            *(f"{row[key]:.3f}" for key in ("log_kappa_before", "log_kappa_after")),
        )
    console = Console(highlight=False)
    console.print(table)
    if len(rows) > MAX_ROWS:
        console.print(f"… and {len(rows) - MAX_ROWS} more in kappa.json")
    if deficient := [row for row in rows if row["floor_count"]]:
        console.print(
            f"κ is infinite before graying for {len(deficient)} of {len(rows)}: "
            "singular values at or under the numerical floor, as in grey or flat pictures"
        )
    if config.source.is_dir():
        console.print(
            f"{len(rows)} grayed, {num_skipped} skipped → {output_folder(config)}",
            soft_wrap=True,
            markup=False,
        )
    else:
        console.print(f"→ {jobs[0].picture}\n→ {jobs[0].strip}", soft_wrap=True, markup=False)


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    return f"{value:,.0f}" if 100 <= value < 1e6 else f"{value:.3g}"
