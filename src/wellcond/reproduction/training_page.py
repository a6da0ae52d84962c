"""Figures of claims that train: accuracy and loss by epoch, every run a thin line, the same colour for a variant."""

from collections.abc import Callable
from typing import Any

from ..report import BEFORE, DCT, SVD, Figure, Section

COLOURS = (SVD, DCT, BEFORE, "#b04a9a", "#4a9a5f", "#9a7b4a", "#4a8f9a", "#c2504a")


def accuracy_sections(content: dict[str, Any]) -> list[Section]:
    return _sections(content, "Top-1 by epoch", "top-1 in percent", lambda run: (run["accuracy"], "top1"))


def loss_sections(content: dict[str, Any]) -> list[Section]:
    return _sections(content, "Training loss by epoch", "loss", lambda run: (run["loss"], "value"))


def _sections(
    content: dict[str, Any], title: str, axis: str, curve: Callable[[dict[str, Any]], tuple[dict[str, Any], str]]
) -> list[Section]:
    """One figure for each set."""
    found = []
    for data in dict.fromkeys(run["dataset"] for run in content["runs"]):
        runs = [run for run in content["runs"] if run["dataset"] == data]
        variants = list(dict.fromkeys(run["variant"] for run in runs))
        traces = []
        for run in runs:
            numbers, name = curve(run)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": run["variant"],
                    "legendgroup": run["variant"],
                    "showlegend": run["seed"] == min(r["seed"] for r in runs if r["variant"] == run["variant"]),
                    "x": numbers["epoch"],
                    "y": numbers[name],
                    "line": {"color": COLOURS[variants.index(run["variant"]) % len(COLOURS)], "width": 2},
                    "hovertemplate": "%{y:.3g}",
                }
            )
        layout = {"xaxis": {"title": {"text": "epoch"}}, "yaxis": {"title": {"text": axis}}, "hovermode": "x unified"}
        figure = Figure(data=traces, layout=layout, caption="Every line is a run; seeds of a variant share a colour.")
        found.append(Section(title=f"{title}: {data}", items=[figure]))
    return found
