"""Rows → findings that somebody who trains should hear of, in plain words. Pure functions, no torch.

All look at the stream, the sums after each skip (`sab_sum`, `ffn_sum`): that is what the next block and the head read.
A branch alone may well be ill-conditioned; at random weights every attention output is.
"""

import math
from collections.abc import Iterable, Mapping

from wellcond.diagnosis.result import Finding
from wellcond.probes.rows import Row

STREAM = ("sab_sum", "ffn_sum")
Place = tuple[int, str]

COLLAPSED_COSINE = 0.95  # the mean cosine is the share of all tokens' energy in their common direction
HEAVY_TAILS = 100.0  # kurtosis; entries that are non-zero with probability p have 1/p: 1 % of them hold it all
RISE = math.log(100)  # of log κ over its first value: κ has grown a hundredfold
AT_THE_FLOOR = 0.5  # share of images that are rank-deficient to the arithmetic


def start_of(rows: Iterable[Row], start: Mapping[Place, float]) -> dict[Place, float]:
    """The first finite log κ of each place of the stream: `start`, and what it lacks from these rows."""
    found = {(r.layer, r.site): r.value for r in _stream(rows, "log_kappa") if r.value is not None}
    return {**found, **start}


def alarms(rows: list[Row], not_finite: Mapping[Place, int], start: Mapping[Place, float]) -> list[Finding]:
    """What is wrong now, at most one finding of each kind, at the block where it begins."""
    found = [
        _not_finite(not_finite),
        _collapse(rows),
        _floor(rows, not_finite),
        _rising(rows, start),
        _heavy_tails(rows),
    ]
    return [finding for finding in found if finding is not None]


def _not_finite(not_finite: Mapping[Place, int]) -> Finding | None:
    if not not_finite:
        return None
    layer = min(layer for layer, _ in not_finite)
    site = next(site for at, site in not_finite if at == layer)  # in the order of computation
    return _warning(
        "not_finite",
        layer,
        f"Activations hold NaN or inf from block {layer} on ({site}).",
        f"{not_finite[layer, site]} of the images measured",
        "go back to the last checkpoint without this warning, and lower the learning rate or clip gradients",
    )


def _collapse(rows: list[Row]) -> Finding | None:
    row = _first(r for r in _stream(rows, "token_cosine") if r.value is not None and r.value >= COLLAPSED_COSINE)
    if row is None:
        return None
    return _warning(
        "rank_collapse",
        row.layer,
        f"Rank collapse begins at block {row.layer}: its tokens point in nearly one direction.",
        f"mean cosine of two tokens {row.value:.3f} at {row.site}, {COLLAPSED_COSINE} and more is a collapse",
        "keep the skips of the blocks before it, initialize anew, or lower the learning rate",
    )


def _floor(rows: list[Row], not_finite: Mapping[Place, int]) -> Finding | None:
    def deficient(row: Row) -> int:
        return row.num_infinite - not_finite.get((row.layer, row.site), 0)

    row = _first(r for r in _stream(rows, "log_kappa") if deficient(r) > AT_THE_FLOOR * r.num_images)
    if row is None:
        return None
    return _warning(
        "numerical_floor",
        row.layer,
        f"Tokens are rank-deficient to the arithmetic from block {row.layer} on ({row.site}): κ has no finite value.",
        f"{deficient(row)} of {row.num_images} images; {row.floor_count:.1f} of {min(row.n, row.d)} singular values "
        "at or under the numerical floor",
        "look at effective_rank instead of log_kappa; graying raises small singular values of the input",
    )


def _rising(rows: list[Row], start: Mapping[Place, float]) -> Finding | None:
    def rise(row: Row) -> float:
        return -math.inf if row.value is None else row.value - start.get((row.layer, row.site), math.inf)

    row = _first(r for r in _stream(rows, "log_kappa") if rise(r) >= RISE)
    if row is None:
        return None
    return _warning(
        "kappa_rising",
        row.layer,
        f"Conditioning worsens from block {row.layer} on ({row.site}): κ is {math.exp(rise(row)):.0f} times its first.",
        f"log κ {start[row.layer, row.site]:.2f} at the start, {row.value:.2f} now",
        "lower the learning rate, or gray the input",
    )


def _heavy_tails(rows: list[Row]) -> Finding | None:
    row = _first(r for r in _stream(rows, "kurtosis") if r.value is not None and r.value >= HEAVY_TAILS)
    if row is None:
        return None
    return _warning(
        "heavy_tails",
        row.layer,
        f"Activations are heavy-tailed from block {row.layer} on ({row.site}): a few entries hold most of the energy.",
        f"kurtosis {row.value:.0f}, a Gaussian has 3",
        "expect trouble in low precision; registers or weight decay make such entries smaller",
    )


def _stream(rows: Iterable[Row], quantity: str) -> list[Row]:
    return [row for row in rows if row.quantity == quantity and row.site in STREAM]


def _first(rows: Iterable[Row]) -> Row | None:
    return min(rows, key=lambda row: (row.layer, STREAM.index(row.site)), default=None)


def _warning(kind: str, layer: int, text: str, evidence: str, remedy: str) -> Finding:
    return Finding(kind=kind, severity="warning", layer=layer, text=text, evidence=evidence, remedy=remedy)
