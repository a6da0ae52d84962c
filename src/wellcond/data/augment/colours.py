"""Colours, blur and solarisation of pictures in floats, as DINO and its forerunners use them. Floor 6.

torchvision's operations on float pictures in 0 … 1, each picture with its own strength, in its own order. Nothing is
rounded to 256 levels in between; RandAugment and the plain jitter, which have Pillow's bits, are elsewhere.

Legend: pictures (B, 3, H, W) floats in 0 … 1; factors (B,).
"""

import math

import torch
from torch import Tensor

from ..randomness import bits, uniform

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)


def draw_jitter(keys: Tensor, stream: int, strengths: tuple[float, float, float, float]) -> tuple[Tensor, Tensor]:
    """(order (B, 4), factors (B, 4)): a permutation, and factors in the order of the names above; 8 streams.

    Factors are uniform in [1 − s, 1 + s], for the hue in [−s, s] turns.
    """
    centre = (1.0, 1.0, 1.0, 0.0)
    draws = [
        c + s * (2 * uniform(keys, stream + i) - 1) for i, (c, s) in enumerate(zip(centre, strengths, strict=True))
    ]
    ranks = torch.stack([bits(keys, stream + 4 + i) for i in range(4)], 1)
    return torch.argsort(ranks, 1), torch.stack(draws, 1)


def jitter(x: Tensor, order: Tensor, factors: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue, each picture in its own order."""
    for turn in range(4):
        which = order[:, turn, None, None, None]
        factor = factors.gather(1, order[:, turn : turn + 1])[:, :, None, None]
        grey = luma(x)
        below = torch.where(which == SATURATION, grey, torch.zeros_like(grey))
        below = torch.where(which == CONTRAST, grey.mean((2, 3), keepdim=True), below)
        blended = (factor * x + (1 - factor) * below).clamp(0, 1)
        x = torch.where(which == HUE, turn_hue(x, factor), blended)
    return x


def luma(x: Tensor) -> Tensor:
    """(B, 1, H, W): ITU-R 601-2."""
    red, green, blue = x.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]


def turn_hue(x: Tensor, turns: Tensor) -> Tensor:
    """The hue of every pixel, in HSV, further by `turns` (B, 1, 1, 1) of the circle.

    With M the largest and m the smallest channel: value M, saturation (M − m)/M, hue the place between the three
    channels. Back without cases: a channel is M − (M − m)·clip(min(t, 4 − t), 0, 1), t = (k + 6·hue) mod 6, with
    k = 5, 3, 1 for red, green, blue.
    """
    red, green, blue = x.unbind(1)
    most, least = x.amax(1), x.amin(1)
    spread = most - least
    safe = torch.where(spread > 0, spread, 1.0)
    hue = torch.where(
        most == red,
        (green - blue) / safe,
        torch.where(most == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    hue = (hue + 6 * turns[:, 0]) % 6
    channels = []
    for k in (5, 3, 1):
        t = (hue + k) % 6
        channels.append(most - spread * torch.minimum(t, 4 - t).clamp(0, 1))
    return torch.stack(channels, 1)


def blur(x: Tensor, sigma: Tensor, radius: int) -> Tensor:
    """A Gaussian of deviation `sigma` (B,), cut at `radius` pixels, along both axes; the border is mirrored."""
    taps = torch.arange(-radius, radius + 1, device=x.device, dtype=x.dtype)
    weight = torch.exp(-0.5 * (taps / sigma.to(x.dtype)[:, None]).square())
    weight = weight / weight.sum(1, keepdim=True)
    for dim in (2, 3):
        pad = (0, 0, radius, radius) if dim == 2 else (radius, radius, 0, 0)
        around, size = torch.nn.functional.pad(x, pad, mode="reflect"), x.shape[dim]
        x = sum_taps(around, weight, dim, size)
    return x


def sum_taps(around: Tensor, weight: Tensor, dim: int, size: int) -> Tensor:
    total = torch.zeros((), dtype=around.dtype, device=around.device)
    for k in range(weight.shape[1]):
        total = total + weight[:, k, None, None, None] * around.narrow(dim, k, size)
    return total


def solarise(x: Tensor) -> Tensor:
    """The bright half inverted."""
    return torch.where(x >= 0.5, 1 - x, x)


def blur_radius(sigma: float, size: int) -> int:
    """Three deviations, as far as a mirrored border reaches.

    >>> blur_radius(2.0, 224), blur_radius(0.5, 2)
    (6, 1)
    """
    return min(math.ceil(3 * sigma), size - 1)
