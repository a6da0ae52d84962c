"""Token matrices (B, n, d) of real pictures for the spectral benchmark.

Some shapes are raw patches (n patches × p·p·3 pixels). The others are what a ViT's first block sees: patches
through a random embedding, a class token in front, positions added, all of the scale of timm's
initialization. The embedded 257 × 192 tokens come from 48 pixels each, so their smallest singular values are
those of the positions.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .images import load_pictures, normalise
from .oracle import tokens_of

INITIAL_STD = 0.02  # timm's, for positions and the class token


@dataclass(frozen=True, kw_only=True)
class Source:
    """Pictures of ``size`` pixels in patches of ``patch_size``; embedded into ``width`` if that is given."""

    size: int
    patch_size: int
    width: int | None = None


SOURCES = {
    (197, 768): Source(size=224, patch_size=16, width=768),
    (196, 768): Source(size=224, patch_size=16),
    (785, 768): Source(size=448, patch_size=16, width=768),
    (197, 192): Source(size=224, patch_size=16, width=192),
    (257, 192): Source(size=64, patch_size=4, width=192),
    (65, 192): Source(size=64, patch_size=8, width=192),
    (64, 192): Source(size=64, patch_size=8),
    (256, 48): Source(size=64, patch_size=4),
    (17, 48): Source(size=16, patch_size=4, width=48),
    (16, 48): Source(size=16, patch_size=4),
    (4, 12): Source(size=4, patch_size=2),
}


def token_matrices(
    shape: tuple[int, int], *, batch: int, data: Path | None, device: str, seed: int
) -> tuple[Tensor, str]:
    """Float32 matrices of ``shape`` on ``device``, and the source of their pictures."""
    source = SOURCES[shape]
    pictures = load_pictures(data, count=batch, size=source.size, seed=seed)
    X = tokens_of(normalise(pictures.pixels, "cpu"), source.patch_size).float()
    if source.width:
        X = _embed(X, source.width, torch.Generator().manual_seed(seed))
    assert X.shape[1:] == shape, (X.shape, shape)
    return X.to(device), pictures.source


def _embed(X: Tensor, width: int, generator: torch.Generator) -> Tensor:
    B, n, d = X.shape
    W = torch.randn(d, width, generator=generator) / d**0.5
    first = INITIAL_STD * torch.randn(1, 1, width, generator=generator)
    positions = INITIAL_STD * torch.randn(1, n + 1, width, generator=generator)
    return torch.cat([first.expand(B, 1, width), X @ W], dim=1) + positions
