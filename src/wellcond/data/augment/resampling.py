"""Boxes of pictures, resized: Pillow's antialiased bilinear filter, for a batch, in integers. Floor 6.

A triangle as wide as max(1, box side / output side) pixels on each side of the sample, its weights normalised and
rounded to 22 bits; horizontally, then vertically, with uint8 in between (Pillow's Resample.c describes the scheme).
Weights are worked out in float64 and applied in int32, so the result has Pillow's bits, on any device. A weight that
rounding noise of float64 adds or drops at the foot of the triangle is zero in 22 bits. (Pillow 13 goes vertically first
for some shapes; a pixel then differs by 1 at most.)

The number of taps comes from the shapes alone: no box is wider than its picture. Flipping costs nothing here:
the output columns are counted from the right.

Legend: B pictures, C channels, (H, W) raw and (h, w) resized sides, K taps.
"""

import math

import torch
from torch import Tensor

from .rounding import product

_BITS = 22


def resize_boxes(raw: Tensor, boxes: Tensor, size: tuple[int, int], flip: Tensor | None = None) -> Tensor:
    """uint8 (B, C, H, W) → (B, C, h, w): box b of picture b is (top, left, height, width) int64, (B, 4).

    `flip` (B,) bool mirrors the outcome. A box lies inside its picture and is not empty.
    """
    top, left, height, width = boxes.unbind(1)
    rows = _apply(raw, *_taps(left, width, raw.shape[3], size[1], flip), dim=3)
    return _apply(rows, *_taps(top, height, raw.shape[2], size[0], None), dim=2)


def resize(raw: Tensor, size: tuple[int, int]) -> Tensor:
    """uint8 (B, C, H, W) → (B, C, h, w), the whole of each picture."""
    H, W = raw.shape[2:]
    whole = torch.zeros(raw.shape[0], 4, dtype=torch.int64, device=raw.device)
    whole[:, 2], whole[:, 3] = H, W
    return resize_boxes(raw, whole, size)


def _taps(start: Tensor, extent: Tensor, side: int, out: int, flip: Tensor | None) -> tuple[Tensor, Tensor]:
    """Along one axis: which source pixels (B, out, K) int64, and their weights times 2²², int32."""
    position = torch.arange(out, device=start.device).expand(len(start), out)
    if flip is not None:
        position = torch.where(flip[:, None], out - 1 - position, position)
    scale = extent.double()[:, None] / out
    reach = scale.clamp(min=1.0)  # the triangle's half width
    centre = product(position.double() + 0.5, scale)
    first = (centre - reach + 0.5).clamp(min=0).long()  # clamp before long(): truncation is floor from 0 on
    beyond = torch.minimum((centre + reach + 0.5).long(), extent[:, None])
    num_taps = 2 * math.ceil(max(1.0, side / out)) + 1
    source = first[..., None] + torch.arange(num_taps, device=start.device)
    weight = (1 - ((source.double() - centre[..., None] + 0.5) / reach[..., None]).abs()).clamp(min=0)
    weight = torch.where(source < beyond[..., None], weight, 0.0)
    weight = weight / weight.sum(-1, keepdim=True)
    fixed = (weight * float(1 << _BITS) + 0.5).int()
    inside = torch.minimum(source, extent[:, None, None] - 1)
    return inside + start[:, None, None], fixed


def _apply(pixels: Tensor, source: Tensor, weight: Tensor, dim: int) -> Tensor:
    """Σₖ weight·pixel along `dim`, rounded; int32 holds it: 255·2²² + 2²¹ < 2³¹."""
    shape = list(pixels.shape)
    shape[dim] = source.shape[1]
    ones = [len(source), 1, 1, 1]
    ones[dim] = source.shape[1]
    total = torch.full((), 1 << (_BITS - 1), dtype=torch.int32, device=pixels.device)
    for k in range(source.shape[2]):
        tap = torch.gather(pixels, dim, source[..., k].reshape(ones).expand(shape))
        total = total + tap.int() * weight[..., k].reshape(ones)
    return (total >> _BITS).clamp(0, 255).to(torch.uint8)
