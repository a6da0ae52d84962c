"""Runs → rows: means of a number over seeds, and differences of two variants, paired by seed.

Two variants with the same seed see the same pictures in the same order with the same augmentation, and begin with the
same weights where they have the same shapes, so their difference is taken seed by seed; its 95 % interval is Student's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .claim import Row, Run
from .statistics import mean_interval

Number = Callable[[Run], float | None]


def top1(run: Run) -> float | None:
    return run["top1"]


def by_seed(runs: Sequence[Run], variant: str, number: Number = top1) -> dict[int, float]:
    """Seed → its number, where it has one."""
    found = {run["seed"]: number(run) for run in runs if run["variant"] == variant}
    return {seed: value for seed, value in sorted(found.items()) if value is not None}


def over_seeds(runs: Sequence[Run], variant: str, number: Number = top1) -> list[float]:
    """The numbers of the seeds that have one."""
    return list(by_seed(runs, variant, number).values())


def mean_row(name: str, paper: str, values: Sequence[float], verdict: str = "", **more: Any) -> Row:
    """A mean over seeds; "one seed" where there is no interval."""
    interval = interval_of(values)
    return Row(
        name=name,
        paper=paper,
        value=short(float(np.mean(values))) if len(values) else None,
        interval=interval,
        values=[short(value) for value in values],
        verdict=verdict or ("–" if interval else "one seed"),
        more=dict(more),
    )


def best(runs: Sequence[Run], variant: str) -> dict[str, Any]:
    """What a row on accuracy says beside it: the best epoch of each seed, which is not what counts, and top-5."""
    of_variant = [run for run in runs if run["variant"] == variant]
    return {
        "best": [run["best_top1"] for run in of_variant],
        "top5": [run["top5"] for run in of_variant],
        "num_diverged": sum(run["diverged"] is not None for run in of_variant),
    }


def differences(
    runs: Sequence[Run], variant: str, base: str, number: Number = top1, of_base: Number | None = None
) -> list[float]:
    """variant − base, of every seed that has both; `of_base` where the base is looked at in another way."""
    ours, theirs = by_seed(runs, variant, number), by_seed(runs, base, of_base or number)
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def difference_row(name: str, paper: float | None, values: Sequence[float]) -> Row:
    """A mean difference, and what its interval says of the paper's."""
    return mean_row(name, "–" if paper is None else f"{paper:+g}", values, against(paper, interval_of(values)))


def interval_of(values: Sequence[float]) -> tuple[float, float] | None:
    """Of the mean over seeds, 95 %; None with fewer than two."""
    interval = mean_interval(values)
    return None if interval is None else (short(interval[0]), short(interval[1]))


def against(paper: float | None, interval: tuple[float, float] | None) -> str:
    """What the 95 % interval of a difference says, beside the number of the paper.

    >>> [against(-22, interval) for interval in ((-25.0, -20.0), (-40.0, -30.0), (-9.0, -3.0))]
    ['as in the paper', 'as in the paper, and more', 'as in the paper, but less']
    >>> [against(-22, interval) for interval in ((-4.0, 1.0), (1.0, 2.0))]
    ['no difference shown', 'the other way']
    """
    if interval is None:
        return "one seed"
    low, high = interval
    if low <= 0 <= high:
        return "no difference shown"
    if paper is None:
        return "higher" if low > 0 else "lower"
    if (low > 0) != (paper > 0):
        return "the other way"
    if low <= paper <= high:
        return "as in the paper"
    nearer = low if low > 0 else -high
    return "as in the paper, and more" if nearer > abs(paper) else "as in the paper, but less"


def short(value: float) -> float:
    """Five digits."""
    return float(f"{value:.5g}")


RULE = (
    "Differences are taken seed by seed, with Student's 95 % interval. Where it holds 0: no difference shown; where it "
    "lies on the paper's side of 0: as in the paper if it holds the paper's number, else with more or with less; on "
    "the other side: the other way."
)
