"""Which samples a step sees: a pure function of (seed, step). Floor 6.

There is no sampler to save: epoch = step // steps per epoch, and an epoch's order sorts the samples by a hash of (seed,
epoch, index). The hash is a bijection, so no two are equal and the order is the same on any machine. It is worked out
once per epoch; a step slices it.

Repeated augmentation (Hoffer et al., 2020; DeiT): each sample comes R times in a batch, under R different keys, and an
epoch has as many steps as without, so it sees 1/R of the samples. Inside a batch the first views of all its samples
come first, then the second ones: neighbours, which mixup pairs, are then different pictures.

Processes and accumulation take contiguous parts of the global batch (`part`), so their number changes nothing.

>>> sampling = Sampling(length=10, batch_size=4, seed=0)
>>> sampling.steps_per_epoch, len(set(torch.cat([sampling.indices(0), sampling.indices(1)]).tolist()))
(2, 8)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from . import randomness

_ORDER = 1 << 40  # a word no index reaches, so that the order's hash is not an augmentation's


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The order of `length` samples in global batches of `batch_size`; the incomplete last batch is dropped."""

    length: int
    batch_size: int
    seed: int
    repeats: int = 1
    _order: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch size is {self.batch_size}; choose 1 or more")
        if self.length < self.batch_size:
            raise ValueError(
                f"batch size is {self.batch_size}, but there are only {self.length} training images; make it smaller"
            )
        if not 1 <= self.repeats <= self.batch_size:
            raise ValueError(f"repeats is {self.repeats}; choose 1 … {self.batch_size}, the batch size")

    @property
    def steps_per_epoch(self) -> int:
        return self.length // self.batch_size

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def indices(self, step: int) -> Tensor:
        """(global batch,) int64: the samples of this step."""
        return self.order(self.epoch(step))[self._views(step) // self.repeats]

    def keys(self, step: int) -> Tensor:
        """(global batch,) int64: the key of each view, in the order of `indices`."""
        return randomness.keys(self.seed, self.epoch(step), self.indices(step), self._views(step) % self.repeats)

    def step_key(self, step: int) -> Tensor:
        """() int64: the key of what the whole batch shares."""
        return torch.tensor(randomness.step_key(self.seed, step))

    def order(self, epoch: int) -> Tensor:
        """(length,) int64: the permutation of this epoch; the last two asked for are kept."""
        if epoch not in self._order:
            if len(self._order) > 1:
                del self._order[min(self._order)]
            self._order[epoch] = permutation(self.length, self.seed, epoch)
        return self._order[epoch]

    def _views(self, step: int) -> Tensor:
        """(global batch,) numbers of views within the epoch, first views first."""
        start = (step % self.steps_per_epoch) * self.batch_size
        views = torch.arange(start, start + self.batch_size)
        return views if self.repeats == 1 else views[torch.argsort(views % self.repeats, stable=True)]


def permutation(length: int, seed: int, epoch: int) -> Tensor:
    """(length,) int64: 0 … length − 1 in the order of their hashes."""
    word = randomness.scalar_key(seed, epoch, _ORDER)
    return torch.argsort(randomness.mix(torch.arange(length) ^ word))


def evaluation_batches(length: int, batch_size: int, number: int = 0, num_parts: int = 1) -> Iterator[Tensor]:
    """All samples once, in order; process `number` of `num_parts` takes a contiguous share. The last may be short.

    >>> [b.tolist() for b in evaluation_batches(7, 2, number=1, num_parts=2)]
    [[3, 4], [5, 6]]
    """
    if batch_size < 1:
        raise ValueError(f"batch size is {batch_size}; choose 1 or more")
    start, end = length * number // num_parts, length * (number + 1) // num_parts
    for first in range(start, end, batch_size):
        yield torch.arange(first, min(first + batch_size, end))
