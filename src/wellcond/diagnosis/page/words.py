"""Names, colours and numbers as the page writes them; and the one or two diagnoses that it shows.

The circled numbers are those of Fig. 1 of "Always Skip Attention" (arXiv 2505.01996): ① attention, ② its skip, ③ MLP,
④ its skip. Red is attention and violet the MLP, strong alone and light with its skip: told apart also by readers who
do not see red or green, and at least 2.7 : 1 against a white or a black page.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from wellcond import report
from wellcond.diagnosis.result import Diagnosis
from wellcond.probes.rows import SITE_WORDS, Place, Row

NUMBERS = {"sab_out": "①", "sab_sum": "①+②", "ffn_out": "③", "ffn_sum": "③+④"}
SITE_NAMES = {site: f"{NUMBERS.get(site, '')} {words}".lstrip() for site, words in SITE_WORDS.items()}
BRIEF_SITE_NAMES = {  # beside the rows of a heat map
    "sab_out": "① attention",
    "sab_sum": "①+② with skip",
    "lpi_out": "patch mixing",
    "lpi_sum": "patch mixing + skip",
    "ffn_out": "③ MLP",
    "ffn_sum": "③+④ with skip",
}
SITE_COLOUR = {
    "sab_in": report.BEFORE,
    "sab_out": "#bd362d",
    "sab_sum": "#ea7d5d",
    "lpi_out": "#17786f",
    "lpi_sum": "#4fae9f",
    "ffn_out": "#6c5fe0",
    "ffn_sum": "#a29ff3",
}
QUANTITY_NAMES = {
    "log_kappa": "log κ",
    "effective_rank": "effective rank",
    "stable_rank": "stable rank",
    "token_cosine": "token cosine",
    "kurtosis": "kurtosis",
    "attention_entropy": "entropy of attention",
    "attention_diagonal": "diagonal mass of attention",
    "attention_log_kappa": "log κ of attention maps",
}
METHOD_COLOUR = {"svd": report.SVD, "dct": report.DCT}
AS_IT_IS = "as it is"


@dataclass(frozen=True, eq=False)
class Side:
    """A diagnosis on the page, with its letter when there are two."""

    letter: str  # "A", "B"; "" when alone
    diagnosis: Diagnosis

    @property
    def dash(self) -> str:
        return "dash" if self.letter == "B" else "solid"

    def lettered(self, text: str) -> str:
        return f"{self.letter}: {text}" if self.letter else text


def of_quantity(rows: Iterable[Row], quantity: str) -> dict[Place, Row]:
    return {(row.layer, row.site): row for row in rows if row.quantity == quantity}


def in_order(sites: Iterable[str]) -> list[str]:
    """Sites in the order in which a block computes them; names that we do not know come last."""
    known = list(SITE_NAMES)
    return sorted(set(sites), key=lambda site: (known.index(site) if site in known else len(known), site))


def site_name(site: str) -> str:
    return SITE_NAMES.get(site) or report.plotly_text(site, 30)


def brief_site_name(site: str) -> str:
    return BRIEF_SITE_NAMES.get(site) or site_name(site)


def colour(site: str) -> str:
    return SITE_COLOUR.get(site, report.BEFORE)


def quantities_in_order(found: Iterable[str]) -> list[str]:
    """As they are defined; names that we do not know come last."""
    names = set(found)
    return [q for q in QUANTITY_NAMES if q in names] + sorted(names - set(QUANTITY_NAMES))


def quantity_name(quantity: str) -> str:
    return QUANTITY_NAMES.get(quantity) or quantity.replace("_", " ")


def images_in_words(count: int) -> str:
    """
    >>> images_in_words(1), images_in_words(64)
    ('1 image', '64 images')
    """
    return f"{count} image{'' if count == 1 else 's'}"


def short(value: float | None, digits: int = 4) -> float | None:
    """Rounded to significant digits, so that the page stays small; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def spread(row: Row) -> str:
    """The value with its spread, over how many images if not all; ∞ or a dash where there is none.

    >>> row = Row(layer=0, site="sab_in", quantity="log_kappa", value=6.204, std=0.3, floor_count=0, num_infinite=0,
    ...     num_images=8, n=5, d=4)
    >>> spread(row)
    '6.20 ± 0.300'
    """
    if row.value is None:
        return "∞" if is_infinite(row) else "–"
    text = report.format_cell(row.value) + ("" if row.std is None else f" ± {report.format_cell(row.std)}")
    return text + (f" ({row.num_images - row.num_infinite} of {row.num_images})" if row.num_infinite else "")


def is_infinite(row: Row) -> bool:
    """No image has a finite κ, and rank is the reason: without singular values at the floor it is NaN."""
    return row.value is None and row.quantity.endswith("log_kappa") and row.floor_count > 0


def kappa(log_kappa: float) -> str:
    """κ from its logarithm.

    >>> kappa(6.2), kappa(8.7), kappa(12.0), kappa(800.0)
    ('493', '6003', '1.6e5', 'e^800')
    """
    if log_kappa > 700:
        return f"e^{log_kappa:.0f}"
    value = math.exp(log_kappa)
    if value < 1e4:
        return f"{value:.3g}" if value < 100 else f"{value:.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def row_hover(row: Row) -> list[str]:
    """What a pointer on a point or a cell says, in lines."""
    name = report.plotly_text(quantity_name(row.quantity), 40)
    if row.value is None:
        reason = "rank-deficient to rounding" if is_infinite(row) else "not finite"
        first = f"{name} = ∞" if is_infinite(row) else f"{name}: no value"
        lines = [first, f"{reason} on all {row.num_images} images"]
    else:
        first = f"{name} = {report.format_cell(row.value)}"
        first += "" if row.std is None else f" ± {report.format_cell(row.std)}"
        lines = [first + (f" (κ ≈ {kappa(row.value)})" if row.quantity.endswith("log_kappa") else "")]
        if row.num_infinite:
            lines.append(
                f"over {row.num_images - row.num_infinite} of {row.num_images} images; not finite on the others"
            )
    if row.floor_count:
        lines.append(f"{report.format_cell(float(row.floor_count))} singular values at the floor, on average")
    return [*lines, f"matrix of {row.n} × {row.d}"]


def block_axis(layers: Iterable[int]) -> dict:
    """An axis of blocks: every block is named while there is room."""
    layers = sorted(set(layers))
    first, last = (layers[0], layers[-1]) if layers else (0, 0)
    ticks = {"dtick": 1} if last - first < 16 else {}
    return {"title": {"text": "block"}, "range": [first - 0.5, last + 0.5], "tickformat": "d", **ticks}


def corner_note(text: str) -> dict:
    """An annotation at the lower left edge of a chart: for what lies below it."""
    place = {"xref": "paper", "yref": "paper", "x": 0.01, "y": 0.01, "xanchor": "left", "yanchor": "bottom"}
    return place | {"text": text, "showarrow": False, "font": {"size": 12}}
