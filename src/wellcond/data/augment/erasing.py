"""Random erasing with timm's rules: a box of 2 % to a third of the picture, filled with noise. Floor 6.

Zhong et al. (2017), as timm's `RandomErasing`: the aspect ratio is log-uniform in [0.3, 1/0.3]; ten tries for a box
strictly smaller than the picture, else nothing is erased. It works on normalised pictures, so the noise is standard
normal (timm: `mode="pixel"`). All tries are drawn at once and the first that fits is picked by index.

Legend: B pictures, floats (B, C, H, W); boxes (B, 4) int64: top, left, height, width.
"""

import math

import torch
from torch import Tensor

from ..randomness import integers, normal_field, uniform

TRIES = 10
PLACE = 2 * TRIES
STREAMS = PLACE + 4  # 2 for each try, 2 for the place, whether at all, and the noise
AREA = (0.02, 1 / 3)
ASPECT = (0.3, 1 / 0.3)


def draw(keys: Tensor, stream: int, side: tuple[int, int], probability: float) -> Tensor:
    """Boxes (B, 4), of height 0 where nothing is erased; STREAMS streams from `stream` on."""
    H, W = side
    tries = torch.arange(TRIES, device=keys.device)
    area = H * W * (AREA[0] + (AREA[1] - AREA[0]) * uniform(keys[:, None], stream + 2 * tries).double())
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    aspect = torch.exp(low + (high - low) * uniform(keys[:, None], stream + 2 * tries + 1).double())
    height = torch.round(torch.sqrt(area * aspect)).long()
    width = torch.round(torch.sqrt(area / aspect)).long()
    fits = (height < H) & (width < W)
    first = fits.int().argmax(1, keepdim=True)
    height, width = height.gather(1, first)[:, 0], width.gather(1, first)[:, 0]
    erased = fits.any(1) & (uniform(keys, stream + PLACE + 2) < probability)
    top = integers(keys, stream + PLACE, (H - height + 1).clamp(min=1))
    left = integers(keys, stream + PLACE + 1, (W - width + 1).clamp(min=1))
    return torch.stack([top, left, torch.where(erased, height, 0), width], 1)


def erase(images: Tensor, boxes: Tensor, keys: Tensor, stream: int) -> Tensor:
    """The pictures with the box of each filled; the noise is stream `stream` + STREAMS − 1."""
    inside = box_mask(boxes, (images.shape[2], images.shape[3]))[:, None]
    noise = normal_field(keys, stream + STREAMS - 1, tuple(images.shape[1:])).to(images.dtype)
    return torch.where(inside, noise, images)


def box_mask(boxes: Tensor, side: tuple[int, int]) -> Tensor:
    """(B, H, W) bool, True inside the box of each."""
    top, left, height, width = (boxes[:, i, None] for i in range(4))
    rows, columns = (torch.arange(s, device=boxes.device) for s in side)
    within_rows = (rows >= top) & (rows < top + height)
    within_columns = (columns >= left) & (columns < left + width)
    return within_rows[:, :, None] & within_columns[:, None, :]
