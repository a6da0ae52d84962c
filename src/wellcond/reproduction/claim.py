"""What a claim is. A run is one variant with one seed: the unit that is measured, kept and never measured twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..report import Section

Run = dict[str, Any]  # plain data as JSON takes it: "variant", "seed", and what `measure` returned


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of a claim's table: what the paper says of it, and what the runs say.

    `values` holds one number for each seed, None where a seed has none; `interval` is the 95 % interval over seeds,
    None with fewer than two. `more` is whatever else belongs to the line, as plain data.
    """

    name: str
    paper: str
    value: float | None
    interval: tuple[float, float] | None
    values: Sequence[float | None]
    verdict: str
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The rows, and all of them in one sentence."""

    rows: Sequence[Row]
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`measure(variant, seed, quick)` is one run; `judge(runs)` makes the rows of all of them.

    A recipe that trains is a variant. `quick` is the small version that shows that it works; it is never published.
    """

    name: str
    says: str  # the paper, and where
    measures: str  # how it is measured here, and the rule of the verdict
    scaled_down: str
    variants: tuple[str, ...]
    quick_variants: tuple[str, ...]
    settings: Callable[[bool], dict[str, Any]]  # numbers that decide a run; runs of other settings do not count
    measure: Callable[[str, int, bool], dict[str, Any]]
    judge: Callable[[Sequence[Run]], Judgement]
    sections: Callable[[dict[str, Any]], list[Section]] | None = None  # of the page, after the table
    device: str = "cpu"
    images: str = "procedural"
    origin: dict[str, Any] = field(default_factory=dict)  # commit, hardware, … of numbers that are only read
    # claims that train
    order: tuple[str, ...] = ()  # all variants, where `variants` are only those whose pictures are here
    left_out: str = ""  # what cannot be measured here, and why
    admit: Callable[[str, Sequence[Run]], None] | None = None  # ValueError where a run would not belong to these
    identity: Callable[[str], str] | None = None  # of a variant's config: claims share runs of the same one
    holds: tuple[str, ...] = ()  # what every run of it has in its file, whether it went well or not
    needs: tuple[str, ...] = ()  # what a run of another claim must hold to be taken over
    tell: Callable[[Run], str] | None = None  # the numbers of a finished run in a few words
