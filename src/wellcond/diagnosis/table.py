"""A diagnosis on the terminal: layer × site of log κ, then the findings."""

import io
import shutil
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wellcond.blocks import SITES
from wellcond.diagnosis.result import Diagnosis, Finding
from wellcond.probes.rows import SITE_WORDS, Place, Row

_COLOUR = {"warning": "yellow", "note": "cyan"}


def as_text(diagnosis: Diagnosis, width: int | None = None) -> str:
    """Without colours, and as wide as the terminal (100 where there is none)."""
    width = terminal(width)
    return plain(renderable(diagnosis, width), width)


def terminal(width: int | None = None) -> int:
    return max(width or shutil.get_terminal_size((100, 24)).columns, 40)


def plain(shown: Any, width: int | None = None) -> str:
    """What rich prints, without colours."""
    console = Console(file=io.StringIO(), width=terminal(width), color_system=None, force_terminal=False, record=True)
    console.print(shown)
    return "\n".join(line.rstrip() for line in console.export_text().rstrip("\n").splitlines())


def renderable(diagnosis: Diagnosis, width: int = 100) -> Any:
    """Something that rich can print. Deviations are left out where the table would be wider than `width`."""
    cells = {(r.layer, r.site): r for r in diagnosis.rows if r.quantity == "log_kappa" and r.site in SITES}
    sites = [site for site in SITES if any(place[1] == site for place in cells)]
    headings = ["block", *(SITE_WORDS[site].replace(" ", "\n", 1) for site in sites)]
    rows, with_std = _rows(diagnosis, cells, sites, with_std=True), True
    if _width([headings, *rows]) > width:
        rows, with_std = _rows(diagnosis, cells, sites, with_std=False), False
    height, across = diagnosis.image_size
    head = f"{diagnosis.model}: {diagnosis.num_images} images of {height} × {across}, {diagnosis.arithmetic}"
    table = Table(
        title=Text(head),
        caption=Text(_caption(list(cells.values()), with_std)),
        title_justify="left",
        caption_justify="left",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    return Group(table, *remarks(diagnosis.findings, diagnosis.missing))


def _caption(cells: list[Row], with_std: bool) -> str:
    shapes = dict.fromkeys(f"{row.n} × {row.d}" for row in cells if row.n > 1)
    text = f"log κ, mean {'± deviation ' if with_std else ''}over images; tokens {', '.join(shapes)}"
    if any(row.num_infinite or row.floor_count for row in cells):
        text += "; > x: singular as far as the arithmetic can tell, log κ is above x; +k∞ so on k images; – no κ"
    return text


def _rows(diagnosis: Diagnosis, cells: dict[Place, Row], sites: list[str], *, with_std: bool) -> list[list[str]]:
    floors = {(spectrum.layer, spectrum.site): spectrum.floor for spectrum in diagnosis.spectra}
    return [
        [str(layer), *(_cell(cells.get((layer, site)), floors.get((layer, site)), with_std) for site in sites)]
        for layer in sorted({layer for layer, _ in cells})
    ]


def _width(rows: list[list[str]]) -> int:
    """Of a table with these rows: each column with a space on both sides and a line after it."""
    lines = [[max(map(len, cell.split("\n"))) for cell in row] for row in rows]
    return 1 + sum(max(column) + 3 for column in zip(*lines, strict=True))


def remarks(findings: list[Finding], missing: list[str]) -> list[Any]:
    """The findings, and what was not measured, under a table."""
    parts: list[Any] = []
    for finding in findings:
        text = Text(f"{finding.severity}: ", style=f"bold {_COLOUR.get(finding.severity, '')}")
        parts.append(text.append(finding.text, style="not bold default"))
        parts.append(Padding(Text(finding.evidence, style="dim"), (0, 0, 0, 2)))
        if finding.remedy:
            parts.append(Padding(Text(f"→ {finding.remedy}"), (0, 0, 0, 2)))
    return parts + [Text(f"not measured: {sentence}", style="dim") for sentence in missing]


def _cell(row: Row | None, floor: float | None, with_std: bool) -> str:
    """`floor` is ln(floor/σ_max): what is known where κ is not is that it lies above 1/floor."""
    if row is None:
        return ""
    if row.value is None:
        return "–" if not row.floor_count else "∞" if floor is None else f"> {-floor:.1f}"
    text = f"{row.value:.2f}" + (f" ± {row.std:.2f}" if with_std else "")
    return f"{text} +{row.num_infinite}∞" if row.num_infinite else text
