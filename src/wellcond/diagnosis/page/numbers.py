"""Every number as tables, folded away, and how they were made."""

from collections.abc import Sequence

from wellcond import report
from wellcond.diagnosis.page.words import AS_IT_IS, Side, in_order, quantities_in_order, quantity_name, spread
from wellcond.probes.rows import Place, Row, is_token_site


def tables(sides: Sequence[Side]) -> list[report.Table]:
    """One for the rows at the sites of tokens, one for attention, for each variant; the sweep of ε."""
    made: list[report.Table] = []
    for side in sides:
        diagnosis = side.diagnosis
        for variant, rows in {AS_IT_IS: diagnosis.rows, **diagnosis.variants}.items():
            token = [row for row in rows if is_token_site(row.site)]
            attention = [row for row in rows if not is_token_site(row.site)]
            for what, kept in (("tokens", token), ("attention", attention)):
                if kept:
                    made.append(_pivot(side.lettered(f"{what}, {variant}"), kept))
        if diagnosis.advice is not None and diagnosis.advice.sweep:
            sweep: list[list[report.Cell]] = [
                [step.method.upper(), step.epsilon, step.log_kappa, step.num_infinite]
                for step in diagnosis.advice.sweep
            ]
            columns = ["method", "ε", "log κ", "images without a finite κ"]
            made.append(report.Table(columns=columns, rows=sweep, folded=side.lettered("graying of the images")))
    return made


def _pivot(title: str, rows: Sequence[Row]) -> report.Table:
    """A line for each place, a column for each quantity."""
    quantities = quantities_in_order(row.quantity for row in rows)
    by_place: dict[Place, dict[str, Row]] = {}
    for row in rows:
        by_place.setdefault((row.layer, row.site), {})[row.quantity] = row
    order = in_order(row.site for row in rows)
    lines: list[list[report.Cell]] = []
    for layer, site in sorted(by_place, key=lambda place: (place[0], order.index(place[1]))):
        here = by_place[layer, site]
        any_row = next(iter(here.values()))
        floor = max((float(row.floor_count) for row in here.values()), default=0.0)
        cells: list[report.Cell] = [spread(here[q]) if q in here else "–" for q in quantities]
        lines.append([layer, site, *cells, floor, f"{any_row.n} × {any_row.d}"])
    columns = ["block", "site", *(quantity_name(q) for q in quantities), "σ at the floor", "matrix"]
    caption = "mean ± standard deviation over images; (k of m): finite on k of m images"
    return report.Table(columns=columns, rows=lines, caption=caption, folded=f"{title} ({len(rows)} rows)")


def made_with(sides: Sequence[Side]) -> report.Table:
    """Command, versions, source, weights and arithmetic, one column for each diagnosis."""
    names = list(dict.fromkeys(name for side in sides for name in side.diagnosis.versions))
    lines: list[list[report.Cell]] = [
        ["model", *(side.diagnosis.model for side in sides)],
        ["weights", *(side.diagnosis.weights or None for side in sides)],
        ["images", *(f"{d.num_images} of {d.image_size[0]} × {d.image_size[1]}" for d in (s.diagnosis for s in sides))],
        ["source", *(side.diagnosis.source or None for side in sides)],
        ["tokens", *(side.diagnosis.tokens for side in sides)],
        ["arithmetic of the model", *(side.diagnosis.arithmetic for side in sides)],
        ["command", *(side.diagnosis.command or None for side in sides)],
        *([name, *(side.diagnosis.versions.get(name) for side in sides)] for name in names),
    ]
    columns = ["", *(side.letter for side in sides)]
    return report.Table(columns=columns, rows=lines, wrap=True)
