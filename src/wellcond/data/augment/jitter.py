"""Colour jitter as timm uses torchvision's: brightness, contrast and saturation, in an order drawn for each picture.

`ColorJitter(j, j, j)`: each factor is uniform in [max(0, 1 − j), 1 + j]; hue stays. The three are the same blend with
another degenerate picture, so a round applies to each picture whichever is its turn. Floor 6.

Legend: pictures uint8 (B, 3, H, W); `order` (B, 3) says which of BRIGHTNESS, CONTRAST, SATURATION comes first, second,
third; `factors` (B, 3) are theirs in the order of those names.
"""

import torch
from torch import Tensor

from ..randomness import integers, uniform
from . import enhancing

BRIGHTNESS, CONTRAST, SATURATION = range(3)


def draw(keys: Tensor, stream: int, strength: float) -> tuple[Tensor, Tensor]:
    """(order, factors); 4 streams from `stream` on."""
    low, high = max(0.0, 1 - strength), 1 + strength
    factors = torch.stack([low + (high - low) * uniform(keys, stream + i) for i in range(3)], 1)
    number = integers(keys, stream + 3, 6)  # one of the six permutations: the first, then which of the two others
    first, swap = number // 2, number % 2
    second, third = (first + 1 + swap) % 3, (first + 2 - swap) % 3
    return torch.stack([first, second, third], 1), factors


def apply(pixels: Tensor, order: Tensor, factors: Tensor) -> Tensor:
    """uint8 (B, 3, H, W) → same shape."""
    for turn in range(3):
        which = order[:, turn]
        factor = factors.gather(1, which[:, None])[:, 0]
        luma = enhancing.grey(pixels)
        which = which[:, None, None, None]
        degenerate = torch.where(which == SATURATION, luma, 0)
        degenerate = torch.where(which == CONTRAST, _mean(luma), degenerate)
        pixels = enhancing.blend(degenerate, pixels, factor)
    return pixels


def _mean(luma: Tensor) -> Tensor:
    """(B, 1, 1, 1) int32."""
    total = luma.sum((2, 3), keepdim=True, dtype=torch.int64)
    return enhancing.mean_level(total, luma.shape[2] * luma.shape[3])
