"""The model in five numbers: how badly conditioned, where, and of what size its token matrices are."""

from collections.abc import Sequence

from wellcond import report
from wellcond.diagnosis.page.words import SITE_NAMES, Side, images_in_words, is_infinite, of_quantity
from wellcond.probes.rows import Row, is_token_site


def section(sides: Sequence[Side]) -> report.Section:
    text = (
        "κ = σ_max/σ_min of an image's token matrix at one place of a block: how unevenly it stretches. log is the "
        "natural logarithm; the numbers are means over images. "
    )
    return report.Section(title="In short", text=text + _regime_in_words(sides), items=[_facts_of_all(sides)])


def _facts_of_all(sides: Sequence[Side]) -> report.Item:
    """Large numbers for one diagnosis, a column each for two."""
    facts = [_facts(side) for side in sides]
    if len(sides) == 1:
        return report.Numbers(items=facts[0])
    labels = list(dict.fromkeys(label for one in facts for label, _, _ in one))
    cells = [{label: f"{report.format_cell(value)} · {note}" for label, value, note in one} for one in facts]
    rows: list[list[report.Cell]] = [["model", *(side.diagnosis.model for side in sides)]]
    rows += [[label, *(column.get(label) for column in cells)] for label in labels]
    return report.Table(columns=["", "A, solid lines", "B, dashed lines"], rows=rows, wrap=True)


def _facts(side: Side) -> list[tuple[str, report.Cell, str]]:
    rows = _log_kappa(side)
    worst = _worst(rows)
    facts: list[tuple[str, report.Cell, str]] = []
    if worst is not None:
        note = f"block {worst.layer}, {_words(worst.site)}"
        if worst.value is None:
            note += f": no finite κ on any image ({sum(row.value is None for row in rows)} of {len(rows)} places)"
        facts.append(("worst log κ", "∞" if is_infinite(worst) else worst.value, note))
    alone, summed = _mean(rows, "sab_out"), _mean(rows, "sab_sum")
    if alone and summed:
        facts.append(("attention alone ①", alone[0], f"{alone[1]}; {report.format_cell(summed[0])} with its skip ②"))
    facts.append(("tokens × width", *_shape(side)))
    num_blocks = len({row.layer for row in side.diagnosis.rows})
    images = images_in_words(side.diagnosis.num_images)
    facts.append(("blocks", num_blocks, f"{images}, {side.diagnosis.arithmetic}"))
    return facts


def _log_kappa(side: Side) -> list[Row]:
    found = of_quantity(side.diagnosis.rows, "log_kappa")
    return [row for (_, site), row in found.items() if is_token_site(site)]


def _worst(rows: Sequence[Row]) -> Row | None:
    """κ = ∞ is worse than any number; NaN is no κ, and comes last."""
    if not rows:
        return None
    return max(rows, key=lambda row: (is_infinite(row), row.value is not None, row.value or 0.0))


def _mean(rows: Sequence[Row], site: str) -> tuple[report.Cell, str] | None:
    """Mean over blocks, and over which: a block without a finite κ is not in it, and must be named."""
    here = [row for row in rows if row.site == site]
    values = [row.value for row in here if row.value is not None]
    if not values:
        return ("∞", "in every block") if here and all(map(is_infinite, here)) else None
    which = "blocks" if len(values) == len(here) else f"the {len(values)} of {len(here)} blocks where it is finite"
    return sum(values) / len(values), f"mean log κ over {which}"


def _shapes(side: Side) -> list[tuple[int, int]]:
    return list(dict.fromkeys((r.n, r.d) for r in side.diagnosis.rows if is_token_site(r.site)))


def _shape(side: Side) -> tuple[str, str]:
    shapes = _shapes(side)
    if not shapes:
        return "–", "no rows"
    signs = {"n ≥ d" if n >= d else "n < d" for n, d in shapes}
    if len(shapes) == 1:
        return f"{shapes[0][0]} × {shapes[0][1]}", signs.pop()
    return f"{shapes[0][0]} × {shapes[0][1]}", f"to {shapes[-1][0]} × {shapes[-1][1]}; {' and '.join(sorted(signs))}"


def _regime_in_words(sides: Sequence[Side]) -> str:
    """What n and d mean for κ: docs/theory.md has the counterexamples."""
    wide = {n < d for side in sides for n, d in _shapes(side)}
    if wide == {False}:
        return "With n ≥ d, no fewer tokens than width, the papers' bounds on κ (of linear attention) can hold."
    if wide == {True}:
        return "With n < d, fewer tokens than width, the papers' bounds on κ do not hold; compare spectra, not κ alone."
    return (
        "Where n < d the papers' bounds on κ do not hold, and κ is not comparable with that where n ≥ d."
        if wide
        else ""
    )


def _words(site: str) -> str:
    return SITE_NAMES.get(site, site)
