"""Softmax attention of few tokens on the GPU, by one kernel each way: small pictures have 17, 65 or 81 tokens.

torch's kernels are made for thousands of tokens: cuDNN's way back takes three of them, and a fourth puts the gradients
of queries, keys and values together. Here each way is one kernel (attention_kernels.py), which reads and writes what
the projections do. The numbers are those of softmax attention in bfloat16 or float16, the same bits at every call.

timm's `Attention` takes a subclass of its own class (`wellcond.subclassing`) that goes this way where it can: half
precision on CUDA, at most `MOST` tokens, no mask, no dropout. That is quicker on Hopper (results/bench-train.json, part
vit-tiny-32), the only kind of GPU where it is timed; elsewhere training goes this way where `short_attention` is on.
"""

# Triton adds launch options (num_warps) to a kernel's parameters, which its signature does not show.
# pyright: reportCallIssue=false, reportArgumentType=false

import functools
from importlib.util import find_spec
from typing import Any

import torch
from timm.layers.attention import Attention
from torch import Tensor, nn

from wellcond.subclassing import InFront, subclass

MOST = 96  # tokens
WIDTHS = (16, 32, 64)  # of a head
OLDEST = (8, 0)  # A100
TIMED = {(9, 0)}  # H100, H200
LAUNCH = {"num_warps": 4, "num_stages": 1}
_LOG2_E = 1.4426950408889634


def shorten_(model: nn.Module, device: torch.device, *, asked: bool) -> None:
    """Let every plain attention of timm's go the short way where it can: on Hopper, if `asked` on all GPUs that can."""
    if device.type != "cuda" or find_spec("triton") is None:
        return
    capability = torch.cuda.get_device_capability(device)
    if not (capability >= OLDEST if asked else capability in TIMED):
        return
    for module in model.modules():
        if type(module) is Attention:
            module.__class__ = subclass(ShortAttention, Attention)


class ShortAttention(InFront, Attention):
    """Mixed into timm's attention."""

    _prefix = "Short"

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        masked = attn_mask is not None or is_causal
        if masked or not self._is_plain() or not _is_short(x, self.head_dim):
            causal = {"is_causal": True} if is_causal else {}  # older versions of timm have no such argument
            return super().forward(x, attn_mask=attn_mask, **causal)
        return self.proj_drop(self.proj(short_attention(self.qkv(x), self.num_heads)))

    def _is_plain(self) -> bool:
        parts = [getattr(self, name, None) for name in ("q_norm", "k_norm", "norm", "gate")]
        dropping = self.training and self.attn_drop.p > 0
        return not dropping and all(part is None or type(part) is nn.Identity for part in parts)


def _is_short(x: Tensor, width: int) -> bool:
    on_gpu = x.device.type == "cuda"
    dtype = torch.get_autocast_dtype("cuda") if on_gpu and torch.is_autocast_enabled("cuda") else x.dtype
    half = dtype in (torch.bfloat16, torch.float16)
    return on_gpu and half and width in WIDTHS and 0 < x.shape[1] <= MOST and x.shape[0] > 0


def short_attention(qkv: Tensor, num_heads: int) -> Tensor:
    """(B, n, 3·H·D) as timm's projection gives it → (B, n, H·D)."""
    return _forward(qkv.contiguous(), num_heads)


@torch.library.custom_op("wellcond::short_attention", mutates_args=(), device_types="cuda")
def _forward(qkv: Tensor, num_heads: int) -> Tensor:
    from wellcond.training import attention_kernels

    out = qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)
    grid, sizes, scale = _layout(qkv, num_heads)
    with torch.cuda.device_of(qkv):  # Triton launches on the current device
        attention_kernels.forward[grid](qkv, out, qkv.shape[1], scale * _LOG2_E, *sizes, **LAUNCH)
    return out


@torch.library.custom_op("wellcond::short_attention_back", mutates_args=(), device_types="cuda")
def _backward(gradient: Tensor, qkv: Tensor, num_heads: int) -> Tensor:
    from wellcond.training import attention_kernels

    out = torch.empty_like(qkv)
    grid, sizes, scale = _layout(qkv, num_heads)
    with torch.cuda.device_of(qkv):
        attention_kernels.backward[grid](
            qkv, gradient.contiguous(), out, qkv.shape[1], scale * _LOG2_E, scale, *sizes, **LAUNCH
        )
    return out


def _layout(qkv: Tensor, num_heads: int) -> tuple[tuple[int], tuple[int, int, int, int], float]:
    B, n, width = qkv.shape
    head_dim = width // (3 * num_heads)
    return (B * num_heads,), (num_heads, head_dim, *tiles(n)), head_dim**-0.5


@functools.cache
def tiles(n: int) -> tuple[int, int]:
    """Rows of the two tiles that hold n tokens: powers of two, at least 16; the second is 0 where one will do.

    >>> tiles(65), tiles(64), tiles(50), tiles(17), tiles(5)
    ((64, 16), (64, 0), (64, 0), (32, 0), (16, 0))
    """
    whole = max(1 << (n - 1).bit_length(), 16)
    main = whole // 2
    tail = max(1 << (n - main - 1).bit_length(), 16)
    return (main, tail) if main + tail < whole else (whole, 0)


@_forward.register_fake
def _(qkv: Tensor, num_heads: int) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)


@_backward.register_fake
def _(gradient: Tensor, qkv: Tensor, num_heads: int) -> Tensor:
    return torch.empty_like(qkv)


def _keep(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    qkv, ctx.num_heads = inputs
    ctx.save_for_backward(qkv)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (qkv,) = ctx.saved_tensors
    return _backward(gradient, qkv, ctx.num_heads), None


_forward.register_autograd(_differentiate, setup_context=_keep)
