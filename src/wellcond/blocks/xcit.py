"""XCiT: a block has three skips (attention over channels, local patch interaction, MLP), in this order.

The third has the gain `lpi_gain` and the sites `lpi_out` and `lpi_sum`, between `sab_sum` and `ffn_out`.
The class-attention blocks at the end normalise the stream itself before the MLP: their second skip starts after norm2.
"""

from typing import Any

import torch
from timm.models import xcit
from torch import Tensor

from wellcond.blocks.adapted import Adapted


class XCiT(Adapted):
    gains = ("attention_gain", "lpi_gain", "mlp_gain")
    num_prefix = 0  # the class token joins after these blocks
    needs_context = True  # height and width, for the convolutions of the local patch interaction
    no_map = "it attends over channels, so its maps are d_h × d_h"
    no_keys = "it attends over channels, so no token is compared with another"
    gamma1: Tensor
    gamma2: Tensor
    gamma3: Tensor
    norm3: Any
    drop_path3: Any
    local_mp: Any

    def normalise(self, which: str, x: Tensor) -> Tensor:
        return self.norm3(x) if which == "lpi" else super().normalise(which, x)

    def attention_branch(self, y: Tensor, H: int, W: int) -> Tensor:
        return self.gamma1 * self.attn(y)

    def lpi_branch(self, y: Tensor, H: int, W: int) -> Tensor:
        return self.gamma3 * self.local_mp(y, H, W)

    def mlp_branch(self, y: Tensor, H: int, W: int) -> Tensor:
        return self.gamma2 * self.mlp(y)

    def forward(self, x: Tensor, H: int, W: int) -> Tensor:
        self.begin(x, H, W)
        x = self.close("sab", x, self.attention_branch(self.norm1(x), H, W), self.attention_gain, self.drop_path1)
        x = self.close("lpi", x, self.lpi_branch(self.norm3(x), H, W), self.lpi_gain, self.drop_path3)
        return self.close("ffn", x, self.mlp_branch(self.norm2(x), H, W), self.mlp_gain, self.drop_path2)


class XCiTClass(Adapted):
    num_prefix = 1
    no_map = "only the class token asks, so its map is 1 × n"
    no_keys = "only the class token asks"
    carries_patches = False
    gamma1: Any
    gamma2: Any
    tokens_norm: bool

    def normalise(self, which: str, x: Tensor) -> Tensor:
        if which == "attention" or self.tokens_norm:
            return super().normalise(which, x)
        return torch.cat([self.norm2(x[:, 0:1]), x[:, 1:]], dim=1)

    def attention_branch(self, y: Tensor) -> Tensor:
        return self.gamma1 * torch.cat([self.attn(y), y[:, 1:]], dim=1)

    def mlp_branch(self, y: Tensor) -> Tensor:
        return torch.cat([self.gamma2 * self.mlp(y[:, 0:1]), y[:, 1:]], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        self.begin(x)
        attention = self.attention_branch(self.normalise("attention", x))
        x = self.close("sab", x, attention, self.attention_gain, self.drop_path1)
        x = self.normalise("mlp", x)
        return self.close("ffn", x, self.mlp_branch(x), self.mlp_gain, self.drop_path2)


FAMILIES = {xcit.XCABlock: XCiT, xcit.ClassAttentionBlock: XCiTClass}
