"""What measuring costs, and whether the next measurement is affordable.

On CUDA a span lies between two events: it holds what the device did, and waited for, in between; reading it later
waits for nothing. Elsewhere it is wall time. What the host does with the numbers afterwards is added to it.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

Clock = Callable[[], float]


class Span:
    """A stretch of time, in seconds once it is over."""

    def __init__(self, device: torch.device, now: Clock) -> None:
        self.on_cuda, self.now = device.type == "cuda", now
        self.begin, self.end = self._mark(), None

    def close(self) -> None:
        self.end = self._mark()

    def over(self) -> bool:
        return self.end is not None and (not self.on_cuda or self.end.query())

    def wait(self) -> None:
        if self.on_cuda and self.end is not None:
            self.end.synchronize()

    @property
    def seconds(self) -> float:
        return self.begin.elapsed_time(self.end) / 1e3 if self.on_cuda else self.end - self.begin

    def _mark(self) -> Any:
        if not self.on_cuda:
            return self.now()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


@contextmanager
def span_on(device: torch.device, now: Clock) -> Iterator[Span]:
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        span = Span(device, now)
        yield span
        span.close()


class Budget:
    """Time spent measuring against time passed, since the end of the first measurement.

    The first one loads libraries and compiles kernels; counting it would postpone the second by minutes.
    """

    def __init__(self, limit: float | None, now: Clock = time.perf_counter) -> None:
        self.limit, self.now = limit, now
        self.since: float | None = None
        self.spent = self.last = 0.0
        self.num_counted = 0

    def add(self, seconds: float) -> None:
        """A measurement is over and took so long."""
        if self.since is None:
            self.since = self.now()
        else:
            self.num_counted += 1
            self.spent += seconds
            self.last = seconds

    def allows(self) -> bool:
        """Would one more measurement, as long as the last, stay within the limit?"""
        if self.limit is None or self.since is None:
            return True
        return self.spent + self.last <= self.limit * (self.now() - self.since)

    @property
    def share(self) -> float:
        passed = 0.0 if self.since is None else self.now() - self.since
        return self.spent / passed if passed > 0 else 0.0
