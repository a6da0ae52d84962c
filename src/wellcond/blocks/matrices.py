"""The matrices of a block as views of its parameters: W_Q, W_K, W_V of each head, W_O, and those of the MLP.

`nn.Linear` computes x Wᵀ, so what the papers write as X W_V is `weight.T`: all views here are (out, in), as the layers
hold them, and one who writes into a view writes into the model. Fused layers differ in the order of their rows:

    timm's Attention, BEiT, Swin, EVA   qkv: (3, H, d_h) rows             EVA, rotary   q_proj, k_proj, v_proj: (H, d_h)
    MaxViT                              qkv: (H, 3, d_h), or (3, H, d_h)  PVT v2        q: (H, d_h), kv: (2, H, d_h)
    transformers                        q_proj, k_proj, v_proj: (H, d_h), and o_proj

H heads, d_h width of a head, d width of the tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wellcond.blocks.adapting import find_blocks

_CLASS = "only the class token asks, so there is no attention of every token to itself"
_POOLED = "its keys and values are pooled, so no token has a key of its own and attention cannot be near the identity"
REFUSED = {  # attentions by name: not every version of timm has them all
    "timm.models.cait.TalkingHeadAttn": "its talking heads mix the logits of all heads, so no head has a W_Q W_Kᵀ",
    "timm.models.cait.ClassAttn": _CLASS,
    "timm.models.xcit.ClassAttn": _CLASS,
    "timm.models.xcit.XCA": "it attends over channels, so W_Q W_Kᵀ does not weigh tokens",
    "timm.layers.diff_attention.DiffAttention": "it is the difference of two softmaxes, each with half of W_Q and W_K",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrices:
    """Of one block."""

    name: str
    query: Tensor  # (H, d_h, d), and so key and value
    key: Tensor
    value: Tensor
    output: Tensor  # (d, H·d_h)
    mlp: tuple[Tensor, ...]  # (out, in): fc1, fc2; of gated MLPs the gate as well
    attention_biases: tuple[Tensor, ...]
    mlp_biases: tuple[Tensor, ...]
    scales: tuple[Tensor, ...]  # LayerScale
    norm_weights: tuple[Tensor, ...]
    norm_biases: tuple[Tensor, ...]
    normalised: bool  # are queries and keys normalised before their product?

    @property
    def width(self) -> int:
        return self.query.shape[-1]


def matrices_of(model: nn.Module, *, to_write: bool = False) -> list[Matrices]:
    """For every block, in order of depth; ValueError naming the first block that has none of this form, and why.

    `to_write` refuses as well where what is written into a matrix would be lost.
    """
    found = []
    for name, block in find_blocks(model).items():
        _check_held(name, block, to_write)
        try:
            found.append(_matrices(name, block))
        except _Unfit as why:
            kind = getattr(type(block), "original", type(block))
            remedy = "use a ViT, or another model with plain attention"
            raise ValueError(f"block {name!r} ({kind.__module__}.{kind.__name__}): {why}; {remedy}") from None
    return found


def check_finite(model: nn.Module) -> None:
    """ValueError naming the first weight, in a block or not, that is not a number: nothing can be told from it."""
    for name, p in model.named_parameters():
        if not p.isfinite().all():
            raise ValueError(f"{name!r} has weights that are NaN or inf; load earlier ones")


def _check_held(name: str, block: nn.Module, to_write: bool) -> None:
    """ValueError unless its weights are whole, and numbers; to be written, also parameters of their own."""
    for p in block.parameters():
        if p.is_meta:
            raise ValueError(
                f"block {name!r} is on the device meta, where weights are shapes without numbers; put the model on "
                "another one first, model.to_empty(device='cpu')"
            )
        if isinstance(p, DTensor):
            raise ValueError(f"block {name!r} is sharded (FSDP2), so no rank has its matrices; do this before sharding")
    for part, module in block.named_modules() if to_write else ():
        W = getattr(module, "weight", None)
        if isinstance(W, Tensor) and not isinstance(W, nn.Parameter) and "weight" not in module._buffers:
            raise ValueError(
                f"block {name!r}: the weight of {part} is computed from other parameters (a parametrization), so what "
                "is written there is lost; remove it first (torch.nn.utils.parametrize.remove_parametrizations)"
            )


class _Unfit(Exception):
    """Why a block has no such matrices."""


def _matrices(name: str, block: Any) -> Matrices:
    attention = getattr(block, "attn", None) or getattr(block, "attention", None)  # the second of transformers
    if attention is None:
        raise _Unfit("it has no attention, so no W_Q, W_K, W_V, W_O")
    kind = _name(attention)
    if reason := REFUSED.get(kind):
        raise _Unfit(f"its attention ({kind}): {reason}")
    if kind not in ATTENTIONS:
        raise _Unfit(f"its attention ({kind}) is none whose W_Q, W_K, W_V wellcond can tell apart")
    q, k, v = ATTENTIONS[kind](attention)
    if q.shape != k.shape or q.shape != v.shape:
        raise _Unfit(f"its {len(q)} query heads share {len(k)} heads of keys and values")
    layers, parts = _mlp(block)
    words = ("qkv", "q", "kv", "q_proj", "k_proj", "v_proj", "proj", "o_proj")
    own = [layer for word in words if (layer := getattr(attention, word, None)) is not None]
    norms: list[Any] = [module for module in block.modules() if _is_norm(module)]
    separate = [getattr(attention, word, None) for word in ("q_bias", "v_bias")]
    return Matrices(
        name=name,
        query=q,
        key=k,
        value=v,
        output=weight(attention.proj if hasattr(attention, "proj") else attention.o_proj),
        mlp=parts,
        attention_biases=_there(*(layer.bias for layer in own), *separate),
        mlp_biases=_there(*(layer.bias for layer in layers)),
        scales=_scales(block),
        norm_weights=_there(*(m.weight for m in norms)),
        norm_biases=_there(*(getattr(m, "bias", None) for m in norms)),
        normalised=hasattr(attention, "logit_scale") or "Norm" in type(getattr(attention, "q_norm", None)).__name__,
    )


def weight(layer: Any) -> Tensor:
    """Of a linear layer or of a 1 × 1 convolution, (out, in), a view."""
    if not isinstance(layer, nn.Linear | nn.Conv2d):
        raise _Unfit(f"its layer {type(layer).__name__} is no nn.Linear; adapters and quantization come after this")
    w = layer.weight.detach()
    return w[:, :, 0, 0] if w.ndim == 4 else w


def _fused(attention: Any) -> tuple[Tensor, Tensor, Tensor]:
    if getattr(attention, "gate", None) is not None:
        raise _Unfit("its attention is multiplied by a gate of the tokens, so it is not A X W_V W_O")
    if attention.qkv is None:
        H = attention.num_heads
        q, k, v = (weight(layer) for layer in (attention.q_proj, attention.k_proj, attention.v_proj))
        d_h = len(q) // H
        return q.unflatten(0, (H, d_h)), k.unflatten(0, (-1, d_h)), v.unflatten(0, (-1, d_h))
    q, k, v = weight(attention.qkv).unflatten(0, (3, attention.num_heads, -1))
    return q, k, v


def _separate(attention: Any) -> tuple[Tensor, Tensor, Tensor]:
    H = attention.num_attention_heads
    q, k, v = (weight(layer).unflatten(0, (H, -1)) for layer in (attention.q_proj, attention.k_proj, attention.v_proj))
    return q, k, v


def _maxvit(attention: Any) -> tuple[Tensor, Tensor, Tensor]:
    if not attention.head_first:
        return _fused(attention)
    q, k, v = weight(attention.qkv).unflatten(0, (attention.num_heads, 3, -1)).unbind(1)
    return q, k, v


def _pvt(attention: Any) -> tuple[Tensor, Tensor, Tensor]:
    if attention.sr is not None or attention.pool is not None:
        raise _Unfit(_POOLED)
    k, v = weight(attention.kv).unflatten(0, (2, attention.num_heads, -1))
    return weight(attention.q).unflatten(0, (attention.num_heads, -1)), k, v


_HF = "transformers.models"
ATTENTIONS: dict[str, Callable[[Any], tuple[Tensor, Tensor, Tensor]]] = {
    "timm.layers.attention.Attention": _fused,
    "timm.layers.attention.AttentionRope": _fused,
    "timm.models.beit.Attention": _fused,
    "timm.models.eva.EvaAttention": _fused,
    "timm.models.swin_transformer.WindowAttention": _fused,
    "timm.models.swin_transformer_v2.WindowAttention": _fused,
    "timm.models.maxxvit.AttentionCl": _maxvit,
    "timm.models.maxxvit.Attention2d": _maxvit,
    "timm.models.pvt_v2.Attention": _pvt,
    f"{_HF}.vit.modeling_vit.ViTAttention": _separate,
    f"{_HF}.deit.modeling_deit.DeiTAttention": _separate,
    f"{_HF}.dinov2.modeling_dinov2.Dinov2Attention": _separate,
    f"{_HF}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersAttention": _separate,
}
MLPS = {  # which layers; of GluMlp the first holds the value and the gate
    "timm.layers.mlp.Mlp": ("fc1", "fc2"),
    "timm.layers.mlp.ConvMlp": ("fc1", "fc2"),
    "timm.layers.mlp.GluMlp": ("fc1", "fc2"),
    "timm.layers.mlp.SwiGLU": ("fc1_g", "fc1_x", "fc2"),
    "timm.models.pvt_v2.MlpWithDepthwiseConv": ("fc1", "fc2"),
    f"{_HF}.vit.modeling_vit.ViTMLP": ("fc1", "fc2"),
    f"{_HF}.deit.modeling_deit.DeiTMLP": ("fc1", "fc2"),
    f"{_HF}.dinov2.modeling_dinov2.Dinov2MLP": ("fc1", "fc2"),
    f"{_HF}.dinov2.modeling_dinov2.Dinov2SwiGLUFFN": ("gate_proj", "up_proj", "down_proj"),
    f"{_HF}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersMLP": ("fc1", "fc2"),
    f"{_HF}.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersSwiGLUFFN": (
        "gate_proj",
        "up_proj",
        "down_proj",
    ),
}


def _mlp(block: Any) -> tuple[list[Any], tuple[Tensor, ...]]:
    """(layers, their matrices)."""
    kind = _name(block.mlp)
    if kind not in MLPS:
        raise _Unfit(f"its MLP ({kind}) is none whose matrices wellcond knows")
    layers = [getattr(block.mlp, word) for word in MLPS[kind]]
    parts = [weight(layer) for layer in layers]
    if kind.endswith("GluMlp"):
        parts = [*parts[0].chunk(2), parts[1]]
    return layers, tuple(parts)


def _scales(block: Any) -> tuple[Tensor, ...]:
    found = [getattr(getattr(block, word, None), "gamma", None) for word in ("ls1", "ls2")]
    found += [getattr(getattr(block, word, None), "lambda1", None) for word in ("layer_scale1", "layer_scale2")]
    found += [getattr(block, word, None) for word in ("gamma_1", "gamma_2", "gamma1", "gamma2")]
    return _there(*(scale for scale in found if isinstance(scale, Tensor)))


def _there(*found: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(t.detach() for t in found if t is not None)


def _is_norm(module: Any) -> bool:
    return "Norm" in type(module).__name__ and getattr(getattr(module, "weight", None), "ndim", 0) == 1


def _name(module: Any) -> str:
    kind = getattr(type(module), "original", type(module))  # wellcond.attention's linear form keeps its layout
    return f"{kind.__module__}.{kind.__name__}"
