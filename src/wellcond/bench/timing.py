"""Interleaved medians: every variant once a round, many rounds, so that drift hits all of them alike.

A GPU warms up and changes its clocks during a run; timing variant after variant gives that drift to
whichever came last. Here each round runs every variant once, in an order that rotates and turns round, and a
variant's time is the median over rounds. Ratios to the baseline come with a bootstrap 95 % interval over rounds
(Efron's percentile interval): a difference that is smaller than the interval is noise.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Call = Callable[[], Any]
DRAWS = 2000  # of the bootstrap, whose seed is 0


class Clock(Protocol):
    """Measures regions; times are read only at the end of a round, so that nothing waits in between."""

    def begin_round(self) -> None: ...

    def measure(self, call: Call) -> Any: ...

    def end_round(self, marks: Sequence[Any]) -> list[float]: ...


class HostClock:
    """Wall time of synchronous (CPU) work. ``now`` returns seconds.

    A sample is the mean of ``in_a_row`` calls: of microseconds, a single one would time what the variant before it
    left in the caches.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter, in_a_row: int = 1):
        self.now, self.in_a_row = now, in_a_row

    def begin_round(self) -> None:
        pass

    def measure(self, call: Call) -> float:
        start = self.now()
        for _ in range(self.in_a_row):
            call()
        return (self.now() - start) * 1e3 / self.in_a_row

    def end_round(self, marks: Sequence[float]) -> list[float]:
        return list(marks)


class CudaClock:
    """CUDA events around each region and one synchronisation at the end of a round.

    A round opens with an idle wait on the device, so that the host is ahead of it when the first region
    starts: otherwise the first variant of every round would also pay for its launches.
    """

    LEAD_CYCLES = 20_000_000  # about 10 ms at 2 GHz

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda

    def begin_round(self) -> None:
        self.cuda._sleep(self.LEAD_CYCLES)

    def measure(self, call: Call) -> tuple[Any, Any]:
        start, end = self.cuda.Event(enable_timing=True), self.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        return start, end

    def end_round(self, marks: Sequence[tuple[Any, Any]]) -> list[float]:
        self.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in marks]


def clock_for(device: str, in_a_row: int = 1) -> Clock:
    """The clock that tells the truth on ``device`` ("cpu", "cuda", "cuda:0"); a host's takes calls ``in_a_row``."""
    return CudaClock() if device.startswith("cuda") else HostClock(in_a_row=in_a_row)


@dataclass(frozen=True, kw_only=True)
class Timing:
    """All samples of one variant, in milliseconds, and the rounds they were taken in."""

    name: str
    samples: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    @property
    def median(self) -> float:
        return float(np.median(self.samples))

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.percentile(self.samples, [25, 75])
        return float(low), float(high)

    def times(self, factor: float) -> "Timing":
        """The same rounds, every sample multiplied: the time for one picture of a batch, or for more queries."""
        return Timing(name=self.name, samples=[factor * sample for sample in self.samples], rounds=self.rounds)


def interleave(
    calls: Mapping[str, Call],
    *,
    rounds: int,
    warmup: int = 2,
    clock: Clock,
    every: Mapping[str, int] | None = None,
) -> dict[str, Timing]:
    """Time ``calls`` in round-robin order: ``warmup`` untimed rounds, then ``rounds`` timed ones.

    ``every`` names slow variants that take part only in each k-th round (and are warmed up once): they stay
    spread over the whole run, with fewer samples.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, not {rounds}.")
    every = every or {}
    names = list(calls)
    for turn in range(warmup):
        for name in names:
            if turn == 0 or every.get(name, 1) == 1:
                calls[name]()
    timings = {name: Timing(name=name) for name in names}
    for turn in range(rounds):
        cycle, shift = divmod(turn, len(names))
        order = [n for n in names[shift:] + names[:shift] if turn % every.get(n, 1) == 0]
        if cycle % 2:
            order.reverse()  # who comes before whom changes, too
        clock.begin_round()
        marks = [clock.measure(calls[name]) for name in order]
        for name, milliseconds in zip(order, clock.end_round(marks), strict=True):
            timings[name].samples.append(milliseconds)
            timings[name].rounds.append(turn)
    return timings


def ratio(timing: Timing, baseline: Timing) -> tuple[float, tuple[float, float]]:
    """Ratio of medians and its bootstrap 95 % interval.

    Variants that took part in the same rounds are resampled by round (both from the same rounds), so drift
    that they share cancels; otherwise each is resampled on its own.
    """
    rng = np.random.default_rng(0)
    mine, base = np.asarray(timing.samples), np.asarray(baseline.samples)
    pick = rng.integers(len(mine), size=(DRAWS, len(mine)))
    paired = timing.rounds == baseline.rounds
    pick_base = pick if paired else rng.integers(len(base), size=(DRAWS, len(base)))
    resampled = np.median(mine[pick], axis=1) / np.median(base[pick_base], axis=1)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return timing.median / baseline.median, (float(low), float(high))


def timing_row(timing: Timing, baseline: Timing) -> dict[str, Any]:
    """What a results file says about a variant's time."""
    value, interval = ratio(timing, baseline)
    return {
        "name": timing.name,
        "median_ms": timing.median,
        "iqr": list(timing.quartiles),
        "samples_ms": [round(s, 4) for s in timing.samples],
        "baseline": baseline.name,
        "ratio": value,
        "ratio_ci": list(interval),
    }
