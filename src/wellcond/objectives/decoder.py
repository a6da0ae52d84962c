"""MAE's decoder: narrow blocks of a ViT over all patches, always with their skips, on fixed sine positions.

Long skips (ours, for encoders without skips of their own): decoder block j is also given what an encoder block gave,
normalised and projected, the deepest to the first decoder block and so on up, as in a U-Net. Where a patch was hidden
nothing is added.

Legend: B images, n patches, k visible, P prefix tokens, D width of the encoder, W of the decoder.
"""

from functools import partial
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from wellcond.config import MAEConfig
from wellcond.objectives.permuting import permute
from wellcond.objectives.vit import ViT

_norm: Any = partial(nn.LayerNorm, eps=1e-6)


class Decoder(nn.Module):
    """encoded (B, P + k, D), kept encoder outputs of the same shape → pixels (B, n, p·p·C).

    `order` (B, n) has the visible patches first, `restore` is its inverse.
    """

    positions: Tensor

    def __init__(self, encoder: ViT, config: MAEConfig) -> None:
        super().__init__()
        width, grid = config.decoder_width, encoder.patch_embed.grid_size
        height, breadth = encoder.patch_embed.patch_size
        self.num_prefix, depth = encoder.num_prefix_tokens, len(encoder.blocks)
        self.embed = nn.Linear(encoder.embed_dim, width)
        self.mask_token = nn.Parameter(torch.empty(width))
        self.blocks = nn.ModuleList(
            Block(width, config.decoder_heads, mlp_ratio=4.0, qkv_bias=True, norm_layer=_norm)
            for _ in range(config.decoder_depth)
        )
        self.norm = _norm(width)
        self.predict = nn.Linear(width, height * breadth * encoder.in_chans)
        self.sources = long_skip_sources(depth, config.decoder_depth) if config.long_skips else ()
        self.skips = nn.ModuleList(
            nn.Sequential(_norm(encoder.embed_dim), nn.Linear(encoder.embed_dim, width)) for _ in self.sources
        )
        positions = torch.cat([torch.zeros(self.num_prefix, width), sine_positions(grid, width)])
        self.register_buffer("positions", positions, persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """As He et al.: Glorot's uniform for matrices, 0 for biases, N(0, .02²) for the mask token."""
        nn.init.normal_(self.mask_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, encoded: Tensor, kept: dict[int, Tensor], order: Tensor, restore: Tensor) -> Tensor:
        x = self.embed(encoded)
        mask = self.mask_token.to(x.dtype).expand(len(x), restore.shape[1] - x.shape[1] + self.num_prefix, -1)
        x = self._place(x, mask, order, restore) + self.positions
        for j, block in enumerate(self.blocks):
            if self.sources:
                added = self.skips[j](kept[self.sources[j]])
                x = x + self._place(added, torch.zeros_like(mask), order, restore)
            x = block(x)
        return self.predict(self.norm(x[:, self.num_prefix :]))

    def _place(self, x: Tensor, rest: Tensor, order: Tensor, restore: Tensor) -> Tensor:
        """Prefix tokens in front, then visible (B, k, W) and `rest` (B, n − k, W) where their patches are."""
        prefix, patches = x[:, : self.num_prefix], torch.cat([x[:, self.num_prefix :], rest], 1)
        return torch.cat([prefix, permute(patches, restore, order)], 1)


def sine_positions(grid: tuple[int, int], width: int) -> Tensor:
    """(n, W) float32: half the channels for the row, half for the column; each half sines, then cosines, of the place
    times 10000^(−i/m), i = 0 … m − 1, m = W/4 (Vaswani et al., 2017, §3.5, in two dimensions)."""
    frequency = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    rows, columns = (torch.arange(side, dtype=torch.float64)[:, None] * frequency for side in grid)
    halves = [torch.cat([angle.sin(), angle.cos()], 1) for angle in (rows, columns)]
    n = grid[0] * grid[1]
    row = halves[0][:, None].expand(-1, grid[1], -1).reshape(n, -1)
    column = halves[1][None].expand(grid[0], -1, -1).reshape(n, -1)
    return torch.cat([row, column], 1).float()


def long_skip_sources(depth: int, decoder_depth: int) -> tuple[int, ...]:
    """Which encoder block each decoder block is given, from deep to shallow, evenly spaced.

    >>> long_skip_sources(12, 4)
    (9, 7, 4, 2)
    """
    steps = [(decoder_depth - j) * depth / (decoder_depth + 1) for j in range(decoder_depth)]
    return tuple(min(depth - 1, max(0, int(step))) for step in steps)
