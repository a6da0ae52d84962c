"""uint8 → floats of mean 0 and deviation 1 by channel: (x − 255·mean) / (255·std), as timm's prefetcher. Floor 6."""

from collections.abc import Sequence

import torch
from torch import Tensor


def normalise(
    pixels: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """uint8 (B, C, H, W) → `dtype`."""
    centre = per_channel([255 * m for m in mean], pixels.device, dtype)
    width = per_channel([255 * s for s in std], pixels.device, dtype)
    return (pixels.to(dtype) - centre[:, None, None]) / width[:, None, None]


def normalise_floats(
    pixels: Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Floats in 0 … 1, (B, C, H, W) → `dtype`."""
    centre, width = (per_channel(values, pixels.device, dtype) for values in (mean, std))
    return (pixels.to(dtype) - centre[:, None, None]) / width[:, None, None]


def per_channel(values: Sequence[float], device: torch.device, dtype: torch.dtype) -> Tensor:
    """(C,) filled on the device; `torch.tensor(list, device="cuda")` copies from the host, which no graph records."""
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])
