"""The keys of an attention: what its tokens are compared by. For object discovery (TokenCut).

Shapes: B images, n tokens, d width, H heads.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import linear

from wellcond.blocks.adapted import Adapted
from wellcond.blocks.adapting import as_adapted


def check_keys(block: nn.Module) -> None:
    """ValueError, with the reason, if `attention_keys` would refuse the block."""
    _projection(as_adapted(block))


def attention_keys(block: nn.Module, Y: Tensor) -> Tensor:
    """Keys (B, n, H · d_h) of normalised tokens Y (B, n, d), heads side by side, with the norm of keys if there is one.

    Rotary positions are left out: they turn a key by its place, not by its content.
    """
    block = as_adapted(block)
    weight, bias = _projection(block)
    K = linear(Y.to(weight.dtype), weight, bias)
    norm, heads = getattr(block.attn, "k_norm", None), getattr(block.attn, "num_heads", 1)
    if norm is None or isinstance(norm, nn.Identity):
        return K
    return norm(K.unflatten(-1, (heads, -1)).transpose(1, 2)).transpose(1, 2).flatten(2)


def _projection(block: Adapted) -> tuple[Tensor, Tensor | None]:
    """The weight (H · d_h, d) and bias of the keys: the middle third of a joint projection, or its own."""
    kind = f"{block.original.__name__} ({block.original.__module__})"
    if block.no_keys:
        raise ValueError(f"{kind} has no attention keys: {block.no_keys}; use a plain vision transformer")
    attention: Any = block.attn
    own, joint = getattr(attention, "k_proj", None), getattr(attention, "qkv", None)
    if isinstance(own, nn.Linear):
        return own.weight, own.bias
    if not isinstance(joint, nn.Linear) or joint.out_features % 3:
        name = type(attention).__name__
        raise ValueError(f"{kind} shows no attention keys: its {name} has neither qkv nor k_proj; use a timm ViT")
    third = joint.out_features // 3
    bias = joint.bias[third : 2 * third] if joint.bias is not None else getattr(attention, "k_bias", None)
    return joint.weight[third : 2 * third], bias
