"""Conditioning while training, from the probe rows: by block at one epoch, over epochs, and every epoch × block.

Fig. 4 of "Always Skip Attention" (arXiv 2505.01996) has κ of attention's output over epochs; ① alone and ①+② with its
skip are sab_out and sab_sum. Values are means over images, and over the seeds of a config.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from wellcond import report
from wellcond.diagnosis.page.words import (
    block_axis,
    brief_site_name,
    in_order,
    is_infinite,
    quantity_name,
    short,
    site_name,
)
from wellcond.runs_page.curves import epoch_axis
from wellcond.runs_page.groups import Group

Place = tuple[int, int]  # epoch, block
Value = float | None  # mean over images and seeds; inf: every image is rank-deficient; None: none has a number
Table = dict[tuple[str, str], dict[Place, Value]]  # by quantity and site
QUANTITIES = ("log_kappa", "effective_rank", "token_cosine")
OVER_EPOCHS = {"sab_out": "solid", "sab_sum": "dot"}


class Probed:
    """The groups that have probe rows, and their tables."""

    def __init__(self, groups: Sequence[Group]) -> None:
        tables = [(g, _table(g)) for g in groups]
        self.groups = [(g, table) for g, table in tables if table]
        self.sites = in_order(site for _, table in self.groups for _, site in table)
        self.quantities = [q for q in QUANTITIES if any(q == name for _, t in self.groups for name, _ in t)]
        self.blocks = sorted({b for _, t in self.groups for places in t.values() for _, b in places})

    def __bool__(self) -> bool:
        return bool(self.groups)


def by_block(probed: Probed) -> report.Figure:
    """At the last measurement of each config: one line each, the site is chosen."""
    data: list[dict[str, Any]] = []
    sites = [s for s in probed.sites if any(("log_kappa", s) in t for _, t in probed.groups)]
    for number, site in enumerate(sites):
        for row, (g, table) in enumerate(probed.groups):
            values = table.get(("log_kappa", site), {})
            last = max((epoch for epoch, _ in values), default=None)
            line = {block: value for (epoch, block), value in sorted(values.items()) if epoch == last}
            traces = [_line(g, line) | {"hovertemplate": f"epoch {last}: %{{y:.2f}}"}, *_signs(g, line, row)]
            data += [trace | {"when": {"site": number}} for trace in traces]
    start = sites.index("sab_sum") if "sab_sum" in sites else 0
    layout = {"xaxis": block_axis(probed.blocks), "hovermode": "x unified", **_AXES}
    choice = report.Choice(name="site", options=[site_name(s) for s in sites], start=start)
    return report.Figure(data=data, layout=layout, choices=[choice], height=380, caption=_GAPS)


def over_epochs(probed: Probed) -> report.Figure | None:
    """κ of attention alone and with its skip; the median over blocks, or one block."""
    data: list[dict[str, Any]] = []
    options = ["median over blocks", *(f"block {block}" for block in probed.blocks)]
    for number, block in enumerate([None, *probed.blocks]):
        for row, (g, table) in enumerate(probed.groups):
            for site, dash in OVER_EPOCHS.items():
                line = _along_epochs(table.get(("log_kappa", site), {}), block)
                name = f"{g.title} · {brief_site_name(site)}"
                style = {"color": g.colour, "dash": dash, "width": 2.2}
                traces = [_line(g, line) | {"name": name, "line": style, "hovertemplate": "%{y:.2f}"}] if line else []
                data += [t | {"when": {"block": number}} for t in (*traces, *_signs(g, line, row))]
    if not data:
        return None
    layout = {
        "xaxis": epoch_axis(max(e for _, t in probed.groups for places in t.values() for e, _ in places)),
        **_AXES,
        "hovermode": "x unified" if len(probed.groups) < 6 else "closest",
    }
    choice = report.Choice(name="block", options=options)
    caption = f"Solid: ① attention alone; dotted: ①+② with its skip, the same where the skip is cut. {_GAPS}"
    height = 380 + 14 * min(len(data) // len(options), 12)
    return report.Figure(data=data, layout=layout, choices=[choice], height=height, caption=caption)


def maps(probed: Probed) -> report.Figure:
    """Epoch × block of one config, site and quantity. The colours of a quantity mean the same everywhere."""
    data: list[dict[str, Any]] = []
    for q, quantity in enumerate(probed.quantities):
        known = [v for _, t in probed.groups for (n, _), ps in t.items() if n == quantity for v in ps.values()]
        known = [v for v in known if v is not None and math.isfinite(v)]
        limits = (min(known), max(known)) if known else (0.0, 1.0)
        for c, (_, table) in enumerate(probed.groups):
            for s, site in enumerate(probed.sites):
                if cells := table.get((quantity, site)):
                    data += [trace | {"when": {"quantity": q, "config": c, "site": s}} for trace in _map(cells, limits)]
    options = {
        "config": [g.name for g, _ in probed.groups],
        "site": [site_name(s) for s in probed.sites],
        "quantity": [quantity_name(q) for q in probed.quantities],
    }
    choices = [report.Choice(name=name, options=o) for name, o in options.items() if len(o) > 1]
    layout = {
        "xaxis": epoch_axis(max(e for _, t in probed.groups for ps in t.values() for e, _ in ps)) | {"showgrid": False},
        "yaxis": {"title": {"text": "block"}, "dtick": 1, "autorange": "reversed", "showgrid": False},
    }
    return report.Figure(data=data, layout=layout, choices=choices, height=140 + 26 * len(probed.blocks), caption=_GAPS)


_GAPS = "∞: the tokens of every image are rank-deficient to rounding."
_AXES = {
    "yaxis": {"title": {"text": "log κ"}},
    "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
}


def _table(g: Group) -> Table:
    """Means over the seeds that have a value."""
    found: dict[tuple[str, str], dict[Place, list[Value]]] = {}
    for story in g.stories:
        for epoch, rows in story.probed.items():
            for row in rows:
                places = found.setdefault((row.quantity, row.site), {})
                value = math.inf if is_infinite(row) else row.value
                places.setdefault((epoch, row.layer), []).append(value)
    return {name: {place: _mean(values) for place, values in places.items()} for name, places in found.items()}


def _mean(values: Sequence[Value]) -> Value:
    """Of the finite ones; inf or None where there is none."""
    known = [v for v in values if v is not None and math.isfinite(v)]
    return statistics.fmean(known) if known else math.inf if math.inf in values else None


def _along_epochs(places: dict[Place, Value], block: int | None) -> dict[int, Value]:
    epochs = sorted({epoch for epoch, _ in places})
    return {e: median([v for (epoch, b), v in places.items() if epoch == e and block in (None, b)]) for e in epochs}


def median(values: Sequence[Value]) -> Value:
    """∞ is larger than any number: a mean would have to leave it out, and look better the more blocks are lost.

    >>> median([3.0, None, 5.0, math.inf]), median([3.0, math.inf, math.inf])
    (5.0, inf)
    """
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def _line(g: Group, values: dict[int, Value]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": g.title,
        "x": list(values),
        "y": [short(value) for value in values.values()],
        "line": {"color": g.colour, "dash": g.dash, "width": 2.5},
        "marker": {"size": 6},
    }


def _signs(g: Group, values: dict[int, Value], row: int) -> list[dict[str, Any]]:
    """∞ on top, where there is no number to draw; each config in a line of its own."""
    places = [x for x, value in values.items() if value == math.inf]
    if not places:
        return []
    sign = {"type": "scatter", "mode": "text", "showlegend": False, "hoverinfo": "skip", "yaxis": "y2"}
    font = {"color": g.colour, "size": 15}
    height = 0.97 - 0.05 * (row % 8)
    return [sign | {"x": places, "y": [height] * len(places), "text": ["∞"] * len(places), "textfont": font}]


def _map(cells: dict[Place, Value], limits: tuple[float, float]) -> list[dict[str, Any]]:
    epochs, blocks = (sorted({place[i] for place in cells}) for i in (0, 1))
    colours = {
        "type": "heatmap",
        "x": epochs,
        "y": blocks,
        "z": [[short(cells.get((epoch, block))) for epoch in epochs] for block in blocks],
        "zmin": limits[0],
        "zmax": limits[1],
        "xgap": 1 if len(epochs) <= 60 else 0,
        "ygap": 1,
        "hoverongaps": False,
        "hovertemplate": "epoch %{x}, block %{y}: %{z:.3g}<extra></extra>",
    }
    infinite = [place for place, value in cells.items() if value == math.inf]
    signs = {
        "type": "scatter",
        "mode": "text",
        "x": [epoch for epoch, _ in infinite],
        "y": [block for _, block in infinite],
        "text": ["∞" for _ in infinite],
        "hovertemplate": "epoch %{x}, block %{y}: ∞<extra></extra>",
        "showlegend": False,
    }
    return [colours, *([signs] if infinite else [])]
