"""CaiT: talking-heads blocks over the patch tokens, then blocks that only write to the class token.

In the second stage the attention reads all tokens (`sab_in` is (B, 1+n, d)) and the skip carries the class token alone,
so the other sites are (B, 1, d) and their condition number is 1 by construction.
"""

from typing import Any

import torch
from timm.models import cait
from torch import Tensor

from wellcond.blocks.adapted import Adapted


class CaiT(Adapted):
    num_prefix = 0  # the class token joins in the second stage
    no_map = "its talking heads mix the maps of all heads before and after the softmax, so no head has a map of its own"
    gamma_1: Tensor
    gamma_2: Tensor
    drop_path: Any

    def attention_branch(self, y: Tensor) -> Tensor:
        return self.gamma_1 * self.attn(y)

    def mlp_branch(self, y: Tensor) -> Tensor:
        return self.gamma_2 * self.mlp(y)

    def forward(self, x: Tensor) -> Tensor:
        self.begin(x)
        x = self.close("sab", x, self.attention_branch(self.norm1(x)), self.attention_gain, self.drop_path)
        return self.close("ffn", x, self.mlp_branch(self.norm2(x)), self.mlp_gain, self.drop_path)


class CaiTClass(Adapted):
    num_prefix = 1
    no_map = "only the class token asks, so its map is 1 × n"
    no_keys = "only the class token asks"
    carries_patches = False
    gamma_1: Tensor
    gamma_2: Tensor
    drop_path: Any

    attention_branch = CaiT.attention_branch
    mlp_branch = CaiT.mlp_branch

    def forward(self, x: Tensor, x_cls: Tensor) -> Tensor:
        u = torch.cat((x_cls, x), dim=1)
        self.begin(u)
        x_cls = self.close("sab", x_cls, self.attention_branch(self.norm1(u)), self.attention_gain, self.drop_path)
        return self.close("ffn", x_cls, self.mlp_branch(self.norm2(x_cls)), self.mlp_gain, self.drop_path)


FAMILIES = {cait.LayerScaleBlock: CaiT, cait.LayerScaleBlockClassAttn: CaiTClass}
