"""Spectra of sub-block Jacobians for several ε, and what is not known of them.

The picture of Figs. 7 and 8 of "Always Skip Attention" (arXiv 2505.01996). Of a large Jacobian Lanczos finds the
largest values, with error bars, bounds of the smallest, and from one random direction how the others are spread.
"""

import math
from collections.abc import Sequence
from typing import Any

from wellcond import report
from wellcond.diagnosis.page.spectra import thinned
from wellcond.diagnosis.page.words import AS_IT_IS, METHOD_COLOUR, Side, corner_note, kappa, short
from wellcond.diagnosis.result import JacobianCurve

_POINTS = 120
_VISIBLE = 0.01  # relative error from which a bar is drawn


def figure(sides: Sequence[Side]) -> report.Figure | None:
    """One curve for each ε of the chosen method, of the chosen sub-block. None where there are no Jacobians."""
    places = list(dict.fromkeys((side, c.layer, c.part) for side in sides for c in side.diagnosis.jacobians))
    methods = list(dict.fromkeys(c.method for side in sides for c in side.diagnosis.jacobians if c.method))
    if not places:
        return None
    data: list[dict[str, Any]] = []
    layouts: list[tuple[dict[str, int], dict[str, Any]]] = []
    for number, (side, layer, part) in enumerate(places):
        curves = [c for c in side.diagnosis.jacobians if (c.layer, c.part) == (layer, part)]
        log_axis = any(not c.complete for c in curves)
        layouts.append(
            (
                {"sub-block": number},
                {"xaxis": {"type": "log", "dtick": 1} if log_axis else {"type": "linear"}, **_range(curves)},
            )
        )
        for at, method in enumerate(methods or [None]):
            asked = [c for c in curves if c.method in (None, method)]
            when = {"sub-block": number, "method": at} if methods else {"sub-block": number}
            for position, curve in enumerate(sorted(asked, key=lambda c: -(c.epsilon or 1.0))):
                share = position / max(1, len(asked) - 1)
                data += [trace | {"when": when} for trace in _traces(curve, share)]
        data += [trace | {"when": {"sub-block": number}} for trace in _floor(curves)]
    choices = [
        report.Choice(
            name="sub-block", options=[side.lettered(f"block {layer}, {part}") for side, layer, part in places]
        ),
        report.Choice(name="method", options=[m.upper() for m in methods], control="buttons"),
    ]
    layout = {
        "xaxis": {"title": {"text": "k, number of the singular value"}},
        "yaxis": {
            "title": {"text": "σ<sub>k</sub> of the Jacobian"},
            "type": "log",
            "exponentformat": "power",
            "dtick": 1,
        },
        "hovermode": "closest",
    }
    caption = (
        "Jacobian with respect to the sub-block's normalised input, on one image. Grey: the image as it is; the "
        "stronger the colour, the lower ε. Dashed: the numerical floor. Of a large Jacobian the largest values are "
        "known with their error bars, and how the others are spread is estimated (Lanczos, one random direction). Open "
        "diamond: the smallest singular value is not above it."
    )
    choices = [choice for choice in choices if len(choice.options) > 1]
    return report.Figure(data=data, layout=layout, layouts=layouts, height=440, caption=caption, choices=choices)


def known(sides: Sequence[Side]) -> report.Table:
    """What is known of κ of each Jacobian, in words."""
    rows: list[list[report.Cell]] = [
        [side.lettered(f"block {c.layer}, {c.part}"), _name(c), _in_words(c), _how(c)]
        for side in sides
        for c in side.diagnosis.jacobians
    ]
    folded = f"What is known of κ of these {len(rows)} Jacobians" if len(rows) > 8 else ""
    return report.Table(columns=["sub-block", "image", "κ of the Jacobian", "spectrum"], rows=rows, folded=folded)


def _dash(curve: JacobianCurve, share: float) -> str:
    """Curves that lie on one another are told apart by more than a shade; the lowest ε is solid."""
    return "solid" if curve.method is None or share == 1 else "dot" if share < 0.5 else "dashdot"


def _traces(curve: JacobianCurve, share: float) -> list[dict[str, Any]]:
    places, x, y = _points(curve)
    paint = (
        report.BEFORE
        if curve.method is None
        else _mixed(METHOD_COLOUR.get(curve.method, report.SVD), 0.35 + 0.65 * share)
    )
    name = report.plotly_text(_name(curve), 20)
    line = {
        "type": "scatter",
        "mode": "lines+markers" if not curve.complete or len(x) < 12 else "lines",
        "name": name,
        "legendgroup": name,
        "x": x,
        "y": y,
        "line": {"color": paint, "width": 3 if curve.method is None else 2, "dash": _dash(curve, share)},
        "marker": {"size": 5},
        "hovertemplate": f"<b>{name}</b><br>σ<sub>%{{x}}</sub> = %{{y:.3g}}<extra></extra>",
    }
    bars = [_bar(curve, p) for p in places]
    if any(bars):
        line["error_y"] = {"type": "data", "array": bars, "width": 3, "thickness": 1.2}
    if curve.complete or curve.sigma_min <= 0:
        return [line]
    low = max(curve.sigma_min_lower, 0.0)
    smallest = {
        "type": "scatter",
        "mode": "markers",
        "legendgroup": name,
        "showlegend": False,
        "x": [curve.n * curve.d],
        "y": [short(curve.sigma_min)],
        "marker": {"symbol": "diamond-open", "size": 10, "color": paint},
        "error_y": {"type": "data", "symmetric": False, "array": [0], "arrayminus": [short(curve.sigma_min - low)]},
        "hovertemplate": f"<b>{name}</b><br>the smallest of {curve.n * curve.d} lies between {low:.3g} and "
        f"{curve.sigma_min:.3g}<extra></extra>",
    }
    return [line, smallest]


def _points(curve: JacobianCurve) -> tuple[list[int], list[int], list[float | None]]:
    """(places in `sigma`, numbers k, values): all of them, thinned; or the nodes, whose numbers are estimated."""
    if curve.nodes:
        points = [
            (p, max(1, round(rank)), node) for p, (rank, node) in enumerate(zip(curve.ranks, curve.nodes, strict=True))
        ]
    else:
        points = [(p, p + 1, curve.sigma[p]) for p in thinned(len(curve.sigma), _POINTS)]
    points = [point for point in points if point[2] > 0]
    return [p for p, _, _ in points], [k for _, k, _ in points], [short(value) for _, _, value in points]


def _bar(curve: JacobianCurve, p: int) -> float:
    """Of the value at a place; nodes beyond `sigma` have none."""
    if p >= len(curve.error) or curve.error[p] <= _VISIBLE * curve.sigma[p]:
        return 0.0
    return short(curve.error[p], 2) or 0.0


def _floor(curves: Sequence[JacobianCurve]) -> list[dict[str, Any]]:
    floor = max(curve.floor for curve in curves)
    if not floor > 0:
        return []
    last = max(curve.n * curve.d if not curve.complete else len(curve.sigma) for curve in curves)
    line = {"color": report.BEFORE, "width": 1.5, "dash": "dash"}
    trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "numerical floor",
        "showlegend": math.log10(floor) > _lowest(curves),
        "x": [1, max(2, last)],
        "y": [short(floor)] * 2,
    }
    return [trace | {"line": line, "hovertemplate": "numerical floor: %{y:.1e}<extra></extra>"}]


def _range(curves: Sequence[JacobianCurve]) -> dict[str, Any]:
    """The axis, and a word at its end where the floor is far below."""
    low, floor = _lowest(curves), max(curve.floor for curve in curves)
    top = math.log10(max((v for c in curves for v in c.sigma if v > 0), default=1.0))
    annotations = [corner_note(f"↓ numerical floor at {floor:.0e}")] if 0 < floor <= 10**low else []
    return {"yaxis": {"range": [low, top + 0.3]}, "annotations": annotations}


def _lowest(curves: Sequence[JacobianCurve]) -> float:
    """Lower end of the axis in powers of ten: under a tenth of the floor is rounding of rounding."""
    smallest = [v for c in curves for v in (*c.sigma, *(() if c.complete else (c.sigma_min,))) if v > c.floor / 10]
    low = min((v for v in smallest if v > 0), default=0.1)
    floor = max(curve.floor for curve in curves)
    return math.log10(min(low, floor) if low / 100 <= floor < low else low) - 0.3


def _in_words(curve: JacobianCurve) -> str:
    if not curve.sigma or curve.sigma[0] <= 0:
        return "the Jacobian is zero: it has no κ"
    if curve.log_kappa is not None:
        return f"log κ = {curve.log_kappa:.2f} (κ ≈ {kappa(curve.log_kappa)})"
    if curve.sigma_min <= curve.floor:
        return f"∞: the smallest singular value is under the floor of {curve.floor:.0e}"
    least = "" if not curve.kappa_at_least else f"at least {_number(curve.kappa_at_least)}"
    most = "no upper bound is known" if curve.kappa_at_most is None else f"at most {_number(curve.kappa_at_most)}"
    return "not known: " + ", ".join(part for part in (least, most) if part)


def _number(value: float) -> str:
    return kappa(math.log(value)) if value > 0 else f"{value:g}"


def _how(curve: JacobianCurve) -> str:
    if curve.complete:
        return f"all {len(curve.sigma)} values"
    spread = ", and how the others are spread" if curve.nodes else ""
    return f"the {len(curve.sigma)} largest of {curve.n * curve.d}, with error bars{spread}"


def _name(curve: JacobianCurve) -> str:
    return AS_IT_IS if curve.method is None else f"{curve.method.upper()} {curve.epsilon:g}"


def _mixed(paint: str, share: float) -> str:
    """Between the grey of "as it is" (0) and a colour (1)."""
    pairs = [(int(report.BEFORE[i : i + 2], 16), int(paint[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)
