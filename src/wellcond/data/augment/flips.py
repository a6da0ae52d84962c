"""Mirrored pictures. The crops mirror as they gather; this is for sets that are not cropped. Floor 6."""

import torch
from torch import Tensor

from ..randomness import uniform


def draw_flip(keys: Tensor, stream: int) -> Tensor:
    """(B,) bool, each with probability one half."""
    return uniform(keys, stream) < 0.5


def flip(pixels: Tensor, which: Tensor) -> Tensor:
    """(B, C, H, W) with left and right swapped where `which` (B,) says so."""
    return torch.where(which[:, None, None, None], pixels.flip(3), pixels)
