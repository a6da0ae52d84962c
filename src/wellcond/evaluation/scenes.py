"""Pictures with what is known about them, of any size, in batches of one size.

A batch holds pictures whose padded sizes agree; pictures wait for others of their size, and the longest-waiting size
goes first where too many wait, so memory holds a few batches whatever the length of the set.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.evaluation.features import pad_to_patches

WAITING = 4  # times the batch size


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One picture, not padded. Boxes are x0, y0, x1, y1 in its pixels, ends exclusive."""

    index: int
    name: str
    image: Tensor  # (3, H, W), normalised
    boxes: Tensor | None = None  # (k, 4) float64
    mask: Tensor | None = None  # (H, W) uint8: 1 object, 0 not, 255 void

    @property
    def size(self) -> tuple[int, int]:
        """Height, width."""
        return self.image.shape[1], self.image.shape[2]


def by_size(scenes: Iterable[Scene], batch_size: int, patch_size: tuple[int, int]) -> Iterator[list[Scene]]:
    """Up to `batch_size` scenes that are of one size once padded; ValueError for one smaller than a patch."""
    waiting: dict[tuple[int, int], list[Scene]] = {}
    for scene in scenes:
        (height, width), (p, q) = scene.size, patch_size
        if height < p or width < q:
            raise ValueError(
                f"{scene.name} is {width} × {height} px, smaller than a patch of {q} × {p}; leave it out, or enlarge "
                "the pictures: choose a size"
            )
        key = (-(-height // p), -(-width // q))
        waiting.setdefault(key, []).append(scene)
        if len(waiting[key]) == batch_size:
            yield waiting.pop(key)
        elif sum(map(len, waiting.values())) >= WAITING * batch_size:
            yield waiting.pop(next(iter(waiting)))
    yield from waiting.values()


def stacked(scenes: Sequence[Scene], patch_size: tuple[int, int], device: torch.device) -> Tensor:
    """(B, 3, H, W) of scenes of one padded size; zeros, the mean colour, fill the rest."""
    return torch.stack([pad_to_patches(scene.image, patch_size) for scene in scenes]).to(device)
