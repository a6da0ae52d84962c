"""Numbers of every step, brought to the host without waiting for them.

A step leaves (loss, gradient norm, bad, stop, …) on the device. They are copied to pinned memory as they come and read
`delay` steps later, when the copy is long done. The delay is fixed and not "when ready": all ranks must see a bad step,
and a wish to stop, at the same step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Record:
    """Numbers of one step: `step` counts from 0; `bad`: loss or gradient was not finite and nothing was updated."""

    step: int
    loss: float
    grad_norm: float
    bad: bool
    stop: bool
    metrics: tuple[float, ...]


class Records:
    """`put` one step's numbers, get back those that are due, in order; `drain` waits for all of them."""

    def __init__(self, device: torch.device, *, delay: int = 4) -> None:
        self.on_cuda = device.type == "cuda"
        self.delay = delay if self.on_cuda else 0
        self.waiting: list[tuple[int, Tensor, torch.cuda.Event | None]] = []
        self.slots: list[Tensor] = []

    def put(self, step: int, numbers: Tensor) -> list[Record]:
        if not self.on_cuda:
            self.waiting.append((step, numbers, None))
        else:
            slot = self.slots.pop() if self.slots else torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            slot.copy_(numbers, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.waiting.append((step, slot, event))
        return [self._take() for _ in range(len(self.waiting) - self.delay)]

    def drain(self) -> list[Record]:
        return [self._take() for _ in range(len(self.waiting))]

    def _take(self) -> Record:
        step, numbers, event = self.waiting.pop(0)
        if event is not None:
            if not event.query():
                event.synchronize()
            self.slots.append(numbers)
        loss, norm, bad, stop, *metrics = numbers.tolist()
        return Record(step=step, loss=loss, grad_norm=norm, bad=bad > 0, stop=stop > 0, metrics=tuple(metrics))
