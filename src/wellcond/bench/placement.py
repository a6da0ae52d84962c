"""Batches in turn through a step, with graying before it or ahead of it on a side stream."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Step = Callable[[Tensor, Tensor], None]


class Batches:
    """Resident batches and labels, handed out in turn: one buffer again and again would measure the cache."""

    def __init__(self, images: Sequence[Tensor], labels: Sequence[Tensor]):
        self.pairs = list(zip(images, labels, strict=True))
        self.turn = 0

    def next(self) -> tuple[Tensor, Tensor]:
        self.turn += 1
        return self.pairs[self.turn % len(self.pairs)]


class Direct:
    """The step on the batch as it is: plain, or with graying inside the model."""

    def __init__(self, step: Step, batches: Batches):
        self.step, self.batches = step, batches

    def __call__(self) -> None:
        self.step(*self.batches.next())


class Before:
    """Gray the batch, then step, on one stream."""

    def __init__(self, step: Step, batches: Batches, graying: nn.Module, autocast: Callable[[], torch.autocast]):
        self.step, self.batches, self.graying, self.autocast = step, batches, graying, autocast

    def gray(self, images: Tensor) -> Tensor:
        with torch.no_grad(), self.autocast():
            return self.graying(images)

    def __call__(self) -> None:
        images, labels = self.batches.next()
        self.step(self.gray(images), labels)


class Ahead(Before):
    """Step on the batch that was grayed during the last call; meanwhile gray the next one on a side stream.

    The main stream waits for the graying at the end of a call, as the next step would: a timed region holds
    one step and one graying, and nothing of it leaks into the region of another variant. For the same reason
    the side stream starts only when the region does.
    """

    def __init__(self, step: Step, batches: Batches, graying: nn.Module, autocast: Callable[[], torch.autocast]):
        super().__init__(step, batches, graying, autocast)
        self.side = torch.cuda.Stream()
        self.source, labels = batches.next()
        self.grayed, self.labels = self.gray(self.source), labels

    def __call__(self) -> None:
        main = torch.cuda.current_stream()
        region_starts = main.record_event()
        self.step(self.grayed, self.labels)  # first, so that the main stream never waits for the host
        self.side.wait_event(region_starts)
        with torch.cuda.stream(self.side):
            self.source, labels = self.batches.next()
            self.source.record_stream(self.side)
            grayed = self.gray(self.source)
            graying_ends = self.side.record_event()
        main.wait_event(graying_ends)
        grayed.record_stream(main)  # allocated on the side stream, read by the next step on the main one
        self.grayed, self.labels = grayed, labels

    def handover_error(self) -> float:
        """Largest difference of what the next step reads from the same graying on one stream; 0 is right."""
        return (self.grayed - self.gray(self.source)).abs().max().item()
