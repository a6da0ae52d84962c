"""What a diagnosis holds: rows, spectra, Jacobians, advice and findings as plain data, ⇄ JSON.

Numbers that are not finite are None, never inf or nan: JSON has neither, and a reader must not average them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from wellcond.blocks import SITES
from wellcond.diagnosis.storing import Stored
from wellcond.probes.rows import Row, SiteSpectrum


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know about the model, in plain words, with the evidence and the fix that applies.

    `kind` is for programs and does not change: rank_collapse, attention_ill_conditioned, numerical_floor, graying,
    heavy_tails, not_finite, as_in_the_papers, not_as_in_the_papers; of a monitor also kappa_rising; of a verification
    also value_output, query_key, mlp_gain, layer_scale, diagonal_kept, diagonal_lost, jacobian_bound.
    """

    kind: str
    severity: str  # "warning": act; "note": know
    layer: int | None  # the block where it begins, None: the whole model
    text: str
    evidence: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class JacobianCurve:
    """Singular values of the Jacobian of one sub-block on one image that was grayed by `method` at `epsilon`.

    Of the fields of `wellcond.jacobian.JacobianSpectrum`; `complete`: `sigma` holds all of them.
    """

    layer: int
    part: str  # "attention" | "mlp"
    method: str | None  # None: the image as it is
    epsilon: float | None
    sigma: tuple[float, ...]  # descending
    error: tuple[float, ...]
    sigma_min: float
    sigma_min_lower: float
    floor: float
    log_kappa: float | None  # None: not resolved, or infinite
    kappa_at_least: float | None
    kappa_at_most: float | None
    complete: bool
    n: int
    d: int
    nodes: tuple[float, ...] = ()  # where not complete: the whole spectrum as a staircase, descending
    ranks: tuple[float, ...] = ()  # of the nodes, from 1; estimated, the middle of each step


@dataclass(frozen=True, kw_only=True)
class GrayingStep:
    """Mean log κ of the images' patch tokens after graying by `method` at `epsilon` (1: as they are).

    The mean is over the images whose κ is finite as they are: graying by cosines makes κ finite where it was not, and a
    mean over more images would compare two different sets. `num_infinite` counts all images where it is not, after.
    """

    method: str
    epsilon: float
    log_kappa: float | None
    num_infinite: int


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What graying would do to these images, and the ε that reaches the target."""

    patch_size: tuple[int, int]
    n: int
    d: int
    log_kappa: float | None  # mean, before
    target: float  # log κ
    epsilon: dict[str, float | None]  # method → the largest ε that reaches the target; None: none in its sweep does
    sweep: tuple[GrayingStep, ...]


@dataclass(frozen=True, kw_only=True)
class Thumbnail:
    """A picture of the page as base64 PNG: an image used, or what graying makes of it."""

    title: str
    note: str
    png: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Stored):
    """The whole of it. `rows` are of the model as it is; `variants` of the same model with skips cut."""

    FORMAT: ClassVar[str] = "wellcond diagnosis 1"

    model: str
    num_images: int
    image_size: tuple[int, int]  # height, width
    tokens: str  # "all" | "patch"
    rows: list[Row]
    variants: dict[str, list[Row]] = field(default_factory=dict)  # "attention skips cut", "mlp skips cut"
    spectra: list[SiteSpectrum] = field(default_factory=list)
    jacobians: list[JacobianCurve] = field(default_factory=list)
    advice: Advice | None = None
    findings: list[Finding] = field(default_factory=list)
    thumbnails: list[Thumbnail] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # what could not be measured, and why
    skipped: list[str] = field(default_factory=list)  # images that could not be read, and why
    source: str = ""  # where the images came from
    weights: str = ""  # "random", "pretrained", "as given", or a file
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    arithmetic: str = "float32"  # of the model's forward pass

    def above(self, limit: float) -> list[Row]:
        """Rows of log κ at the five sites that exceed `limit`, worst first.

        A value is a mean over the images with a finite κ: a row that is infinite on half of its images or more exceeds
        any limit, whatever the others say.
        """
        return rows_above(self.rows, limit)

    def to_html(self, path: Path | str, compare: "Diagnosis | None" = None) -> Path:
        """Write one offline page; with `compare` both diagnoses side by side. Returns where it is."""
        from wellcond.diagnosis import page

        if not isinstance(compare, Diagnosis | None):
            raise ValueError(f"compare is {str(compare)!r}; pass a diagnosis, e.g. Diagnosis.from_json(path)")
        return page.build(self, compare).write(Path(path))

    def __str__(self) -> str:
        """A table of log κ and the findings, as wide as the terminal, without colours."""
        from wellcond.diagnosis.table import as_text

        return as_text(self)

    def _repr_pretty_(self, p: Any, cycle: bool) -> None:
        """A notebook shows what print shows; all rows are in `rows`."""
        p.text(str(self))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """For `rich.print` and `Console.print`: the same with colours."""
        from wellcond.diagnosis.table import renderable

        yield renderable(self, options.max_width)


def rows_above(rows: list[Row], limit: float) -> list[Row]:
    """`Diagnosis.above` of any rows."""
    if not isinstance(limit, int | float) or math.isnan(limit):
        raise ValueError(f"limit={limit!r} is no number; give a log κ, e.g. 12")
    over = [row for row in rows if row.quantity == "log_kappa" and row.site in SITES and _size(row) > limit]
    return sorted(over, key=_size, reverse=True)


def _size(row: Row) -> float:
    return math.inf if row.value is None or 2 * row.num_infinite >= row.num_images else row.value
