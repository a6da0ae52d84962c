"""Numbers of the weights that are pushed: those of their own step; one of another step says which, and counts less."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..config.along import TITLES
from ..results import markdown, without_place
from ..runs_page.reading import Story, number

ACCURACY = {"top1": "top-1, %", "top5": "top-5, %"}


def section(story: Story, step: int) -> str:
    """Accuracy and what judges along the way found, as a table."""
    rows = list(_rows(story.evals, step, ACCURACY))
    judged: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in story.judged:
        judged.setdefault((row["judge"], str(row.get("data", ""))), []).append(row)
    for (judge, data), found in judged.items():
        on = f", on {without_place(data)}" if data else ""
        titles = {name: f"{words}{on}" for (of, name), words in TITLES.items() if of == judge}
        rows += _rows(found, step, titles)
    if not rows:
        return "No accuracy was measured."
    note = f"On the validation images, one run of seed {story.config.seed}; these weights are of step {step}:"
    return f"{note}\n\n{markdown(['what', 'value'], rows)}"


def top1(story: Story, step: int) -> float | None:
    """Of exactly these weights, or None."""
    row = _of_step(story.evals, step)
    return None if row is None else number(row.get("top1"))


def _rows(found: Sequence[Mapping[str, Any]], step: int, titles: Mapping[str, str]) -> Iterator[list[str]]:
    """Of this step, else of the last one that there is."""
    row = _of_step(found, step)
    other = "" if row or not found else f", at step {found[-1]['step']}: of other weights"
    row = row or (found[-1] if found else {})
    for name, words in titles.items():
        if (value := number(row.get(name))) is not None:
            yield [f"{words}{other}", f"{value:.2f}"]


def _of_step(rows: Sequence[Mapping[str, Any]], step: int) -> Mapping[str, Any] | None:
    return next((row for row in reversed(rows) if row["step"] == step), None)
