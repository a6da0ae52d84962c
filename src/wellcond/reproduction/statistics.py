"""Rank correlation, and 95 % intervals over seeds. numpy only."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
# 97.5 % quantile of Student's t for 1 … 30 degrees of freedom; from 31 on the last one, which is a little too wide
_T = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448,
    2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484,
    2.0452, 2.0423,
)  # fmt: skip


def ranks(x: Array) -> Array:
    """1 for the smallest; equal values share the mean of their ranks.

    >>> ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist()
    [3.5, 1.0, 3.5, 2.0]
    """
    _, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return ((2 * last - counts + 1) / 2)[which]


def spearman(x: Array, y: Array) -> float:
    """Spearman's rank correlation: Pearson's of the ranks. nan with fewer than three points or without any spread.

    >>> spearman(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 8.0, 27.0, 20.0]))
    0.8
    """
    if len(x) < 3:
        return math.nan
    a, b = (ranks(v) - (len(v) + 1) / 2 for v in (x, y))
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else math.nan


def known_mean(values: Iterable[float | None]) -> float | None:
    """None where there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """mean ± t s/√m of m independent seeds; None for fewer than two."""
    m = len(values)
    if m < 2:
        return None
    half = _T[min(m - 1, len(_T)) - 1] * float(np.std(values, ddof=1)) / math.sqrt(m)
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def seed_bootstrap(
    of_seed: Mapping[int, Array], statistic: Callable[[Array], float], draws: int = 2000
) -> tuple[float, float] | None:
    """95 % percentile interval of statistic(rows of all seeds); of_seed[s] holds the rows of seed s.

    Whole seeds are drawn with replacement, not rows: the rows of a seed share its weights and its picture, and taking
    them for independent would make the interval far too narrow. With few seeds a percentile interval is still a little
    too narrow. None with fewer than two seeds, or where the statistic has no value.
    """
    seeds = sorted(of_seed)
    if len(seeds) < 2:
        return None
    generator = np.random.default_rng(0)
    known: dict[tuple[int, ...], float] = {}  # the order of seeds does not matter, and few have few sets
    found = []
    for _ in range(draws):
        chosen = tuple(sorted(generator.integers(len(seeds), size=len(seeds)).tolist()))
        if chosen not in known:
            known[chosen] = statistic(np.concatenate([of_seed[seeds[i]] for i in chosen]))
        found.append(known[chosen])
    values = np.array(found)
    values = values[np.isfinite(values)]
    return (float(np.percentile(values, 2.5)), float(np.percentile(values, 97.5))) if len(values) else None
