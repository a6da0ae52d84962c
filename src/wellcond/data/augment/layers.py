"""One RandAugment layer over the pixels, as two operators that compilers take as they are. Floor 6.

`statistics` reads what the tables of a layer depend on, `apply_kinds` does the operation of each picture. On CUDA they
are Triton kernels in which a program does the work of its own picture only; on the CPU the pictures are sorted by kind.

Legend: B pictures uint8 (B, 3, H, W); kinds: 0 nothing, 1 a table, 2 – 4 a blend with one grey, with the grey picture,
with the smooth picture, 5 an affine sampling.
"""

import torch
from torch import Tensor

from . import affine, enhancing, tables

NOTHING, TABLE, LEVEL, GREY, SMOOTH, AFFINE = range(6)


@torch.library.custom_op("wellcond::statistics", mutates_args=())
def statistics(pixels: Tensor, wants_counts: Tensor, wants_grey: Tensor) -> tuple[Tensor, Tensor]:
    """(counts of the values of each channel (B, 3, 256) int32, sum of the grey picture (B,) int64); 0 where unwanted.

    Sums of integers do not depend on their order: any device gives the same bits.
    """
    B = len(pixels)
    counts = torch.zeros(B, 3, 256, dtype=torch.int32, device=pixels.device)
    grey = torch.zeros(B, dtype=torch.int64, device=pixels.device)
    if pixels.is_cuda:
        from .kernels import launch_count  # Triton is on machines with CUDA only

        launch_count(pixels, wants_counts, wants_grey, counts, grey)
        return counts, grey
    chosen = pixels[wants_counts].flatten(2).long()
    counts[wants_counts] = counts[wants_counts].scatter_add_(2, chosen, torch.ones_like(chosen, dtype=torch.int32))
    grey[wants_grey] = enhancing.grey(pixels[wants_grey]).sum((1, 2, 3), dtype=torch.int64)
    return counts, grey


@statistics.register_fake
def _(pixels: Tensor, wants_counts: Tensor, wants_grey: Tensor) -> tuple[Tensor, Tensor]:
    counts = pixels.new_empty((len(pixels), 3, 256), dtype=torch.int32)
    return counts, pixels.new_empty((len(pixels),), dtype=torch.int64)


@torch.library.custom_op("wellcond::apply_kinds", mutates_args=())
def apply_kinds(
    pixels: Tensor, kind: Tensor, table: Tensor, matrix: Tensor, factor: Tensor, level: Tensor, fill: Tensor
) -> Tensor:
    """uint8 → uint8. Each picture has a kind (B,) int64, and for it a table (B, 3, 256) uint8, a matrix (B, 6) float64,
    a factor (B,) float32, a grey (B,) int32; `fill` (3,) uint8 is what lies outside a moved picture.
    """
    out = torch.empty_like(pixels, memory_format=torch.contiguous_format)
    if pixels.is_cuda:
        from .kernels import launch_layer

        launch_layer(pixels, out, kind, table, matrix, factor, level, fill)
        return out
    for number in range(6):
        which = kind == number
        if which.any():
            x, strength = pixels[which], factor[which]
            if number == NOTHING:
                out[which] = x
            elif number == TABLE:
                out[which] = tables.look_up(x, table[which])
            elif number == AFFINE:
                out[which] = affine.transform(x, matrix[which], fill)
            else:
                degenerate = level[which, None, None, None]
                if number != LEVEL:
                    degenerate = enhancing.grey(x) if number == GREY else enhancing.smooth(x)
                out[which] = enhancing.blend(degenerate, x, strength)
    return out


@apply_kinds.register_fake
def _(
    pixels: Tensor, kind: Tensor, table: Tensor, matrix: Tensor, factor: Tensor, level: Tensor, fill: Tensor
) -> Tensor:
    return torch.empty_like(pixels, memory_format=torch.contiguous_format)
