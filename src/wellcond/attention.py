"""Linear attention (1/k) Q Kᵀ V in place of softmax attention, and back ("Always Skip Attention", §4 and Table 2).

The paper studies attention without its softmax, divided by a constant k in place of the row sums; k = 16 = √256 for
256 tokens. It keeps no 1/√d_h (`scale=True` brings it back). Queries and keys keep their norms where they have them.

The product is taken in the cheaper order: Q (Kᵀ V) costs 2 n d_h² and (Q Kᵀ) V 2 n² d_h multiplications, so the first
where n > d_h. Dropout of the attention acts on the entries of (1/k) Q Kᵀ, as it does on those of a softmax, and so a
model that trains with it takes the second order at any size.

An attention takes a linear subclass of its own class (`wellcond.subclassing`). Settings are plain attributes and not
part of the state dict: whoever loads a checkpoint sets the attention again.

Shapes: Q, K (…, n, d_h), V (…, n, d_v), x (B, n, d).
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

from timm.layers.attention import Attention
from torch import Tensor, nn

from wellcond.blocks.depth import as_number
from wellcond.subclassing import InFront, subclass

Model = TypeVar("Model", bound=nn.Module)

_PAPER_K = 16.0  # for 256 tokens
_BIAS = "it adds a position bias to the logits, and without a softmax a bias is no weight of a token"
_ROTARY = "it rotates its queries and keys by their positions, which the linear form here does not"
_CHANNELS = "it attends over channels, not over tokens"
_CLASS = "only the class token asks, so there is no attention over tokens to make linear"
REFUSED = {  # by name: not every version of timm has them all
    "timm.models.beit.Attention": _BIAS,
    "timm.models.eva.EvaAttention": _ROTARY,
    "timm.layers.attention.AttentionRope": _ROTARY,
    "timm.models.swin_transformer.WindowAttention": f"{_BIAS}; its shifted windows are masked through the softmax, too",
    "timm.models.swin_transformer_v2.WindowAttention": "it is a softmax of cosines, with its own temperature",
    "timm.models.maxxvit.AttentionCl": _BIAS,
    "timm.models.maxxvit.Attention2d": _BIAS,
    "timm.models.vision_transformer_relpos.RelPosAttention": _BIAS,
    "timm.models.cait.TalkingHeadAttn": "its talking heads mix the maps of all heads before and after the softmax",
    "timm.models.cait.ClassAttn": _CLASS,
    "timm.models.xcit.XCA": _CHANNELS,
    "timm.models.xcit.ClassAttentionBlock": _CLASS,
    "timm.models.pvt_v2.Attention": "its keys are pooled, so its map is not n × n",
    "timm.layers.diff_attention.DiffAttention": "it is the difference of two softmaxes",
}


def linear_attention(
    Q: Tensor, K: Tensor, V: Tensor, k: float, drop: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """(1/k) Q Kᵀ V, (…, n, d_v), in the cheaper order; `drop` acts on the map (1/k) Q Kᵀ, which is then written down.

    >>> import torch
    >>> linear_attention(torch.ones(3, 2), torch.ones(3, 2), torch.eye(3), k=4.0)[0]
    tensor([0.5000, 0.5000, 0.5000])
    """
    Q = Q * (1 / k)
    if drop is not None:
        return drop(Q @ K.mT) @ V
    return Q @ (K.mT @ V) if Q.shape[-2] > Q.shape[-1] else (Q @ K.mT) @ V


def set_attention(model: Model, kind: str, k: float | None = None, *, scale: bool = False) -> Model:
    """Make every self-attention of a timm model "linear", (1/k) Q Kᵀ V, or "softmax" again; returns the same object.

    `k` is 16 unless given; `scale` keeps the softmax form's 1/√d_h beside it. A second call replaces the settings.
    For models whose blocks have timm's `Attention` (ViT, DeiT, DeiT-3, DINOv2, SigLIP, …); others are refused with the
    reason, and the model is untouched. Attention that pools tokens for the head stays as it is.
    Linear attention has no map for `probe`, and takes no mask.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; pass a module, e.g. timm.create_model({str(model)!r})")
    if kind not in ("linear", "softmax"):
        raise ValueError(f'kind={kind!r} is unknown; use "linear" or "softmax"')
    if kind == "softmax":
        if k is not None or scale:
            raise ValueError(f"softmax attention has neither k nor scale, and k={k!r}, scale={scale!r} were given")
        for module in _linear(model):
            _swap_out(module)
        return model
    number = _number(k)
    for module in _found(model):
        _swap_in(module, number, bool(scale))
    return model


class LinearAttention(InFront, Attention):
    """Mixed into the class of an attention; `linear_k` None is the original."""

    _prefix = "Linear"
    linear_k: float | None
    linear_scale: bool

    @property
    def no_map(self) -> str:
        """Why there is no softmax map, for `blocks.attention_map`."""
        return "" if self.linear_k is None else "its attention is linear, (1/k) Q Kᵀ V, without a softmax"

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if self.linear_k is None:
            causal = {"is_causal": True} if is_causal else {}  # older versions of timm have no such argument
            return super().forward(x, attn_mask=attn_mask, **causal)
        if attn_mask is not None or is_causal:
            raise ValueError(
                "linear attention takes no mask, which acts through the softmax; set_attention(…, 'softmax')"
            )
        B, n, _ = x.shape
        gated = getattr(self, "gate", None)  # not in every version of timm, like norm
        gate = gated(x).sigmoid() if gated is not None else None
        Q, K, V = self.qkv(x).reshape(B, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        Q, K = self.q_norm(Q), self.k_norm(K)
        k = self.linear_k * (self.head_dim**0.5 if self.linear_scale else 1.0)
        dropping = self.training and self.attn_drop.p > 0
        y = linear_attention(Q, K, V, k, self.attn_drop if dropping else None)
        y = y.transpose(1, 2).flatten(2)
        y = self.norm(y) if hasattr(self, "norm") else y
        y = y * gate if gate is not None else y
        return self.proj_drop(self.proj(y))

    def extra_repr(self) -> str:
        scale = "/√d_h" if self.linear_scale else ""
        return "softmax" if self.linear_k is None else f"linear, k={self.linear_k:g}{scale}"


def _swap_in(module: Any, k: float, scale: bool) -> None:
    if not isinstance(module, LinearAttention):
        module.__class__ = subclass(LinearAttention, type(module))
    module.linear_k, module.linear_scale = k, scale


def _swap_out(module: LinearAttention) -> None:
    """Undo `_swap_in`. Where another tool has built on the class since (FSDP), it stays, and computes the original."""
    if type(module) is not subclass(LinearAttention, module.original):
        module.linear_k = None
        return
    module.__class__ = module.original
    del module.linear_k, module.linear_scale


def _linear(model: nn.Module) -> list[LinearAttention]:
    return [module for module in model.modules() if isinstance(module, LinearAttention)]


def _found(model: nn.Module) -> list[nn.Module]:
    """The self-attentions of the model; ValueError where one cannot be made linear, or there is none."""
    found: list[nn.Module] = []
    strangers: list[tuple[bool, str]] = []  # whether it only looks like one, and the message
    for path, module in model.named_modules():
        kind = getattr(type(module), "original", type(module))  # an adapted block's own class
        name = f"{kind.__module__}.{kind.__name__}"
        if isinstance(module, Attention):
            if not isinstance(module, LinearAttention) and type(module).forward is not Attention.forward:
                raise ValueError(f"attention {path!r} ({name}) has a forward of its own, which wellcond does not know")
            if "forward" in module.__dict__:
                raise ValueError(f"attention {path!r} has a forward set on the instance itself; delete it first")
            found.append(module)
        elif reason := REFUSED.get(name) or _unknown(path, kind):
            strangers.append((name not in REFUSED, f"attention {path!r} ({name}) cannot be made linear: {reason}"))
    if strangers:
        raise ValueError(min(strangers)[1])
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no self-attention of timm's kind; use a vision transformer of timm, e.g. "
            "vit_tiny_patch16_224"
        )
    return found


def _unknown(path: str, kind: type) -> str:
    """Why not, for what looks like an attention of another kind; pooling for the head is none of a block's."""
    if issubclass(kind, nn.Identity):  # where a convolution could have one (MobileViT)
        return ""
    looks = path.rsplit(".", 1)[-1] in ("attn", "attention", "self_attn")
    looks |= any(word in kind.__name__ for word in ("Attention", "Attn", "ParallelScaling"))
    return "wellcond knows only timm's Attention" if looks and "AttentionPool" not in kind.__name__ else ""


def _number(k: Any) -> float:
    number = _PAPER_K if k is None else as_number(k)
    if not math.isfinite(number) or number == 0:
        raise ValueError(f"k={k!r} must be a finite number other than 0, e.g. 16, the square root of 256 tokens")
    return number
