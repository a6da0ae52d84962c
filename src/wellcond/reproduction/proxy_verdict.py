"""asa-proxy, the judgement: rank correlations of the curves of all runs, each with an interval over seeds.

| of a row     | correlation of log κ of                                                                     |
|--------------|---------------------------------------------------------------------------------------------|
| value        | output and Jacobian, over blocks, inputs and seeds: the claim                               |
| same_block   | the same inside one block, over its inputs alone, mean over blocks: does graying move both? |
| output_ntk   | output and tangent kernel                                                                   |
| jacobian_ntk | Jacobian and tangent kernel                                                                 |
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .claim import Judgement, Row, Run
from .statistics import Array, seed_bootstrap, spearman

GOOD = 0.5  # a rank correlation above it is called a proxy


def judge(runs: Sequence[Run]) -> Judgement:
    """A row for each model and each sub-block, and for both sub-blocks together."""
    rows = []
    for variant in dict.fromkeys(run["variant"] for run in runs):
        of_variant = [run for run in runs if run["variant"] == variant]
        rows += [_row(variant, parts, of_variant) for parts in (("attention",), ("mlp",), ("attention", "mlp"))]
    told = []
    for parts in ("attention", "mlp", "attention and mlp"):
        counts = Counter(row.verdict for row in rows if row.name.endswith(f", {parts}"))
        told.append(f"{parts}: {', '.join(f'{verdict} {count}' for verdict, count in counts.most_common())}")
    return Judgement(rows=rows, verdict=f"Of {len(rows) // 3} models each — {'; '.join(told)}.")


def _row(variant: str, parts: Sequence[str], runs: Sequence[Run]) -> Row:
    of_seed = {run["seed"]: _points(run, parts) for run in runs}
    everything = np.concatenate(list(of_seed.values()))
    kept = {seed: points[np.isfinite(points[:, 2:4]).all(1)] for seed, points in of_seed.items()}
    pooled = np.concatenate(list(kept.values()))
    complete = len(np.unique(pooled[:, 1])) == len(parts)  # with one sub-block left out there is no order of the two
    value, interval = math.nan, None
    if complete:
        value, interval = _between(pooled, 2, 3), seed_bootstrap(kept, lambda p: _between(p, 2, 3))
    more: dict[str, Any] = {"num_points": len(pooled), "num_left_out": len(everything) - len(pooled)}
    more["num_output_infinite"] = int((~np.isfinite(everything[:, 2])).sum())
    more["num_jacobian_infinite"] = int((~np.isfinite(everything[:, 3])).sum())
    for name, statistic in OTHERS.items():
        more[name] = {"value": None, "interval": None}
        if complete:
            more[name] = {"value": short(statistic(pooled)), "interval": _pair(seed_bootstrap(kept, statistic))}
    return Row(
        name=f"{variant}, {' and '.join(parts)}",
        paper="a proxy",
        value=short(value),
        interval=_pair(interval),
        values=[short(_between(points, 2, 3)) for points in kept.values()],
        verdict=_verdict(value, interval),
        more=more,
    )


def _verdict(value: float, interval: tuple[float, float] | None) -> str:
    if math.isnan(value):
        return "rank-deficient"
    if interval is None:
        return "one seed"
    low, high = interval
    if low > GOOD:
        return "a proxy"
    if low > 0:
        return "weakly"
    return "reversed" if high < 0 else "not shown"


def _points(run: Run, parts: Sequence[str]) -> Array:
    """Rows (curve, number of the sub-block, log κ of output, Jacobian, tangent kernel); nan where there is none."""
    rows = []
    for number, curve in enumerate(run["curves"]):
        if curve["part"] in parts:
            values = zip(curve["out"], curve["jacobian"], curve["ntk"], strict=True)
            rows += [(100 * run["seed"] + number, parts.index(curve["part"]), *v) for v in values]
    return np.array(rows, dtype=np.float64)  # None becomes nan


def _between(points: Array, x: int, y: int) -> float:
    points = points[np.isfinite(points[:, [x, y]]).all(1)]
    return spearman(points[:, x], points[:, y])


def _within(points: Array) -> float:
    """Mean of the correlation inside each curve, weighted by its points: a seed that is drawn twice counts twice."""
    total, weight = 0.0, 0
    for curve in np.unique(points[:, 0]):
        of_curve = points[points[:, 0] == curve]
        rho = _between(of_curve, 2, 3)
        if not math.isnan(rho):
            total, weight = total + rho * len(of_curve), weight + len(of_curve)
    return total / weight if weight else math.nan


OTHERS: dict[str, Callable[[Array], float]] = {
    "same_block": _within,
    "output_ntk": lambda points: _between(points, 2, 4),
    "jacobian_ntk": lambda points: _between(points, 3, 4),
}


def short(value: float) -> float | None:
    """Five digits; None for what is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _pair(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (float(f"{interval[0]:.5g}"), float(f"{interval[1]:.5g}"))
