"""Heat maps: block × site, block × head, and the difference of two diagnoses."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wellcond import report
from wellcond.diagnosis.page.words import (
    Side,
    block_axis,
    brief_site_name,
    in_order,
    is_infinite,
    of_quantity,
    quantities_in_order,
    quantity_name,
    row_hover,
    short,
    site_name,
)
from wellcond.probes.rows import Place, Row, is_token_site

_SITE_AXIS = {"autorange": "reversed", "showgrid": False}  # the first site on top
_FLAT = 0.05  # of the largest value: a narrower range of values does not use the whole range of colours
_LOG_ABOVE = 30.0  # ratio of the largest to the smallest from which colours follow the logarithm


def sites(sides: Sequence[Side]) -> report.Figure | None:
    """Every token quantity at every site."""
    return _figure(sides, keep=is_token_site, order=in_order, name=brief_site_name)


def heads(sides: Sequence[Side]) -> report.Figure | None:
    """Every quantity of attention, of each head and of all together."""
    return _figure(sides, keep=lambda site: not is_token_site(site), order=_heads_in_order, name=_head_name)


def difference(sides: Sequence[Side]) -> report.Figure | None:
    """B − A at the blocks and sites that both have."""
    first, second = sides
    data: list[dict[str, Any]] = []
    options: list[str] = []
    shown: set[str] = set()
    for quantity in _quantities(sides, is_token_site):
        a, b = (of_quantity(side.diagnosis.rows, quantity) for side in (first, second))
        apart = {
            place: (before, after)
            for place in a
            if place in b and (before := a[place].value) is not None and (after := b[place].value) is not None
        }
        if apart:
            data.append(_difference(quantity, apart, number=len(options)))
            options.append(quantity_name(quantity))
            shown |= {site for _, site in apart}
    if not data:
        return None
    blocks = block_axis(x for trace in data for x in trace["x"])
    layout = {"xaxis": blocks | {"showgrid": False}, "yaxis": _SITE_AXIS}
    choices = [report.Choice(name="quantity", options=options)] if len(options) > 1 else []
    height = _height(len(shown))
    return report.Figure(data=data, layout=layout, height=height, choices=choices)


def _difference(quantity: str, apart: dict[Place, tuple[float, float]], number: int) -> dict[str, Any]:
    values = {place: b - a for place, (a, b) in apart.items()}
    name = report.plotly_text(quantity_name(quantity), 40)
    hovers = {
        place: "<br>".join([
            f"<b>block {place[0]}</b> · {site_name(place[1])}",
            f"{name}: {report.format_cell(a)} → {report.format_cell(b)}",
            f"B − A = {values[place]:+.3g}",
        ])
        for place, (a, b) in apart.items()
    }  # fmt: skip
    limit = max(map(abs, values.values())) or 1.0
    trace = _cells(values, hovers, in_order, brief_site_name, lambda value: f"{value:+.2g}")
    return trace | {"colorscale": "apart", "zmin": -limit, "zmax": limit, "when": {"quantity": number}}


def _figure(
    sides: Sequence[Side], *, keep: Callable[[str], bool], order: Callable, name: Callable[[str], str]
) -> report.Figure | None:
    quantities = _quantities(sides, keep)
    data: list[dict[str, Any]] = []
    num_rows = 1
    blocks: list[set[int]] = [set() for _ in sides]
    for number, quantity in enumerate(quantities):
        tables = [_kept(side, quantity, keep) for side in sides]
        values = [row.value for table in tables for row in table.values() if row.value is not None]
        paint = _paint(values)
        for letter, table in enumerate(tables):
            when = {"quantity": number, "model": letter}
            num_rows = max(num_rows, len({site for _, site in table}))
            blocks[letter] |= {layer for layer, _ in table}
            data += [trace | {"when": when} for trace in _map(table, paint, order, name)]
    if not data:
        return None
    choices = []
    if len(quantities) > 1:
        choices.append(report.Choice(name="quantity", options=[quantity_name(q) for q in quantities]))
    if len(sides) > 1:
        choices.append(report.Choice(name="model", options=[side.letter for side in sides], control="buttons"))
    return report.Figure(
        data=data,
        layout={"yaxis": _SITE_AXIS},
        layouts=[
            ({"model": number}, {"xaxis": block_axis(layers) | {"showgrid": False}})
            for number, layers in enumerate(blocks)
        ],
        height=_height(num_rows),
        choices=choices,
    )


def _quantities(sides: Sequence[Side], keep: Callable[[str], bool]) -> list[str]:
    return quantities_in_order(row.quantity for side in sides for row in side.diagnosis.rows if keep(row.site))


def _kept(side: Side, quantity: str, keep: Callable[[str], bool]) -> dict[Place, Row]:
    return {place: row for place, row in of_quantity(side.diagnosis.rows, quantity).items() if keep(place[1])}


def _map(table: dict[Place, Row], paint: dict[str, Any], order: Callable, name: Callable) -> list[dict[str, Any]]:
    """The cells, and the signs ∞ and – in those that have no number."""
    if not table:
        return []
    hovers = {
        place: "<br>".join([f"<b>block {place[0]}</b> · {_full_name(place[1])}", *row_hover(row)])
        for place, row in table.items()
    }
    values = {place: row.value for place, row in table.items()}
    cells = _cells(values, hovers, order, name, _brief)
    if paint["log"]:
        cells["z"] = [[None if z is None else short(math.log10(z)) for z in line] for line in cells["z"]]
    worst = {place for place, row in table.items() if is_infinite(row)}  # in the strongest colour, not in none
    lines = zip(order(site for _, site in table), cells["z"], strict=True)
    cells["z"] = [
        [paint["zmax"] if (layer, site) in worst else z for layer, z in zip(cells["x"], line, strict=True)]
        for site, line in lines
    ]
    cells |= {"zmin": paint["zmin"], "zmax": paint["zmax"], "colorbar": paint["colorbar"]}
    empty = [place for place in sorted(table) if table[place].value is None]
    signs = {
        "type": "scatter",
        "mode": "text",
        "x": [layer for layer, _ in empty],
        "y": [name(site) for _, site in empty],
        "hovertext": [hovers[place] for place in empty],
        "text": ["∞" if is_infinite(table[place]) else "–" for place in empty],
        "textfont": {"color": report.BEFORE, "size": 16},  # read on the strongest colour, light or dark, and on paper
        "hovertemplate": "%{hovertext}<extra></extra>",
        "showlegend": False,
    }
    return [cells, *([signs] if empty else [])]


def _cells(
    values: Mapping[Place, float | None], hovers: Mapping[Place, str], order: Callable, name: Callable, brief: Callable
):
    layers = sorted({layer for layer, _ in values})
    rows = order(site for _, site in values)
    grid = [[(layer, site) for layer in layers] for site in rows]
    trace = {
        "type": "heatmap",
        "x": layers,
        "y": [name(site) for site in rows],
        "z": [[short(values.get(place)) for place in line] for line in grid],
        "hovertext": [[hovers.get(place, "") for place in line] for line in grid],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
    }
    if len(layers) <= 24:
        trace["text"] = [["" if (v := values.get(place)) is None else brief(v) for place in line] for line in grid]
        trace |= {"texttemplate": "%{text}", "textfont": {"size": 12 if len(layers) <= 14 else 10}}
    return trace


def _paint(values: list[float]) -> dict[str, Any]:
    """Limits of the colours; logarithmic where values differ by more than a factor, as kurtosis does."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low > 0 and high / low > _LOG_ABOVE:
        marks = [m * 10.0**e for e in range(-9, 10) for m in (1, 3) if low <= m * 10.0**e <= high]
        ticks = {"tickvals": [math.log10(m) for m in marks], "ticktext": [f"{m:g}" for m in marks]}
        return {"log": True, "zmin": math.log10(low), "zmax": math.log10(high), "colorbar": ticks}
    narrow = max(_FLAT * max(abs(low), abs(high)), 1e-9) - (high - low)
    if narrow > 0:
        low, high = low - narrow / 2, high + narrow / 2
    return {"log": False, "zmin": low, "zmax": high, "colorbar": {}}


def _height(num_rows: int) -> int:
    return 100 + num_rows * (44 if num_rows <= 6 else 30 if num_rows <= 13 else 22)


def _brief(value: float) -> str:
    """A number for a small cell."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.1g}"


def _heads_in_order(names: Sequence[str]) -> list[str]:
    found = set(names)
    numbered = sorted((n for n in found if n[5:].isdigit()), key=lambda n: int(n[5:]))
    return [n for n in sorted(found) if n not in numbered] + numbered


def _full_name(site: str) -> str:
    return site_name(site) if is_token_site(site) else _head_name(site)


def _head_name(site: str) -> str:
    return "all heads" if site == "attention" else report.plotly_text(site.replace("_", " "), 20)
