"""A figure of a report → what gradio's plot draws.

The page of a report has controls above its figures and draws the traces whose `when` holds; here the choice is made
before. Colours are of the middle, so that they read on a light page and on a dark one.
"""

import json
from collections.abc import Mapping
from typing import Any

from gradio.components.plot import PlotData

from wellcond import report

GRID = "rgba(138, 148, 166, 0.25)"
BARE = {"responsive": True, "displaylogo": False, "displayModeBar": False}


def plot(figure: report.Figure, **chosen: int) -> PlotData:
    """The figure with these options chosen, and the first of every other choice."""
    state = {choice.name: choice.start for choice in figure.choices} | chosen
    plain = figure.plain
    data = [_without_when(trace) for trace in plain["data"] if _holds(trace.get("when", {}), state)]
    layout: dict[str, Any] = plain["layout"]
    for part in plain["layouts"]:
        if _holds(part["when"], state):
            layout = _overlay(layout, part["layout"])
    return PlotData(
        type="plotly", plot=json.dumps({"data": data, "layout": _styled(layout, plain["height"]), "config": BARE})
    )


def option(figure: report.Figure, choice: str, name: str) -> dict[str, int]:
    """{choice: number of the option of this name}; nothing where the figure has no such option."""
    found = [c.options for c in figure.choices if c.name == choice and name in c.options]
    return {choice: list(found[0]).index(name)} if found else {}


def _holds(when: Mapping[str, int], state: Mapping[str, int]) -> bool:
    return all(state.get(name, number) == number for name, number in when.items())


def _without_when(trace: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in trace.items() if key != "when"}


def _overlay(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _overlay(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _styled(layout: Mapping[str, Any], height: int) -> dict[str, Any]:
    style = {
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": report.BEFORE, "size": 13},
        "margin": {"l": 56, "r": 12, "t": 12, "b": 48},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "dragmode": False,  # a finger on a chart scrolls the page
    }
    axis = {"gridcolor": GRID, "zeroline": False, "automargin": True, "title": {"font": {"size": 13}, "standoff": 8}}
    axes = {"xaxis": axis, "yaxis": axis}
    return _overlay(_overlay(style, axes), layout)
