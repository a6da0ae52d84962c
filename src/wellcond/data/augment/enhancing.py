"""Brightness, contrast, colour and sharpness as Pillow's ImageEnhance blends them. Floor 6.

All four are one formula, degenerate + factor·(pixel − degenerate), cut to 0 … 255 and truncated. The degenerate
picture is black, the mean grey, the grey picture, or the smoothed picture. Pillow computes it in float32 with the
product rounded before the sum; a GPU would fuse the two. Here the product is taken in float64, where it is exact, and
rounded to float32, so that no fusing can change a bit.

Legend: pictures are uint8 (B, 3, H, W); factors (B,).
"""

import torch
from torch import Tensor


def blend(degenerate: Tensor, pixels: Tensor, factor: Tensor) -> Tensor:
    """uint8 (B, 3, H, W); `degenerate` is an integer tensor that broadcasts to `pixels`; `factor` (B,)."""
    below = degenerate.int()
    rounded = (factor.float().double()[:, None, None, None] * (pixels.int() - below)).float()
    return (below.float() + rounded).clamp(0, 255).to(torch.uint8)


def grey(pixels: Tensor) -> Tensor:
    """int32 (B, 1, H, W): ITU-R 601-2 luma in 16-bit fixed point, as Pillow's convert("L")."""
    red, green, blue = pixels.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16)[:, None]


def mean_level(total: Tensor, count: int) -> Tensor:
    """int32: the mean of `grey` from its sum over `count` pixels, rounded half up."""
    return (total.double() / count + 0.5).int()


def smooth(pixels: Tensor) -> Tensor:
    """int32 (B, 3, H, W): the 3 × 3 mean whose centre weighs 5 of 13, rounded; the border stays as it is.

    In integers: n/13 is never halfway between two of them, so Pillow's float32 sum rounds to the same.
    """
    x = pixels.int()
    if min(x.shape[2:]) < 3:
        return x
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * x[:, :, 1:-1, 1:-1]
    inner = torch.nn.functional.pad((2 * total + 13) // 26, (1, 1, 1, 1))
    return torch.where(_border(x), x, inner)


def _border(x: Tensor) -> Tensor:
    """(H, W) bool: the outermost rows and columns."""
    rows, columns = (torch.arange(side, device=x.device) for side in x.shape[2:])
    edge = [(line == 0) | (line == len(line) - 1) for line in (rows, columns)]
    return edge[0][:, None] | edge[1][None, :]
