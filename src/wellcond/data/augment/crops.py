"""Where to cut: pad-crop, and the box of a random-resized-crop. Floor 6.

Pad-crop is torchvision's `RandomCrop(size, padding)`: black around the picture, every offset equally likely.

The box of a random-resized-crop follows torchvision's `RandomResizedCrop.get_params`: an area uniform in `scale`, an
aspect ratio log-uniform in `ratio`, ten tries; the first box that fits is placed uniformly, and if none does, the
largest centred box of an allowed ratio is taken. Here all ten tries are drawn at once and the first good one is picked
by index, so there is no branch and no wait for the device.

Legend: B pictures, (H, W) raw sides, T = 10 tries.
"""

import math

import torch
from torch import Tensor

from ..randomness import integers, uniform

TRIES = 10
PLACE = 2 * TRIES  # streams used, from the first one on: 2 for each try, then 2 for the place


def pad_crop(raw: Tensor, offsets: Tensor, padding: int, flip: Tensor | None = None) -> Tensor:
    """uint8 (B, C, H, W) → same shape, from the picture with `padding` black pixels around it.

    `offsets` (B, 2) int64 in [0, 2·padding] are row and column in the padded picture; `flip` (B,) mirrors the outcome.
    """
    H, W = raw.shape[2:]
    rows = torch.arange(H, device=raw.device) + offsets[:, :1] - padding
    columns = torch.arange(W, device=raw.device).expand(len(raw), W)
    if flip is not None:
        columns = torch.where(flip[:, None], W - 1 - columns, columns)
    columns = columns + offsets[:, 1:] - padding
    inside = ((rows >= 0) & (rows < H))[:, None, :, None] & ((columns >= 0) & (columns < W))[:, None, None, :]
    cell = rows.clamp(0, H - 1)[:, :, None] * W + columns.clamp(0, W - 1)[:, None, :]  # (B, H, W)
    pixels = torch.gather(raw.flatten(2), 2, cell.flatten(1)[:, None].expand(-1, raw.shape[1], -1))
    return torch.where(inside, pixels.view_as(raw), torch.zeros((), dtype=raw.dtype, device=raw.device))


def pad_offsets(keys: Tensor, stream: int, padding: int) -> Tensor:
    """(B, 2) int64: two streams from `stream` on."""
    return torch.stack([integers(keys, stream + axis, 2 * padding + 1) for axis in range(2)], 1)


def resized_boxes(
    keys: Tensor,
    stream: int,
    side: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Tensor:
    """(B, 4) int64 boxes (top, left, height, width) in a picture of `side`; PLACE + 2 streams from `stream` on."""
    H, W = side
    tries = torch.arange(TRIES, device=keys.device)
    area = H * W * _between(uniform(keys[:, None], stream + 2 * tries), *scale)  # (B, T)
    aspect = torch.exp(_between(uniform(keys[:, None], stream + 2 * tries + 1), math.log(ratio[0]), math.log(ratio[1])))
    width = torch.round(torch.sqrt(area * aspect)).long()
    height = torch.round(torch.sqrt(area / aspect)).long()
    fits = (width > 0) & (width <= W) & (height > 0) & (height <= H)
    first = fits.int().argmax(1, keepdim=True)  # the first of equal ones
    good = fits.any(1)
    whole_height, whole_width = fallback(side, ratio)
    height = torch.where(good, height.gather(1, first)[:, 0], whole_height)
    width = torch.where(good, width.gather(1, first)[:, 0], whole_width)
    top = torch.where(good, integers(keys, stream + PLACE, H - height + 1), (H - whole_height) // 2)
    left = torch.where(good, integers(keys, stream + PLACE + 1, W - width + 1), (W - whole_width) // 2)
    return torch.stack([top, left, height, width], 1)


def fallback(side: tuple[int, int], ratio: tuple[float, float]) -> tuple[int, int]:
    """(height, width) of the largest box whose width/height is within `ratio`.

    >>> fallback((100, 300), (3 / 4, 4 / 3))
    (100, 133)
    """
    H, W = side
    low, high = min(ratio), max(ratio)
    if low * H > W:
        return round(W / low), W
    if high * H < W:
        return H, round(H * high)
    return H, W


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u.double()
