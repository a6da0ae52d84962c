"""uint8 → floats of mean 0 and deviation 1 by channel: (x − 255·mean) / (255·std), as timm's prefetcher. Floor 6."""

from collections.abc import Sequence

import torch
from torch import Tensor


def normalise(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 (B, C, H, W) → float32."""
    centre = per_channel([255 * m for m in mean], pixels.device, torch.float32)
    width = per_channel([255 * s for s in std], pixels.device, torch.float32)
    return (pixels.float() - centre[:, None, None]) / width[:, None, None]


def normalise_floats(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """float32 in 0 … 1, (B, C, H, W)."""
    centre, width = (per_channel(values, pixels.device, torch.float32) for values in (mean, std))
    return (pixels - centre[:, None, None]) / width[:, None, None]


def per_channel(values: Sequence[float], device: torch.device, dtype: torch.dtype) -> Tensor:
    """(C,) filled on the device; `torch.tensor(list, device="cuda")` copies from the host, which no graph records."""
    return torch.stack([torch.full((), value, dtype=dtype, device=device) for value in values])
