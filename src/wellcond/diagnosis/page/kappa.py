"""κ by block: each branch alone and with its skip, as it is and with skips cut.

The picture of Figs. 1b, 3 and 5 of "Always Skip Attention" (arXiv 2505.01996).
"""

from collections.abc import Sequence
from typing import Any

from wellcond import report
from wellcond.diagnosis.page.words import (
    AS_IT_IS,
    Side,
    block_axis,
    colour,
    in_order,
    is_infinite,
    of_quantity,
    row_hover,
    short,
    site_name,
)
from wellcond.probes.rows import Row, is_token_site

CHOICE = "skips"


def figure(sides: Sequence[Side]) -> report.Figure | None:
    """None where there is no log κ."""
    options = list(dict.fromkeys([AS_IT_IS, *(name for side in sides for name in side.diagnosis.variants)]))
    data: list[dict[str, Any]] = []
    layouts: list[tuple[dict[str, int], dict[str, Any]]] = []
    seen: list[Row] = []
    for number, option in enumerate(options):
        drawn: set[str] = set()
        here: list[Row] = []
        for side in sides:
            rows = side.diagnosis.rows if option == AS_IT_IS else side.diagnosis.variants.get(option, [])
            curves = _by_site(rows)
            here += [row for curve in curves.values() for row in curve]
            if number:
                data += [_shadow(site, curve, number) for site, curve in _by_site(side.diagnosis.rows).items()]
            for position, (site, curve) in enumerate(curves.items()):
                data += _traces(side, site, curve, position, number, in_legend=site not in drawn)
                drawn.add(site)
        if len(sides) > 1:
            data += [_key(side, number) for side in sides]
        seen += here
        layouts.append(({CHOICE: number}, {"yaxis": {"range": [0, _top(here)]}}))
    if not seen:
        return None
    layout = {
        "xaxis": block_axis(row.layer for row in seen),
        "yaxis": {"title": {"text": "log κ"}},
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        "hovermode": "closest",
    }
    choices = [report.Choice(name=CHOICE, options=options, control="buttons")] if len(options) > 1 else []
    crosses = " ×: no number for another reason." if any(_sign(row) == "×" for row in seen) else ""
    caption = (
        "Mean over images; the band is one standard deviation. Open marker: some images are rank-deficient to rounding "
        "and are left out of the mean. ∞ at the top: all of them are, and there is no number to draw." + crosses + " "
        "Drag to zoom, double-click to zoom out; click on a name to hide its line."
    )
    return report.Figure(data=data, layout=layout, layouts=layouts, height=440, caption=caption, choices=choices)


def _top(rows: Sequence[Row]) -> float:
    """Upper end of the axis, with room for the signs ∞ where there are any."""
    high = max((row.value + (row.std or 0) for row in rows if row.value is not None), default=1.0)
    return high * (1.3 if any(row.value is None for row in rows) else 1.08)


def _by_site(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """log κ of every branch and sum, by depth; a block's input is the sum before it, and not drawn twice."""
    found = of_quantity(rows, "log_kappa")
    sites = [s for s in in_order(site for _, site in found) if is_token_site(s) and s != "sab_in"]
    return {s: [found[place] for place in sorted(found) if place[1] == s] for s in sites}


def _traces(
    side: Side, site: str, curve: list[Row], position: int, number: int, *, in_legend: bool
) -> list[dict[str, Any]]:
    common = {
        "type": "scatter",
        "legendgroup": site_name(site),
        "when": {CHOICE: number},
        "hovertemplate": "%{hovertext}<extra></extra>",
    }
    values = [short(row.value) for row in curve]
    symbol = "circle" if site.endswith("_out") else "square"
    line = {
        **common,
        "mode": "lines+markers",
        "name": site_name(site),
        "showlegend": in_legend,
        "x": [row.layer for row in curve],
        "y": values,
        "hovertext": [_hover(side, row) for row in curve],
        "line": {"color": colour(site), "width": 2.5, "dash": side.dash},
        "marker": {"size": 7, "symbol": [f"{symbol}-open" if row.num_infinite else symbol for row in curve]},
    }
    infinite = [row for row in curve if row.value is None]
    nowhere = {
        **common,
        "mode": "text",
        "showlegend": False,
        "yaxis": "y2",
        "x": [row.layer for row in infinite],
        "y": [0.97 - 0.05 * position - (0.025 if side.letter == "B" else 0.0) for _ in infinite],
        "text": [_sign(row) for row in infinite],
        "hovertext": [_hover(side, row) for row in infinite],
        "textfont": {"color": colour(site), "size": 15},
    }
    return [*_band(site, curve, number), line, *([nowhere] if infinite else [])]


def _sign(row: Row) -> str:
    return "" if row.value is not None else "∞" if is_infinite(row) else "×"


def _band(site: str, curve: list[Row], number: int) -> list[dict[str, Any]]:
    """Mean ± standard deviation, one outline for each stretch of blocks without a gap."""
    x: list[float | None] = []
    y: list[float | None] = []
    stretch: list[tuple[int, float, float]] = []
    for row in [*curve, None]:
        if row is not None and row.value is not None and row.std is not None:
            stretch.append((row.layer, row.value, row.std))
            continue
        if len(stretch) > 1:
            x += [layer for layer, _, _ in stretch] + [layer for layer, _, _ in stretch[::-1]] + [None]
            y += [short(v + s) for _, v, s in stretch] + [short(v - s) for _, v, s in stretch[::-1]] + [None]
        stretch = []
    if not x:
        return []
    band = {"type": "scatter", "mode": "none", "fill": "toself", "fillcolor": colour(site), "opacity": 0.13}
    return [
        band
        | {
            "x": x,
            "y": y,
            "legendgroup": site_name(site),
            "showlegend": False,
            "hoverinfo": "skip",
            "when": {CHOICE: number},
        }
    ]


def _shadow(site: str, curve: list[Row], number: int) -> dict[str, Any]:
    """The model as it is, faint behind one with skips cut."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [row.layer for row in curve],
        "y": [short(row.value) for row in curve],
        "line": {"color": colour(site), "width": 1.5},
        "opacity": 0.35,
        "legendgroup": site_name(site),
        "showlegend": False,
        "hoverinfo": "skip",
        "when": {CHOICE: number},
    }


def _key(side: Side, number: int) -> dict[str, Any]:
    """A line of the legend without a line in the chart: which dash is whose."""
    line = {"color": report.BEFORE, "dash": side.dash, "width": 2.5}
    name = f"{side.letter} · {report.plotly_text(side.diagnosis.model, 24)}"
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [None],
        "y": [None],
        "line": line,
        "name": name,
        "when": {CHOICE: number},
    }


def _hover(side: Side, row: Row) -> str:
    return "<br>".join([side.lettered(f"<b>block {row.layer}</b> · {site_name(row.site)}"), *row_hover(row)])
