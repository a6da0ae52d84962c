"""Shear, translate and rotate: one affine sampling with Pillow's bilinear filter. Floor 6.

Pillow's `transform(size, AFFINE, (a, b, c, d, e, f), BILINEAR)`: output pixel (x, y) reads the source at
(a(x+½) + b(y+½) + c, d(x+½) + e(y+½) + f); outside the picture it takes the fill colour, inside it blends the four
nearest pixels in float64 and truncates. The unit matrix gives the picture back bit for bit.

timm draws bilinear or bicubic at random unless it is told one; here it is bilinear.

Legend: B pictures, matrices (B, 6) float64, angles in degrees, everything else in pixels.
"""

import math

import torch
from torch import Tensor

from .rounding import product


def matrices(
    argument: Tensor,
    side: tuple[int, int],
    *,
    rotated: Tensor,
    sheared_x: Tensor,
    sheared_y: Tensor,
    moved_x: Tensor,
    moved_y: Tensor,
) -> Tensor:
    """(B, 6): at most one of the flags (B,) is set for a picture; none is the unit matrix.

    `argument` (B,) float64 is degrees for a rotation about the centre, counter-clockwise, a slope for a shear, a share
    of the side for a translation. Pillow turns by the remainder of 360, and rounds sine and cosine to 15 decimals.
    """
    angle = torch.where(rotated, argument, 0.0).remainder(360) * (-math.pi / 180)
    cosine, sine = (torch.round(f(angle) * 1e15) / 1e15 for f in (torch.cos, torch.sin))
    y, x = (torch.full_like(argument, s / 2) for s in side)
    b = torch.where(sheared_x, argument, sine)
    c = torch.where(moved_x, argument * side[1], (product(-x, cosine) + product(-y, sine)) + x)
    d = torch.where(sheared_y, argument, -sine)
    f = torch.where(moved_y, argument * side[0], (product(x, sine) + product(-y, cosine)) + y)
    return torch.stack([cosine, b, c, d, cosine, f], 1)


def transform(pixels: Tensor, matrix: Tensor, fill: Tensor) -> Tensor:
    """uint8 (B, C, H, W) → same shape; `fill` (C,) uint8."""
    H, W = pixels.shape[2:]
    y = (torch.arange(H, device=pixels.device).double() + 0.5)[:, None]
    x = (torch.arange(W, device=pixels.device).double() + 0.5)[None, :]
    a, b, c, d, e, f = (matrix[:, i, None, None] for i in range(6))
    across = (product(x, a) + product(y, b)) + c  # (B, H, W)
    down = (product(x, d) + product(y, e)) + f
    inside = (across >= 0) & (across < W) & (down >= 0) & (down < H)
    across, down = across.clamp(-1, W + 1) - 0.5, down.clamp(-1, H + 1) - 0.5  # far away reads nothing: keep int64 sane
    left, upper = across.floor(), down.floor()
    dx, dy = (across - left)[:, None], (down - upper)[:, None]
    x0, x1 = (left.long() + i for i in range(2))
    y0, y1 = (upper.long() + i for i in range(2))
    x0, x1, y0, y1 = (v.clamp(0, s - 1) for v, s in ((x0, W), (x1, W), (y0, H), (y1, H)))
    flat = pixels.flatten(2)

    def read(row: Tensor, column: Tensor) -> Tensor:
        cell = (row * W + column).flatten(1)[:, None].expand(-1, pixels.shape[1], -1)
        return torch.gather(flat, 2, cell).view_as(pixels).double()

    lines = []
    for row in (y0, y1):
        near, far = read(row, x0), read(row, x1)
        lines.append(near + product(far - near, dx))
    blended = lines[0] + (lines[1] - lines[0]) * dy
    return torch.where(inside[:, None], blended.to(torch.uint8), fill[:, None, None])
