"""timm's ViT `Block` (ViT, DeiT, DeiT-3, DINOv2, SigLIP, …) and its post-norm sibling; BEiT; EVA.

ViT    x + ls1(attn(norm1(x)))          LayerScale is a module, or the identity
BEiT   x + γ₁ · attn(norm1(x), bias)    LayerScale is a vector, or None
EVA    the same with rotary positions; its post-norm block is x + norm1(attn(x))
"""

from typing import Any

from timm.models import beit, eva, vision_transformer
from torch import Tensor

from wellcond.blocks.adapted import PostNorm, PreNorm


class ViT(PreNorm):
    ls1: Any
    ls2: Any

    def attention_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.ls1(self.attn(y, *args, **kwargs))

    def mlp_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.ls2(self.mlp(y))


class GammaPreNorm(PreNorm):
    """LayerScale as two vectors, each of which may be missing (EVA can scale the attention alone)."""

    gamma_1: Tensor | None
    gamma_2: Tensor | None
    needs_context = True  # shared relative bias, rotary positions

    def attention_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        y = self.attn(y, *args, **kwargs)
        return y if self.gamma_1 is None else self.gamma_1 * y

    def mlp_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        y = self.mlp(y)
        return y if self.gamma_2 is None else self.gamma_2 * y


class RotaryPostNorm(PostNorm):
    needs_context = True


FAMILIES = {
    vision_transformer.Block: ViT,
    vision_transformer.ResPostBlock: PostNorm,
    beit.Block: GammaPreNorm,
    eva.EvaBlock: GammaPreNorm,
    eva.EvaBlockPostNorm: RotaryPostNorm,
}
