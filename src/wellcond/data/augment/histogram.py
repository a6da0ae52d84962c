"""Counts of the 256 values of each channel. Floor 6.

On the CPU one `scatter_add_`. On CUDA the same with 77 million atomic additions would be the dearest part of the whole
augmentation, though one picture in thirty asks for it: a small Triton kernel leaves the others out. Sums of integers do
not depend on their order, so both give the same bits.

Legend: B pictures, C channels; `wanted` (B,) bool, whose other pictures get zeros.
"""

import torch
from torch import Tensor

BLOCK = 4096


def histogram(pixels: Tensor, wanted: Tensor) -> Tensor:
    """uint8 (B, C, H, W) → int32 (B, C, 256)."""
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int32, device=pixels.device)
    if pixels.is_cuda:
        _count_on_device(pixels.contiguous(), wanted, counts)
        return counts
    flat = pixels.flatten(2).long()
    return counts.scatter_add_(2, flat, wanted.int()[:, None, None].expand_as(flat))


def _count_on_device(pixels: Tensor, wanted: Tensor, counts: Tensor) -> None:
    from .kernels import count_values  # Triton is on machines with CUDA only

    B, C, H, W = pixels.shape
    grid = (-(-H * W // BLOCK), B * C)
    count_values[grid](pixels, wanted, counts, C, H * W, BLOCK)
