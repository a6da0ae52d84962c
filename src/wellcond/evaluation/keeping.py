"""Features that are read once. A frozen backbone says the same of a picture every time.

A probe sees its pictures in every epoch, and reading them is most of its work; so what was read is kept on the device,
as far as memory holds it. Where it does not, pictures are read again.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, cast

import torch
from torch import Tensor

KEEP = 4 << 30  # bytes, on a CPU
Name = str
Read = Callable[[Tensor], Mapping[Name, Tensor]]  # pictures → features of each, by name


class Batches(Protocol):
    """Pictures (B, 3, S, S) and masks (B, S, S) int64, as often as asked; its length is the number of batches.

    Where it also has `numbered`, what was read can be kept.
    """

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]: ...


class Numbered(Batches, Protocol):
    """The same with numbers (B,) of the pictures, 0 … num_pictures − 1; they are only made ready when called."""

    @property
    def num_pictures(self) -> int: ...

    def numbered(self) -> Iterator[tuple[Tensor, Callable[[], Tensor], Tensor]]: ...


class ReadOnce:
    """Iterated, a pass over the batches: features by name, and masks; from the second pass on they are remembered."""

    def __init__(self, read: Read, batches: Batches) -> None:
        self.read, self.batches = read, batches
        self.kept: dict[Name, Tensor] = {}
        self.passes = 0

    def __iter__(self) -> Iterator[tuple[Mapping[Name, Tensor], Tensor]]:
        if not hasattr(self.batches, "numbered"):
            for images, masks in self.batches:
                yield self.read(images), masks
            return
        batches = cast(Numbered, self.batches)
        for place, (numbers, images, masks) in enumerate(batches.numbered()):
            if self.passes and self.kept:
                yield {name: x[numbers] for name, x in self.kept.items()}, masks
                continue
            features = self.read(images())
            if not self.passes and not place:
                self.kept = _places(features, batches.num_pictures)
            for name, x in self.kept.items():
                x[numbers] = features[name]
            yield features, masks
        self.passes += 1


def room(device: torch.device) -> int:
    """How many bytes of features may be kept: of a GPU a quarter of what is free, for the heads need room, too."""
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else KEEP


def _places(features: Mapping[Name, Tensor], count: int) -> dict[Name, Tensor]:
    """Room for the features of so many pictures; {} where there is none."""
    first = {name: x[:1] for name, x in features.items()}
    size = count * sum(x.numel() * x.itemsize for x in first.values())
    if size > room(next(iter(first.values())).device):
        return {}
    return {name: _empty(count, x) for name, x in first.items()}


def _empty(count: int, like: Tensor) -> Tensor:
    """In memory as the other, for sums in another order are other bits."""
    last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    return torch.empty(count, *like.shape[1:], dtype=like.dtype, device=like.device, memory_format=layout)
