"""The ε adviser: log κ of the images' patch tokens against ε for both methods, and the ε that reaches the target."""

from collections.abc import Sequence
from typing import Any

from wellcond import report
from wellcond.diagnosis.page.words import METHOD_COLOUR, Side, short
from wellcond.diagnosis.result import Advice, Thumbnail


def numbers(side: Side, advice: Advice) -> report.Numbers:
    """Before, target, and the advised ε of each method."""
    size = f"patches of {advice.patch_size[0]} × {advice.patch_size[1]}: {advice.n} × {advice.d}"
    items: list[tuple[str, report.Cell, str]] = [
        (side.lettered("log κ of the images"), advice.log_kappa, size),
        (side.lettered("target"), advice.target, "log κ to reach"),
    ]
    for method, epsilon in advice.epsilon.items():
        note = "none in its sweep reaches the target" if epsilon is None else "the largest ε that reaches it"
        items.append((side.lettered(f"ε for {method.upper()}"), "–" if epsilon is None else f"{epsilon:.3g}", note))
    return report.Numbers(items=items)


def figure(sides: Sequence[Side]) -> report.Figure:
    """log κ against ε; 1 changes nothing, to the right it does more."""
    data: list[dict[str, Any]] = []
    for side in sides:
        advice = side.diagnosis.advice
        if advice is not None:
            data += _curves(side, advice)
    layout = {
        "xaxis": {"title": {"text": "ε"}, "autorange": "reversed"},
        "yaxis": {"title": {"text": "log κ, mean"}, "rangemode": "tozero"},
        "hovermode": "closest",
    }
    return report.Figure(data=data, layout=layout, height=380)


def _curves(side: Side, advice: Advice) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = []
    for method in dict.fromkeys(step.method for step in advice.sweep):
        data.append(_sweep(side, advice, method))
        epsilon = advice.epsilon.get(method)
        if epsilon is not None:
            data.append(_advised(side, advice, method, epsilon))
    return [*data, _target(side, advice)]


def _sweep(side: Side, advice: Advice, method: str) -> dict[str, Any]:
    steps = sorted((s for s in advice.sweep if s.method == method), key=lambda s: -s.epsilon)
    name = _name(side, method)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "legendgroup": name,
        "x": [step.epsilon for step in steps],
        "y": [short(step.log_kappa) for step in steps],
        "customdata": [f"; not finite on {s.num_infinite} images" if s.num_infinite else "" for s in steps],
        "line": {"color": _paint(method), "width": 2.5, "dash": side.dash},
        "marker": {"size": 8, "symbol": ["circle-open" if s.num_infinite else "circle" for s in steps]},
        "hovertemplate": f"<b>{name}</b><br>ε = %{{x:.3g}}: log κ = %{{y:.2f}}%{{customdata}}<extra></extra>",
    }


def _advised(side: Side, advice: Advice, method: str, epsilon: float) -> dict[str, Any]:
    """A star on the target, and a line down from it to the axis."""
    name = _name(side, method)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "legendgroup": name,
        "showlegend": False,
        "x": [epsilon, epsilon],
        "y": [0, advice.target],
        "line": {"color": _paint(method), "width": 1.5, "dash": "dot"},
        "marker": {"size": [0, 13], "symbol": "star"},
        "hovertemplate": f"<b>{name}</b><br>ε = %{{x:.3g}} reaches the target<extra></extra>",
    }


def _target(side: Side, advice: Advice) -> dict[str, Any]:
    ends = [step.epsilon for step in advice.sweep] or [0.5, 1.0]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": side.lettered("target"),
        "x": [max(ends), min(ends)],
        "y": [advice.target] * 2,
        "line": {"color": report.BEFORE, "width": 1.5, "dash": "dash"},
        "hovertemplate": "target: log κ = %{y:.2f}<extra></extra>",
    }


def _name(side: Side, method: str) -> str:
    return side.lettered(report.plotly_text(method.upper(), 12))


def _paint(method: str) -> str:
    return METHOD_COLOUR.get(method, report.BEFORE)


def is_grayed(thumbnail: Thumbnail) -> bool:
    """Whether it shows what graying makes of an image: its note, or its title, begins with the method."""
    return any(text.lower().startswith(tuple(METHOD_COLOUR)) for text in (thumbnail.title, thumbnail.note))


def groups(side: Side) -> list[list[report.StoredPicture]]:
    """Each image, followed by what graying makes of it."""
    found: list[list[report.StoredPicture]] = []
    for thumbnail in side.diagnosis.thumbnails:
        picture = report.StoredPicture(png=thumbnail.png, title=side.lettered(thumbnail.title), note=thumbnail.note)
        if found and is_grayed(thumbnail):
            found[-1].append(picture)
        else:
            found.append([picture])
    return found


def gallery(sides: Sequence[Side]) -> report.Gallery | None:
    """The images that were grayed, before and after. None where there are none."""
    shown = [group for side in sides for group in groups(side) if len(group) > 1]
    if not shown:
        return None
    columns = len(shown[0]) if len({len(group) for group in shown}) == 1 else 0
    return report.Gallery(pictures=[picture for group in shown for picture in group], columns=columns)
