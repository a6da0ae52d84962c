"""Connected components of many masks at once, 4-neighbours, on whatever device they are.

Every pixel of a mask starts as its own root. In turns, each run of a row, and then each run of a column, takes the
smallest root in it, and each root's root is followed (pointer jumping); it ends when nothing changes. A turn reaches
around a corner whatever the length of the runs, so photographs take a few.

Legend: B masks (h, w).
"""

import torch
from torch import Tensor


def components(mask: Tensor) -> Tensor:
    """Number of the component of each pixel of mask (B, h, w) bool, from 1 in reading order; 0 outside. int64.

    >>> components(torch.tensor([[[1, 0, 1], [1, 0, 0], [0, 1, 1]]]).bool())
    tensor([[[1, 0, 2],
             [1, 0, 0],
             [0, 3, 3]]])
    """
    B, h, w = mask.shape
    own = torch.arange(h * w, device=mask.device).expand(B, h * w)
    rows, columns = _runs(mask), _runs(mask.mT)
    root = own
    while True:
        before = root
        root = _smallest(root.reshape(B, h, w), rows)
        root = _smallest(root.mT, columns).mT.reshape(B, h * w)
        root = torch.where(mask.flatten(1), root.gather(1, root), own)
        if torch.equal(root, before):
            break
    is_root = (root == own) & mask.flatten(1)
    number = is_root.long().cumsum(1)
    return torch.where(mask.flatten(1), number.gather(1, root), 0).reshape(B, h, w)


def component_of(mask: Tensor, seed: Tensor) -> Tensor:
    """The component (B, h, w) bool that holds pixel `seed` (B,), in reading order; empty where it is outside."""
    numbers = components(mask)
    own = numbers.flatten(1).gather(1, seed[:, None])
    return (numbers == own[..., None]) & mask & (own > 0)[..., None]


def _runs(mask: Tensor) -> Tensor:
    """(B, h, w) → a number from 1 for each horizontal run, at each of its pixels; 0 outside."""
    begins = mask.clone()
    begins[..., 1:] &= ~mask[..., :-1]
    return torch.where(mask, begins.flatten(1).long().cumsum(1).reshape(mask.shape), 0)


def _smallest(root: Tensor, runs: Tensor) -> Tensor:
    """The smallest root of each run, at each of its pixels (B, h, w)."""
    flat, numbers = root.reshape(len(root), -1), runs.reshape(len(root), -1)
    least = torch.full((len(flat), flat.shape[1] + 1), flat.shape[1], dtype=flat.dtype, device=flat.device)
    least = least.scatter_reduce(1, numbers, flat, "amin")
    return least.gather(1, numbers).reshape(runs.shape)
