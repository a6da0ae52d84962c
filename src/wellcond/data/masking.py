"""Which patches are hidden: a random order of them for each image, from its key. Floor 6.

The order of n hashes: no shape hangs on a number, nothing waits for the device, and the same sample hides the same
patches in any batch and process.

>>> from .randomness import keys
>>> order = patch_order(keys(seed=0, epoch=0, indices=torch.tensor([5])), 9)
>>> sorted(order[0].tolist())
[0, 1, 2, 3, 4, 5, 6, 7, 8]
"""

import torch
from torch import Tensor

from .randomness import bits

STREAM = 5000  # beyond those of the augmentation


def patch_order(keys: Tensor, num_patches: int) -> Tensor:
    """(B,) keys → (B, n) int64: the patches in a random order."""
    places = torch.arange(num_patches, device=keys.device)
    return torch.argsort(bits(bits(keys, STREAM)[:, None], places), 1)
