"""Boxes (x0, y0, x1, y1) in pixels, ends exclusive: around masks, and how far two agree."""

import torch
from torch import Tensor


def box_around(mask: Tensor) -> Tensor:
    """The smallest box (B, 4) int64 around each mask (B, h, w); all zero where the mask is empty.

    >>> box_around(torch.tensor([[[0, 0, 0], [0, 1, 1]]]).bool())
    tensor([[1, 1, 3, 2]])
    """
    ends = []
    for occupied in (mask.any(1), mask.any(2)):  # columns, rows
        number = torch.arange(occupied.shape[1], device=mask.device)
        first = torch.where(occupied, number, occupied.shape[1]).amin(1)
        last = torch.where(occupied, number + 1, 0).amax(1)
        ends.append((torch.minimum(first, last), last))
    (x0, x1), (y0, y1) = ends
    return torch.stack([x0, y0, x1, y1], 1)


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes a (…, 4) with b (…, 4), one by one; 0 where both are empty.

    >>> box_iou(torch.tensor([0, 0, 2, 2]), torch.tensor([[1, 0, 3, 2], [5, 5, 6, 6]]))
    tensor([0.3333, 0.0000])
    """
    a, b = a.to(torch.promote_types(a.dtype, torch.float32)), b.to(torch.promote_types(b.dtype, torch.float32))
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = [(c[..., 2:] - c[..., :2]).clamp(min=0).prod(-1) for c in (a, b)]
    union = areas[0] + areas[1] - common
    return torch.where(union > 0, common / union.clamp(min=torch.finfo(union.dtype).tiny), 0.0)
