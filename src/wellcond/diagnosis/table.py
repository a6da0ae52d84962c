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
from wellcond.probes.rows import Row

_WITH_STD = 76  # columns; a narrower terminal gets no deviations
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
    """Something that rich can print."""
    cells = {(r.layer, r.site): r for r in diagnosis.rows if r.quantity == "log_kappa" and r.site in SITES}
    height, across = diagnosis.image_size
    shapes = dict.fromkeys(f"{row.n} × {row.d}" for row in cells.values() if row.n > 1)
    head = f"{diagnosis.model}: {diagnosis.num_images} images of {height} × {across}, {diagnosis.arithmetic}"
    caption = f"log κ, mean ± deviation over images; tokens {', '.join(shapes)}"
    marked = any(row.num_infinite or row.floor_count for row in cells.values())
    if marked:
        caption += "; > x: singular as far as the arithmetic can tell, log κ is above x; +k∞ so on k images; – no κ"
    table = Table(title=Text(head), caption=Text(caption), title_justify="left", caption_justify="left")
    table.add_column("block", justify="right")
    sites = [site for site in SITES if any(place[1] == site for place in cells)]
    floors = {(spectrum.layer, spectrum.site): spectrum.floor for spectrum in diagnosis.spectra}
    for site in sites:
        table.add_column(site, justify="right")
    for layer in sorted({layer for layer, _ in cells}):
        row = [_cell(cells.get((layer, site)), floors.get((layer, site)), width >= _WITH_STD) for site in sites]
        table.add_row(str(layer), *row)
    return Group(table, *remarks(diagnosis.findings, diagnosis.missing))


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
