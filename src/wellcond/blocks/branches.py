"""The two (XCiT: three) branches of a block as functions of their normalised tokens, and its attention map.

What else a branch depends on (rotary positions, masks, a shared bias, the size of the map) is that of the last
recorded pass: run `with record(model): model(images)` once before.

Shapes: X (B, n, d) in and out, also for blocks that work on maps.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.blocks.adapted import Adapted, from_tokens, to_tokens
from wellcond.blocks.adapting import as_adapted


def normalise(block: nn.Module, which: str, X: Tensor) -> Tensor:
    """Input of a sub-block (`sab_in`, `sab_sum`; for "mlp" of XCiT `lpi_sum`) → what its branch reads.

    That is norm1(X) or norm2(X); where the norm comes after the branch (Swin v2), or there is none, X itself.
    """
    block = _with(block, which)
    shape = () if block.layout == "tokens" else _context(block)[0]
    return to_tokens(block.normalise(which, _own_layout(block, X, shape)), block.layout)


def sub_block(block: nn.Module, which: str) -> Callable[[Tensor], Tensor]:
    """The map from the normalised input to the branch as it enters the sum, but for drop-path; for Jacobians.

    `which`: "attention", "mlp" or, for XCiT, "lpi". LayerScale belongs to the branch, and so does a norm that comes
    after it (Swin v2): through that norm the Jacobian is singular by construction. Dropout is as `block.training` says.
    Attention takes PyTorch's unfused path here: the fused kernels have no forward-mode derivative, nor one for a bias.
    """
    block = _with(block, which)
    shape, args, kwargs = _context(block)
    branch = getattr(block, f"{which}_branch")

    def function(X: Tensor) -> Tensor:
        with block.unfused():
            return to_tokens(branch(_own_layout(block, X, shape), *args, **kwargs), block.layout)

    return function


def attention_map(block: nn.Module, X: Tensor, *, check: bool = True) -> Tensor:
    """Softmax attention (B, H, n, n) of normalised tokens X (B, n, d), rows sum to 1, before any dropout.

    Where attention works in windows: (B · windows, H, w, w) for w tokens in a window, in timm's order of windows.
    With masks, biases and rotary positions; by the block's own code, on its path without fused attention, where it is
    timm's.
    `check=False` leaves out the check that rows sum to 1, which waits for a GPU: `row_sum_gap` is its number.
    """
    block = as_adapted(block)
    kind = _kind(block)
    if block.no_map:
        raise ValueError(f"{kind} has no softmax attention over its tokens: {block.no_map}")
    attention = block.attn
    if reason := getattr(attention, "no_map", ""):  # attention.py: linear
        raise ValueError(f"{kind} has no softmax attention over its tokens: {reason}")
    A = block.softmax_map(X, *_context(block)[1], **_context(block)[2])
    A = _read_map(block, X) if A is None else A
    if A.ndim != 4 or A.shape[1] != getattr(attention, "num_heads", A.shape[1]):
        raise ValueError(f"{kind}: its {type(attention).__name__} does not compute one map for each head")
    if A.shape[-1] != A.shape[-2]:
        raise ValueError(f"{kind}: its keys are pooled, so its map is {A.shape[-2]} × {A.shape[-1]}, not n × n")
    if check and float(row_sum_gap(A).max()) > SOFTMAX_GAP:
        raise ValueError(no_softmax(block))
    return A


def _read_map(block: Adapted, X: Tensor) -> Tensor:
    """What reaches the dropout of timm's attentions on their path without the fused kernel."""
    attention: Any = block.attn
    maps: list[Tensor] = []
    fused = getattr(attention, "fused_attn", None)
    drop = getattr(attention, "attn_drop", None)
    if not isinstance(drop, nn.Module):
        name = type(attention).__name__
        raise ValueError(f"{_kind(block)}: its {name} does not show its attention map (no attn_drop)")
    handle = drop.register_forward_pre_hook(lambda _module, inputs: maps.append(inputs[0]))
    try:
        attention.fused_attn = False
        sub_block(block, "attention")(X)
    finally:
        handle.remove()
        if fused is None:
            del attention.fused_attn
        else:
            attention.fused_attn = fused
    return maps[0] if maps else torch.empty(0)


SOFTMAX_GAP = 1e-2  # bfloat16 rounds a row of ones that far


def row_sum_gap(A: Tensor) -> Tensor:
    """How far the rows of the maps A (B, …) are from summing to 1, at most, (B,); what is NaN or inf counts as 0."""
    gap = (A.detach().float().sum(-1) - 1).abs().flatten(1)
    return torch.where(gap.isfinite(), gap, 0.0).amax(-1)  # an overflow is the input's fault, not the family's


def no_softmax(block: nn.Module) -> str:
    """What to say of a block whose maps have a larger gap than `SOFTMAX_GAP`."""
    block = as_adapted(block)
    name = type(block.attn).__name__
    return f"{_kind(block)}: the rows of its map do not sum to 1, so its {name} is no softmax attention"


def _kind(block: Adapted) -> str:
    return f"{block.original.__name__} ({block.original.__module__})"


def _with(block: nn.Module, which: str) -> Adapted:
    block = as_adapted(block)
    parts = [gain.removesuffix("_gain") for gain in block.gains]
    if which not in parts:
        raise ValueError(f"{block.original.__name__} has no sub-block {which!r}; it has {', '.join(parts)}")
    return block


def _context(block: Adapted) -> tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]:
    if block._context is not None:
        return block._context
    if block.needs_context:
        raise ValueError(
            f"a branch of {block.original.__name__} depends on more than its tokens (positions, masks, the size of the "
            "map); run `with record(model): model(images)` once on the adapted model before"
        )
    return (), (), {}


def _own_layout(block: Adapted, X: Tensor, shape: tuple[int, ...]) -> Tensor:
    if X.ndim != 3:
        raise ValueError(f"tokens must be (B, n, d), got {tuple(X.shape)}")
    return from_tokens(X, block.layout, shape)
