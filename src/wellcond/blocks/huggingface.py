"""ViT, DeiT and DINOv2 of Hugging Face's `transformers`, by name: the library is imported only by whoever has a model.

ViT, DeiT  dropout(attention(layernorm_before(x))) + x     DeiT has a distillation token beside the class token
DINOv2     λ₁ · attention(norm1(x)) + x                     LayerScale is a module; with registers or without

Their attention is a function chosen by the config, "eager" or "sdpa"; other ones (flash, flex, …) are refused, because
their kernels show no map and have no second derivative. Eager ViTs take the softmax in float32 whatever the model's
arithmetic is; the branches as functions go through sdpa, which does not. To measure such a model in float64, load it
with attn_implementation="sdpa".
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from wellcond.blocks.adapted import Adapted, PreNorm, keep

IMPLEMENTATIONS = ("eager", "sdpa")
_MEMBERS = ("attention.q_proj", "attention.k_proj", "attention.o_proj", "mlp")


class HuggingFace(PreNorm):
    """What the three have in common; further arguments, first of all a mask, go to the attention."""

    branch_first = True
    attention: Any

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        return super().forward(hidden_states, attention_mask, **kwargs)

    @property
    def attn(self) -> Any:
        """By the name that timm's blocks have."""
        return self.attention

    def softmax_map(self, y: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        attention = self.attention
        heads = (layer(y).unflatten(-1, (-1, attention.head_dim)) for layer in (attention.q_proj, attention.k_proj))
        Q, K = (h.transpose(1, 2) for h in heads)
        logits = Q @ K.mT * attention.scaling
        if attention_mask is not None:
            boolean = not attention_mask.is_floating_point()
            logits = logits.masked_fill(~attention_mask, -float("inf")) if boolean else logits + attention_mask
        return logits.softmax(-1)

    @contextmanager
    def unfused(self) -> Iterator[Any]:
        """The config belongs to the whole model, so the attention is lent a copy of it."""
        own = self.attention.config
        self.attention.config = lent = copy.copy(own)
        lent._attn_implementation = "sdpa"
        try:
            with super().unfused():
                yield
        finally:
            self.attention.config = own


class ViT(HuggingFace):
    num_prefix = 1
    drop_path1 = drop_path2 = staticmethod(keep)
    layernorm_before: Any
    layernorm_after: Any
    dropout: Any

    def normalise(self, which: str, x: Tensor) -> Tensor:
        return self.layernorm_before(x) if which == "attention" else self.layernorm_after(x)

    def attention_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.dropout(self.attention(y, *args, **kwargs)[0])

    def mlp_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.dropout(self.mlp(y))


class DeiT(ViT):
    num_prefix = 2


class DINOv2(HuggingFace):
    num_prefix = 1
    layer_scale1: Any
    layer_scale2: Any
    drop_path: Any

    @property
    def drop_path1(self) -> Any:
        return self.drop_path

    drop_path2 = drop_path1

    def attention_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.layer_scale1(self.attention(y, *args, **kwargs)[0])

    def mlp_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.layer_scale2(self.mlp(y))


class DINOv2WithRegisters(DINOv2):
    @property
    def num_prefix(self) -> int:  # type: ignore[override]
        return 1 + self.attention.config.num_register_tokens


FAMILIES: dict[str, type[Adapted]] = {
    "transformers.models.vit.modeling_vit.ViTLayer": ViT,
    "transformers.models.deit.modeling_deit.DeiTLayer": DeiT,
    "transformers.models.dinov2.modeling_dinov2.Dinov2Layer": DINOv2,
    "transformers.models.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersLayer": (
        DINOv2WithRegisters
    ),
}


def family_of(kind: type) -> type[Adapted] | None:
    return FAMILIES.get(f"{kind.__module__}.{kind.__qualname__}")


def refusal(block: nn.Module) -> str:
    """Why a block of these families cannot be adapted; empty where it can, and for all others."""
    if not any(map(family_of, type(block).__mro__)):
        return ""
    modules = dict(block.named_modules())
    if any(name not in modules for name in _MEMBERS):
        from transformers import __version__ as version

        return f"transformers {version} builds it otherwise; wellcond knows it as 5.22 has it: upgrade transformers"
    implementation = modules["attention"].config._attn_implementation  # type: ignore[union-attr]
    if implementation not in (None, *IMPLEMENTATIONS):
        return (
            f"its attention implementation is {implementation!r}, which shows no map and has no second derivative; "
            'load the model with attn_implementation="sdpa", or call model.set_attn_implementation("sdpa")'
        )
    return ""
