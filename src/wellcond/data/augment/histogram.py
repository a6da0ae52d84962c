"""Counts of the 256 values of each channel. Floor 6.

On the CPU one `scatter_add_`. On CUDA the same with 77 million atomic additions would be the dearest part of the whole
augmentation, though one picture in fifteen asks for it: a small Triton kernel leaves the others out. Sums of integers do
not depend on their order, so both give the same bits. An operator of its own, so that compilers take it as it is.

Legend: B pictures, C channels; `wanted` (B,) bool, whose other pictures get zeros.
"""

import torch
from torch import Tensor

BLOCK = 4096


@torch.library.custom_op("wellcond::histogram", mutates_args=())
def histogram(pixels: Tensor, wanted: Tensor) -> Tensor:
    """uint8 (B, C, H, W) → int32 (B, C, 256)."""
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.int32, device=pixels.device)
    if pixels.is_cuda:
        _count_on_device(pixels.contiguous(), wanted.contiguous(), counts)
        return counts
    flat = pixels.flatten(2).long()
    return counts.scatter_add_(2, flat, wanted.int()[:, None, None].expand_as(flat))


@histogram.register_fake
def _(pixels: Tensor, wanted: Tensor) -> Tensor:
    return pixels.new_empty((*pixels.shape[:2], 256), dtype=torch.int32)


def _count_on_device(pixels: Tensor, wanted: Tensor, counts: Tensor) -> None:
    from .kernels import count_values  # Triton is on machines with CUDA only

    B, C, H, W = pixels.shape
    if pixels.numel():
        count_values[(-(-H * W // BLOCK), B * C)](pixels, wanted, counts, C, H * W, BLOCK)
