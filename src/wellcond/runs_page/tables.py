"""The runs as rows: what differs between them, how far they came, how fast; and the means over seeds."""

import statistics
from collections.abc import Sequence
from typing import Any

from wellcond import report
from wellcond.config import MAY_CHANGE
from wellcond.runs_page.groups import Group
from wellcond.runs_page.names import differing, flatten
from wellcond.runs_page.reading import Story, number


def runs(stories: Sequence[Story]) -> report.Table:
    """One line for each run. Of the configs only the fields that differ are shown."""
    apart = [name for name in differing([s.config for s in stories]) if name not in MAY_CHANGE | {"recipe"}]
    numbers = ["top-1", "best", "top-5", "loss", "skipped steps", "img/s", "time", "state"]
    rows: list[list[report.Cell]] = []
    for story in stories:
        values = flatten(story.config)
        reached: list[report.Cell] = [story.last("top1"), story.best("top1"), story.last("top5"), last_loss(story)]
        reached += [story.skipped, story.images_per_second, duration(story.seconds), story.state]
        rows.append([story.name, values["recipe"], *reached, *(_cell(values[name]) for name in apart)])
    return report.Table(
        columns=["run", "recipe", *numbers, *(name.removeprefix("model.") for name in apart)],
        rows=rows,
        caption="top-1 and top-5: percent of the validation images at the last evaluation; best: of all evaluations.",
    )


def means(groups: Sequence[Group]) -> report.Table | None:
    """Over seeds, where a group has several."""
    if all(len(g.stories) == 1 for g in groups):
        return None
    rows: list[list[report.Cell]] = []
    for g in groups:
        done = [s for s in g.stories if s.summary is not None] or g.stories  # one that is half done would pull it down
        columns = ([f(s) for s in done] for f in (lambda s: s.last("top1"), lambda s: s.last("top5"), last_loss))
        counted = f"{len(done)} of {len(g.stories)}" if len(done) < len(g.stories) else len(done)
        rows.append([g.name, counted, *(spread([v for v in column if v is not None]) for column in columns)])
    return report.Table(
        columns=["config", "runs", "top-1", "top-5", "loss"],
        rows=rows,
        caption="Mean ± standard deviation over the finished runs of a config, which differ in their seed only.",
    )


def spread(values: Sequence[float]) -> str:
    """
    >>> spread([70.0, 72.0]), spread([70.0]), spread([])
    ('71.0 ± 1.41', '70.0', '–')
    """
    if not values:
        return "–"
    mean = report.format_cell(statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} ± {report.format_cell(statistics.stdev(values))}"


def environment(stories: Sequence[Story]) -> list[report.Item]:
    """The exact command of every run with its hardware and commit; older starts behind a click."""
    last = [[s.name, *_start(s.starts[-1])] for s in stories if s.starts]
    before = [[s.name, *_start(start)] for s in stories for start in s.starts[:-1]]
    columns = ["run", "command", "commit", "hardware", "date"]
    items: list[report.Item] = []
    if last:
        items.append(report.Table(columns=columns, rows=last, wrap=True))
    if before:
        folded = f"{len(before)} earlier start{'' if len(before) == 1 else 's'} of these runs"
        items.append(report.Table(columns=columns, rows=before, wrap=True, folded=folded))
    return items


def duration(seconds: float | None) -> str:
    """
    >>> duration(42.4), duration(150), duration(7260), duration(None)
    ('42 s', '2.5 min', '2 h 1 min', '–')
    """
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 100 else f"{int(minutes // 60)} h {int(minutes % 60)} min"


def last_loss(story: Story) -> float | None:
    losses = [loss for row in story.train if (loss := number(row.get("loss"))) is not None]
    return losses[-1] if losses else None


def _start(start: dict[str, Any]) -> list[report.Cell]:
    commit, hardware = start.get("commit"), start.get("hardware")
    machine = ", ".join(f"{k} {v}" for k, v in hardware.items()) if isinstance(hardware, dict) else hardware
    cells = (start.get("command"), commit and str(commit)[:10], machine, start.get("date"))
    return [str(cell) if cell else "–" for cell in cells]


def _cell(value: Any) -> report.Cell:
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return value if isinstance(value, int | float) else str(value)
