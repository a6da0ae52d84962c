"""Figures of claims that train: accuracy and loss by epoch, every run a thin line, alike for the seeds of a variant."""

from collections.abc import Callable, Sequence
from typing import Any

from ..report import BEFORE, DCT, SVD, Figure, Section

COLOURS = (SVD, DCT, BEFORE, "#b04a9a", "#4a9a5f", "#9a7b4a", "#4a8f9a", "#c2504a")
DASHES = ("solid", "dash", "dot", "dashdot")  # a variant has a colour, and from the ninth on a dash with it
TOP1 = "top-1 in percent"


Curve = tuple[Sequence[float], Sequence[float | None]]


def accuracy_sections(content: dict[str, Any]) -> list[Section]:
    return _sections(content, "Top-1 by epoch", TOP1, "epoch", lambda run: (_epochs(run), run["accuracy"]["top1"]))


def time_sections(content: dict[str, Any]) -> list[Section]:
    """Of runs that know their speed; by the median epoch: compiling, evaluating, measuring κ take no time here.

    Runs beside others on one GPU slow each other down, so that of the fastest run counts for all of its variant.
    """
    timed = {**content, "runs": [run for run in content["runs"] if run.get("images_per_s")]}
    speeds: dict[str, float] = {}
    for run in timed["runs"]:
        speeds[run["variant"]] = max(run["images_per_s"], speeds.get(run["variant"], 0.0))

    def curve(run: dict[str, Any]) -> Curve:
        epoch = run["data"]["train"] / speeds[run["variant"]]
        return [round(number * epoch, 1) for number in _epochs(run)], run["accuracy"]["top1"]

    return _sections(timed, "Top-1 by training time", TOP1, "seconds", curve)


def loss_sections(content: dict[str, Any]) -> list[Section]:
    return _sections(
        content, "Training loss by epoch", "loss", "epoch", lambda run: (run["loss"]["epoch"], run["loss"]["value"])
    )


def _epochs(run: dict[str, Any]) -> Sequence[int]:
    return run["accuracy"]["epoch"]


def _sections(
    content: dict[str, Any], title: str, axis: str, along: str, curve: Callable[[dict[str, Any]], Curve]
) -> list[Section]:
    """One figure for each set."""
    found = []
    for data in dict.fromkeys(run["dataset"] for run in content["runs"]):
        runs = [run for run in content["runs"] if run["dataset"] == data]
        variants = list(dict.fromkeys(run["variant"] for run in runs))
        traces = []
        for run in runs:
            x, y = curve(run)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": run["variant"],
                    "legendgroup": run["variant"],
                    "showlegend": run["seed"] == min(r["seed"] for r in runs if r["variant"] == run["variant"]),
                    "x": x,
                    "y": y,
                    "line": _line(variants.index(run["variant"])),
                    "hovertemplate": "%{y:.3g}",
                }
            )
        layout = {"xaxis": {"title": {"text": along}}, "yaxis": {"title": {"text": axis}}, "hovermode": "x unified"}
        figure = Figure(data=traces, layout=layout, caption="Every line is a run; seeds of a variant look alike.")
        found.append(Section(title=f"{title}: {data}", items=[figure]))
    return found


def _line(number: int) -> dict[str, Any]:
    """
    >>> _line(1)["dash"], _line(1 + len(COLOURS))["dash"]
    ('solid', 'dash')
    """
    again, colour = divmod(number, len(COLOURS))
    return {"color": COLOURS[colour], "dash": DASHES[again % len(DASHES)], "width": 2}
