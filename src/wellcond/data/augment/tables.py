"""The pointwise operations of RandAugment as look-up tables (B, 3, 256), with Pillow's bits. Floor 6.

Pillow itself applies auto-contrast, equalise, invert, posterise and solarise as tables of 256 entries per channel
(ImageOps). Each function here makes the tables of a whole batch; `look_up` reads them in one gather, so pictures of one
batch may each have another operation.

Legend: `histogram` (B, 3, 256) counts, `argument` (B,) float64 or int64, i = 0 … 255 the entry.
"""

import torch
from torch import Tensor

from .rounding import product


def entries(like: Tensor) -> Tensor:
    """i = 0 … 255 int64 on the device of `like`."""
    return torch.arange(256, device=like.device)


def look_up(pixels: Tensor, tables: Tensor) -> Tensor:
    """uint8 (B, 3, H, W) through int tables (B, 3, 256)."""
    flat = pixels.flatten(2).long()
    return torch.gather(tables.to(torch.uint8), 2, flat).view_as(pixels)


def auto_contrast(histogram: Tensor) -> Tensor:
    """The darkest value of a channel becomes 0, the lightest 255, truncated in between; flat channels stay.

    The line i·scale − low·scale is kept as two rounded products, as Pillow has it.
    """
    i = entries(histogram)
    found = histogram > 0
    low = torch.where(found, i, 256).amin(2, keepdim=True)
    high = torch.where(found, i, -1).amax(2, keepdim=True)
    spread = (high - low).clamp(min=1).double()
    scale = torch.full_like(spread, 255.0) / spread  # not 255.0 / spread, which torch rounds twice
    line = product(i.double(), scale) - product(low.double(), scale)
    return torch.where(high <= low, i, line.clamp(0, 255).long())


def equalise(histogram: Tensor) -> Tensor:
    """The cumulative histogram over its step; a channel with a single value, or too few pixels, stays."""
    i = entries(histogram)
    counts = histogram.long()
    high = torch.where(counts > 0, i, -1).amax(2, keepdim=True)
    last = counts.gather(2, high.clamp(min=0))  # pixels of the lightest value
    step = (counts.sum(2, keepdim=True) - last) // 255
    below = counts.cumsum(2) - counts
    table = (step // 2 + below) // step.clamp(min=1)
    return torch.where(step == 0, i, table.clamp(max=255))  # one single value has step 0 as well


def invert(argument: Tensor) -> Tensor:
    return _all_channels(255 - entries(argument).expand(len(argument), 256))


def posterise(num_bits: Tensor) -> Tensor:
    """Keep the upper bits; 0 of them is black, as older Pillow had it (newer ones refuse what timm asks for)."""
    keep = 256 - (torch.ones_like(num_bits) << (8 - num_bits.clamp(0, 8)))
    return _all_channels(entries(num_bits) & keep[:, None])


def solarise(threshold: Tensor) -> Tensor:
    i = entries(threshold)
    return _all_channels(torch.where(i < threshold[:, None], i, 255 - i))


def solarise_add(amount: Tensor) -> Tensor:
    i = entries(amount)
    return _all_channels(torch.where(i < 128, (i + amount[:, None]).clamp(max=255), i))


def _all_channels(table: Tensor) -> Tensor:
    return table[:, None].expand(-1, 3, -1)
