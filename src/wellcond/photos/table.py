"""The table of κ that `wellcond gray` prints, and the lines that say how to read it. Floor 8."""

import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..config import GrayConfig

MAX_ROWS = 20  # of the printed table; kappa.json has them all
IMAGE_WIDTH = 12  # that the names keep at least, in a narrow terminal
Columns = dict[str, list[str]]


def show(console: Console, rows: list[dict[str, Any]], config: GrayConfig) -> None:
    """Print κ before and after, and whose κ it is."""
    title = f"Token graying by {config.method.upper()}, ε = {config.epsilon:g}"
    table = Table(title=title, title_justify="left")
    columns = _that_fit(_columns(rows[:MAX_ROWS], config), console.width)
    for heading in columns:
        left = heading == "image"
        table.add_column(
            heading, justify="left" if left else "right", overflow="fold" if left else "ellipsis", no_wrap=not left
        )
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    console.print(table)
    if len(rows) > MAX_ROWS:
        console.print(f"… and {len(rows) - MAX_ROWS} more in kappa.json")
    for line in _notes(rows, config):
        console.print(line, soft_wrap=True, markup=False)


def number(value: float) -> str:
    """κ, short; ∞ where it is infinite, a dash where there is none."""
    return f"{value:,.0f}" if 100 <= value < 1e6 else _finite(value, ".3g")


def _finite(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "∞" if value > 0 else "–"


def _columns(rows: list[dict[str, Any]], config: GrayConfig) -> Columns:
    folder = config.source.is_dir()
    return {
        "image": [_name(Path(r["image"]), config.source if folder else None) for r in rows],
        "n × d": [f"{r['n']} × {r['d']}" for r in rows],
        "κ before": [number(r["kappa_before"]) for r in rows],
        "κ after": [number(r["kappa_after"]) for r in rows],
        "log κ before": [_finite(r["log_kappa_before"], ".3f") for r in rows],
        "log κ after": [_finite(r["log_kappa_after"], ".3f") for r in rows],
    }


def _name(path: Path, folder: Path | None) -> str:
    """In a folder with its path from there on: two photos may share a name."""
    shown = path.name if folder is None else str(path.relative_to(folder))
    return shown.replace("[", "\\[")  # rich reads [red] as a colour


def _that_fit(columns: Columns, width: int) -> Columns:
    """The columns without those that a narrow terminal has no room for: the logarithms, then the shape."""
    for dropped in ({"log κ before", "log κ after"}, {"n × d"}):
        needed = {heading: max(map(len, [heading, *cells])) for heading, cells in columns.items()}
        needed["image"] = min(needed["image"], IMAGE_WIDTH)
        if sum(needed.values()) + 3 * len(needed) + 1 <= width:
            break
        columns = {heading: cells for heading, cells in columns.items() if heading not in dropped}
    return columns


def _notes(rows: list[dict[str, Any]], config: GrayConfig) -> list[str]:
    share = sum(row["share_at_0_or_255"] for row in rows) / len(rows)
    notes = [
        "κ is that of the ImageNet-normalised, unclipped tokens; the saved picture is clipped "
        f"({100 * share:.1f} % of its values at 0 or 255)"
    ]
    if config.rescale is False:
        largest = "σ_max" if config.method == "svd" else "the largest cosine coefficient"
        notes.append(
            f"without rescaling {largest} is 1, so the picture is nearly uniform; leave --rescale True to see it"
        )
    if deficient := [row for row in rows if row["floor_count"]]:
        notes.append(
            f"κ is infinite before graying for {len(deficient)} of {len(rows)}: "
            "singular values at or under the numerical floor, as in grey or flat pictures"
        )
    return notes
