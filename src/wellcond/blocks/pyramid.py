"""PVT v2 (attention to pooled keys), MaxViT's attention blocks (windows and grids), ConvMixer (no attention).

PVT v2     tokens (B, n, d) and the size of their map; keys are pooled by a strided convolution
MaxViT     one block for windows, one for the dilated grid, on maps (B, H, W, d) or (B, d, H, W); the MBConv blocks
           in between keep their own skips
ConvMixer  maps (B, d, H, W); one skip, around the depthwise convolution that mixes tokens: `attention_gain`.
           The pointwise convolution after it has none, so there are no `ffn` sites
"""

from typing import Any

from timm.models import convmixer, maxxvit, pvt_v2
from torch import Tensor, nn

from wellcond.blocks.adapted import Adapted, PreNorm, keep


class PVTv2(PreNorm):
    needs_context = True
    no_keys = "its keys are pooled, so a token has none of its own"

    def attention_branch(self, y: Tensor, feat_size: Any) -> Tensor:
        return self.attn(y, feat_size)

    def mlp_branch(self, y: Tensor, feat_size: Any) -> Tensor:
        return self.mlp(y, feat_size)


class MaxViT(PreNorm):
    layout = "nhwc"
    needs_context = True
    no_keys = "it attends in windows, so tokens of two windows are never compared"
    ls1: Any
    ls2: Any
    _partition_attn: Any

    def attention_branch(self, y: Tensor) -> Tensor:
        return self.ls1(self._partition_attn(y))

    def mlp_branch(self, y: Tensor) -> Tensor:
        return self.ls2(self.mlp(y))


class MaxViT2d(MaxViT):
    layout = "nchw"


class ConvMixer(Adapted):
    gains = ("attention_gain",)
    layout = "nchw"
    needs_context = True
    branch_first = True
    attends = False
    reads_normalised = False
    no_map = "it mixes tokens by a depthwise convolution"
    no_keys = no_map
    fn: nn.Module

    def normalise(self, which: str, x: Tensor) -> Tensor:
        return x

    def attention_branch(self, y: Tensor) -> Tensor:
        return self.fn(y)

    def forward(self, x: Tensor) -> Tensor:
        self.begin(x)
        return self.close("sab", x, self.attention_branch(x), self.attention_gain, keep)


FAMILIES = {
    pvt_v2.Block: PVTv2,
    maxxvit.PartitionAttentionCl: MaxViT,
    maxxvit.PartitionAttention2d: MaxViT2d,
    convmixer.Residual: ConvMixer,
}
