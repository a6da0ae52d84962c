"""Swin v1 (norm before the branch) and v2 (norm after it): attention in shifted windows of a (B, H, W, d) map.

The block's own `_attn` shifts, pads, cuts into windows and back, so a branch is a map again; the MLP reads the map as
(B, H·W, d) tokens.
"""

from typing import Any

from timm.models import swin_transformer, swin_transformer_v2
from torch import Tensor

from wellcond.blocks.adapted import Adapted


class Swin(Adapted):
    layout = "nhwc"
    needs_context = True
    no_keys = "it attends in windows, so tokens of two windows are never compared"
    _attn: Any

    def attention_branch(self, y: Tensor) -> Tensor:
        return self._attn(y)

    def mlp_branch(self, y: Tensor) -> Tensor:
        return self.mlp(y)

    def forward(self, x: Tensor) -> Tensor:
        B, H, W, d = x.shape
        self.begin(x)
        attention = self.attention_branch(self.normalise("attention", x))
        x = self.close("sab", x, attention, self.attention_gain, self.drop_path1)
        x = x.reshape(B, -1, d)
        x = self.close("ffn", x, self.mlp_branch(self.normalise("mlp", x)), self.mlp_gain, self.drop_path2)
        return x.reshape(B, H, W, d)


class SwinV2(Swin):
    reads_normalised = False

    def normalise(self, which: str, x: Tensor) -> Tensor:
        return x

    def attention_branch(self, y: Tensor) -> Tensor:
        return self.norm1(self._attn(y))

    def mlp_branch(self, y: Tensor) -> Tensor:
        return self.norm2(self.mlp(y))


FAMILIES = {
    swin_transformer.SwinTransformerBlock: Swin,
    swin_transformer_v2.SwinTransformerV2Block: SwinV2,
}
