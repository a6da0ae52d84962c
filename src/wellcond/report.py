"""Rows, figures and pictures → one offline HTML file. Floor 0: knows no model and no torch.

A `Report` is a title and sections; a section is a title, a paragraph and items: `Numbers`, `Table`,
`Figure`, `Gallery`. Everything is escaped. plotly.js is embedded once, and only when there is a figure; a
content policy in the page forbids it to load anything from anywhere. Light and dark follow the reader's
system, with a switch.

>>> report = Report(title="κ", sections=[Section(title="Rows", items=[Table(columns=["κ"], rows=[[7.5]])])])
>>> "<td class=\\"number\\">7.50</td>" in report.to_html()
True
"""

import base64
import io
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import jinja2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .atomic import write_bytes

# Middle tones that read on white and on black alike; one meaning each, in every report.
BEFORE, SVD, DCT = "#8a94a6", "#3b7ddd", "#e08a2c"
Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Headline numbers: (label, value, note)."""

    kind: ClassVar[str] = "numbers"
    items: Sequence[tuple[str, Cell, str]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under column headings; a number is set in figures of equal width, None and NaN as a dash."""

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plotly figure as plain data: `data` and `layout` as plotly.js takes them. Colours of paper, grid and
    text come from the page."""

    kind: ClassVar[str] = "figure"
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 400
    caption: str = ""

    @property
    def plain(self) -> dict[str, Any]:
        return _plain({"data": list(self.data), "layout": dict(self.layout)})


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture with its caption."""

    pixels: NDArray[np.uint8]  # (H, W, 3) or (H, W)
    title: str
    note: str = ""

    @property
    def address(self) -> str:
        """The picture itself as a data: address."""
        buffer = io.BytesIO()
        Image.fromarray(self.pixels).save(buffer, format="PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Pictures in groups of `columns`, two groups in a row on a wide screen; 0: as many as fit."""

    kind: ClassVar[str] = "gallery"
    pictures: Sequence[Picture]
    columns: int = 0
    caption: str = ""


Item = Numbers | Table | Figure | Gallery


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report."""

    title: str
    text: str = ""
    items: Sequence[Item] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole page. `command` is what a reader types to get it again."""

    title: str
    summary: str = ""
    sections: Sequence[Section] = ()
    command: str = ""
    packages: Sequence[str] = ("wellcond", "torch", "numpy")

    def to_html(self) -> str:
        """The page as text."""
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("wellcond"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters["cell"] = format_cell
        environment.tests["number_cell"] = lambda value: isinstance(value, int | float)
        has_figure = any(isinstance(item, Figure) for section in self.sections for item in section.items)
        return environment.get_template("report.html").render(
            report=self, plotly_js=_plotly_js() if has_figure else "", versions=versions(self.packages)
        )

    def write(self, path: Path) -> Path:
        """Write the page, whole or not at all, and return where it is."""
        write_bytes(path, self.to_html().encode())
        return path


def format_cell(value: Cell) -> str:
    """A cell as text.

    >>> [format_cell(v) for v in ("a", 3, 4321.0, 0.25, 2e-7, float("inf"), float("nan"), None)]
    ['a', '3', '4,321', '0.250', '2.00e-07', '∞', '–', '–']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if not isinstance(value, float):
        return str(value)
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size != 0 and (size < 1e-3 or size >= 1e6):
        return f"{value:.2e}"
    digits = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Python's version and those of the installed packages; one that is not installed is left out."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _plotly_js() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _plain(value: Any) -> Any:
    """Numpy to lists, and no NaN or infinity: JSON has neither, and plotly reads null as a gap."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
