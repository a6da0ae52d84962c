"""Work that goes on beside the next step: the bases that it makes are not needed before that step's update.

Factorizations keep few of a GPU's multiprocessors busy; on a stream of their own they run in the gaps of the next
forward and backward pass. The update waits for them by an event, also inside a CUDA graph (an external event, so that
the graph waits for each new recording of it).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Beside:
    """`with beside.work():` puts kernels on the other stream, after all that was launched here; `wait()` joins."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.done = torch.cuda.Event(external=True)
        self.done.record(self.stream)  # one that was never recorded leaves no trace in a graph

    @contextmanager
    def work(self) -> Iterator[None]:
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            self.done.record(self.stream)

    def wait(self) -> None:
        self.done.wait(torch.cuda.current_stream(self.stream.device))
