"""Rows, figures and pictures → one offline HTML file. Floor 0: knows no model and no torch.

A `Report` is a title and sections; a section is a title, a paragraph and items: `Numbers`, `Cards`, `Table`,
`Figure`, `Gallery`. Everything is escaped. plotly.js is embedded once, and only when there is a figure; a
content policy in the page forbids it to load anything from anywhere. Light and dark follow the reader's
system, with a switch. The look is in templates/report.css, what the page does in templates/report.js.

>>> report = Report(title="κ", sections=[Section(title="Rows", items=[Table(columns=["κ"], rows=[[7.5]])])])
>>> "<td class=\\"number\\">7.50</td>" in report.to_html()
True
"""

import base64
import html
import io
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Literal

import jinja2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .atomic import write_bytes
from .finite import finite

# Middle tones that read on white and on black alike; one meaning each, in every report.
BEFORE, SVD, DCT = "#8a94a6", "#3b7ddd", "#e08a2c"
Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """Headline numbers: (label, value, note)."""

    kind: ClassVar[str] = "numbers"
    items: Sequence[tuple[str, Cell, str]]


@dataclass(frozen=True, kw_only=True)
class Card:
    """A statement, and what stands behind it as (label, text). `tone` "warning" is set off, "note" is not."""

    tone: str
    label: str
    text: str
    details: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Statements under each other."""

    kind: ClassVar[str] = "cards"
    items: Sequence[Card]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under column headings; a number is set in figures of equal width, None and NaN as a dash.

    `folded`: the line under which the table hides until it is clicked; `wrap` breaks long texts into lines."""

    kind: ClassVar[str] = "table"
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    folded: str = ""
    wrap: bool = False

    @property
    def numeric(self) -> list[bool]:
        """Of each column, whether its first value is a number: the heading and dashes stand where its numbers do."""
        first = [next((value for value in cells if value is not None), None) for cells in zip(*self.rows, strict=True)]
        return [isinstance(value, int | float) for value in first] or [False] * len(self.columns)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A control above a figure: one of `options` is chosen; `start` is its number at the beginning."""

    name: str
    options: Sequence[str]
    control: Literal["buttons", "menu", "slider"] = "menu"
    start: int = 0


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A plotly figure as plain data: `data` and `layout` as plotly.js takes them. Colours of paper, grid and
    text come from the page, and so do the colour scales "more" (from the page to its opposite) and "apart" (two
    hues, nothing between them).

    With `choices`, a trace may carry `when`, {name of a choice: number of an option}, and is drawn only then;
    `layouts` are pairs (when, layout) laid over `layout`, the later over the earlier. plotly reads a little HTML
    in its texts: names that are not ours go through `plotly_text`.
    """

    kind: ClassVar[str] = "figure"
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any] = field(default_factory=dict)
    height: int = 400
    caption: str = ""
    choices: Sequence[Choice] = ()
    layouts: Sequence[tuple[Mapping[str, int], Mapping[str, Any]]] = ()

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON takes it; plotly reads null as a gap."""
        layouts = [{"when": when, "layout": layout} for when, layout in self.layouts]
        return finite({"data": list(self.data), "layout": self.layout, "layouts": layouts, "height": self.height})


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture with its caption. `when`, as that of a trace, where its gallery has choices."""

    pixels: NDArray[np.uint8]  # (H, W, 3) or (H, W)
    title: str
    note: str = ""
    when: Mapping[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The picture itself as a data: address."""
        return "data:image/png;base64," + as_png(Image.fromarray(self.pixels))

    @property
    def size(self) -> tuple[int, int]:
        """Width, height."""
        return self.pixels.shape[1], self.pixels.shape[0]


def as_png(image: Image.Image) -> str:
    """A PNG file in base64: what a `StoredPicture` holds."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True, kw_only=True)
class StoredPicture:
    """A picture that is a PNG file already, in base64."""

    png: str
    title: str
    note: str = ""
    when: Mapping[str, int] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return "data:image/png;base64," + self.png

    @property
    def size(self) -> tuple[int, int]:
        """Width, height; ValueError if it is no picture."""
        try:
            with Image.open(io.BytesIO(base64.b64decode(self.png, validate=True)), formats=["PNG"]) as image:
                return image.size
        except (ValueError, OSError) as error:
            raise ValueError(f"picture {self.title!r} is no PNG in base64 ({error}); make it again") from None


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Pictures in groups of `columns`, two groups in a row on a wide screen; 0: as many as fit.

    With `choices`, a picture whose `when` does not hold is hidden; for each choice there should be the same number."""

    kind: ClassVar[str] = "gallery"
    pictures: Sequence[Picture | StoredPicture]
    columns: int = 0
    caption: str = ""
    choices: Sequence[Choice] = ()

    def shown_at_first(self, picture: Picture | StoredPicture) -> bool:
        start = {choice.name: choice.start for choice in self.choices}
        return all(start.get(name, option) == option for name, option in picture.when.items())

    @property
    def num_shown(self) -> int:
        return sum(self.shown_at_first(picture) for picture in self.pictures)


Item = Numbers | Cards | Table | Figure | Gallery


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report."""

    title: str
    text: str = ""
    items: Sequence[Item] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """A whole page. `command` is what a reader types to get it again; `versions` are those of the measurement, and
    of the installed `packages` where it does not say."""

    title: str
    summary: str = ""
    sections: Sequence[Section] = ()
    command: str = ""
    packages: Sequence[str] = ("wellcond", "torch", "numpy")
    versions: Mapping[str, str] | None = None

    def to_html(self) -> str:
        """The page as text."""
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("wellcond"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
        environment.filters["cell"] = format_cell
        environment.tests["number_cell"] = lambda value: isinstance(value, int | float)
        has_figure = any(isinstance(item, Figure) for section in self.sections for item in section.items)
        return environment.get_template("report.html").render(
            report=self,
            plotly_js=_plotly_js() if has_figure else "",
            versions=versions(self.packages) if self.versions is None else self.versions,
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


def plotly_text(text: str, limit: int = 60) -> str:
    """A name as plotly shows it: tags, links and its templates %{…} are text; what is too long loses its middle.

    >>> plotly_text("<b>a</b>&%{x}"), plotly_text("abcdefghij", 5)
    ('&lt;b&gt;a&lt;/b&gt;&amp;% {x}', 'ab…ij')
    """
    if len(text) > limit:
        text = text[: limit // 2] + "…" + text[len(text) - (limit - 1) // 2 :]
    return html.escape(text.replace("%{", "% {"), quote=False)


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
