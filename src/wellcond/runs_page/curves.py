"""Loss, gradient, accuracy, judges over training: the mean over the seeds of a config with its spread, or every run."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from wellcond import report
from wellcond.config.along import TITLES
from wellcond.runs_page.groups import WIDTH, Group
from wellcond.runs_page.reading import Line, Story, number

Points = dict[int, float]  # step → value
TRAIN = {
    "loss": "training loss", "grad_norm": "norm of the gradient", "lr": "learning rate",
    "teacher_spread": "teacher: difference of answers (nats)", "teacher_entropy": "teacher: entropy (nats)",
}  # fmt: skip
EVAL = {"top1": "top-1 (%)", "top5": "top-5 (%)", "val_loss": "validation loss"}
VIEWS = ("mean over seeds", "every run")


def training(groups: Sequence[Group]) -> report.Figure | None:
    return _figure(groups, TRAIN, lambda story: story.train, mode="lines")


def accuracy(groups: Sequence[Group]) -> report.Figure | None:
    return _figure(groups, EVAL, lambda story: story.evals, mode="lines+markers")


def judges(groups: Sequence[Group]) -> report.Figure | None:
    """What judges along the way said; of each source by itself."""
    quantities: dict[str, str] = {}
    for row in (row for g in groups for story in g.stories for row in story.judged):
        for judge, name in TITLES:
            if judge == row["judge"] and name in row:
                place = f" on {report.plotly_text(Path(row['data']).name, 24)}" if "data" in row else ""
                quantities.setdefault(_told(row, name), TITLES[judge, name] + place)
    return _figure(groups, quantities, _judged, mode="lines+markers")


def _judged(story: Story) -> list[Line]:
    return [{"step": row["step"], **{_told(row, name): row[name] for name in row}} for row in story.judged]


def _told(row: Line, name: str) -> str:
    return f"{row['judge']} {row.get('data', '')} {name}"


def _figure(
    groups: Sequence[Group], quantities: dict[str, str], rows: Callable[[Story], list[Line]], *, mode: str
) -> report.Figure | None:
    data: list[dict[str, Any]] = []
    shown: list[str] = []
    along = Along(groups)
    for quantity, title in quantities.items():
        curves = [(g, [_points(rows(story), quantity) for story in g.stories]) for g in groups]
        if not any(points for _, runs in curves for points in runs):
            continue
        when = {"quantity": len(shown)}
        shown.append(title)
        for g, runs in curves:
            line = {"type": "scatter", "mode": mode, "legendgroup": g.name, "when": when | {"view": 0}}
            data += _mean(g, runs, line, along)
            data += _every(g, runs, line | {"when": when | {"view": 1}}, along)
    if not data:
        return None
    choices = [report.Choice(name="quantity", options=shown, control="buttons")] if len(shown) > 1 else []
    if any(len(g.stories) > 1 for g in groups):
        choices.append(report.Choice(name="view", options=VIEWS, control="buttons"))
        caption = "The band is one standard deviation over seeds."
    else:
        data, caption = [trace for trace in data if trace["when"]["view"] == 0], ""
    layout = {"xaxis": along.axis, "hovermode": "x unified" if len(groups) < 7 else "closest"}
    layouts = [({"quantity": i}, {"yaxis": {"title": {"text": title}}}) for i, title in enumerate(shown)]
    return report.Figure(data=data, layout=layout, layouts=layouts, choices=choices, height=400, caption=caption)


class Along:
    """The axis of training: epochs, or images seen as long as a run has not ended its first epoch."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.in_epochs = all(story.steps_per_epoch for g in groups for story in g.stories if story.step)
        epochs = max((s.step / (s.steps_per_epoch or 1) for g in groups for s in g.stories), default=0)
        self.axis = epoch_axis(epochs) if self.in_epochs else {"title": {"text": "images seen"}}

    def __call__(self, story: Story, step: int) -> float:
        if self.in_epochs:
            return short(step / (story.steps_per_epoch or 1), 6)
        return float(step * story.config.batch_size)


def epoch_axis(epochs: float) -> dict[str, Any]:
    """Whole numbers only, on a phone, too."""
    ticks = {"tickvals": list(range(math.ceil(epochs) + 1))} if epochs <= 16 else {}
    return {"title": {"text": "epoch"}, "tickformat": "d", **ticks}


def short(value: float, digits: int = 5) -> float:
    """Rounded, so that the page stays small."""
    return float(f"{value:.{digits}g}")


def _points(rows: Iterable[Line], quantity: str) -> Points:
    """A run that went back to a checkpoint has cut its rows; where a step comes twice the later one counts."""
    return {row["step"]: value for row in rows if (value := number(row.get(quantity))) is not None}


def _mean(g: Group, runs: Sequence[Points], line: dict[str, Any], along: Along) -> list[dict[str, Any]]:
    """The mean at every step that a run has, and the band where several have it."""
    steps = sorted({step for points in runs for step in points})
    if not steps:
        return []
    at = {step: [points[step] for points in runs if step in points] for step in steps}
    story = next(s for s in g.stories if s.steps_per_epoch or not along.in_epochs)
    x = [along(story, step) for step in steps]
    centre = [short(statistics.fmean(at[step])) for step in steps]
    style = {"color": g.colour, "dash": g.dash, "width": 2.5}
    traces = [line | {"name": g.title, "x": x, "y": centre, "line": style, "marker": {"size": 5}}]
    several = [(place, at[step]) for place, step in zip(x, steps, strict=True) if len(at[step]) > 1]
    if several:
        edges = [(p, statistics.fmean(v), statistics.stdev(v)) for p, v in several]
        outline = {
            "x": [p for p, _, _ in edges] + [p for p, _, _ in edges[::-1]],
            "y": [short(m + s) for _, m, s in edges] + [short(m - s) for _, m, s in edges[::-1]],
        }
        band = {"mode": "none", "fill": "toself", "fillcolor": g.colour, "opacity": 0.15, "showlegend": False}
        traces.insert(0, line | band | outline | {"hoverinfo": "skip"})
    return traces


def _every(g: Group, runs: Sequence[Points], line: dict[str, Any], along: Along) -> list[dict[str, Any]]:
    """Each run by itself; the first carries the name of the group."""
    traces = []
    for count, (story, points) in enumerate(zip(g.stories, runs, strict=True)):
        if points:
            traces.append(
                line
                | {
                    "name": f"{report.plotly_text(g.name, WIDTH)}, seed {story.config.seed}",
                    "x": [along(story, step) for step in points],
                    "y": [short(value) for value in points.values()],
                    "line": {"color": g.colour, "dash": g.dash, "width": 1.6},
                    "marker": {"size": 4},
                    "showlegend": count < 4,
                }
            )
    return traces
