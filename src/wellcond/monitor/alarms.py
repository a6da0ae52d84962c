"""Measured → findings that somebody who trains should hear of: those of a diagnosis, and κ that rises.

What a diagnosis only notes (a numerical floor, heavy tails) many a healthy model has from its start: it is news when it
begins in training.
"""

import math
from collections.abc import Iterable, Mapping

from wellcond.diagnosis.findings import findings
from wellcond.diagnosis.result import Finding
from wellcond.probes.rows import Measured, Place, Row, in_words

KINDS = ("not_finite", "rank_collapse", "numerical_floor", "heavy_tails")  # of a diagnosis
STREAM = ("sab_sum", "ffn_sum")
"""Where κ is followed: what the next block and the head read. A branch alone may well be ill-conditioned."""
RISE = math.log(100)
"""Of log κ over its first value: κ a hundredfold. The paper's Fig. 1b has e³ = 20 between attention with and without
its skip; five times that is no change from image to image."""


def start_of(rows: Iterable[Row], start: Mapping[Place, float]) -> dict[Place, float]:
    """The first finite log κ of each place of the stream: `start`, and what it lacks from these rows."""
    found = {(r.layer, r.site): r.value for r in _stream(rows) if r.value is not None}
    return {**found, **start}


def alarms(measured: Measured, start: Mapping[Place, float]) -> list[Finding]:
    """What is to be said now, each at the block where it begins."""
    found = [finding for finding in findings(measured, None, attends=False) if finding.kind in KINDS]
    return [*found, *_rising(measured.rows, start)]


def _rising(rows: list[Row], start: Mapping[Place, float]) -> list[Finding]:
    risen = {(r.layer, STREAM.index(r.site)): r for r in _stream(rows) if _rise(r, start) >= RISE}
    if not risen:
        return []
    first, worst = risen[min(risen)], max(risen.values(), key=lambda r: _rise(r, start))
    before, now = start[worst.layer, worst.site], worst.value
    return [
        Finding(
            kind="kappa_rising",
            severity="warning",
            layer=first.layer,
            text=f"Conditioning has worsened from block {first.layer} on: κ of its tokens has grown a hundredfold.",
            evidence=f"log κ {before:.1f} at the start, {now:.1f} now in {in_words((worst.layer, worst.site))}",
            remedy="Lower the learning rate or warm up longer; graying the input (wc.gray) lowers κ from its start.",
        )
    ]


def _rise(row: Row, start: Mapping[Place, float]) -> float:
    return -math.inf if row.value is None else row.value - start.get((row.layer, row.site), math.inf)


def _stream(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row.quantity == "log_kappa" and row.site in STREAM]
