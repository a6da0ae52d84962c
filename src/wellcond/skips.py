"""Cut the skips of a model, restore them, or give each block a gain: x ← gain · x + branch.

Always Skip Attention (arXiv 2505.01996) cuts the skip of the attention or of the MLP to show what it carries; Cutting
the Skip (2510.00345) trains without both; decayed identity shortcuts (2404.10947) let the gain fall with depth.
Gains are plain attributes of the blocks, not part of the state dict: checkpoints move both ways, and whoever loads one
cuts again. `load_state_dict` warns once where a model without skips is given the state dict of one with them, or one
that does not say: torch keeps it in a state dict's metadata, which safetensors and a plain dict have not.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor, nn

from wellcond.blocks import adapt, adapted_blocks, unadapt
from wellcond.blocks.adapted import Adapted
from wellcond.blocks.depth import OverDepth, as_number, over_depth

Model = TypeVar("Model", bound=nn.Module)


def cut_skips(
    model: Model, attention: bool = True, mlp: bool = True, *, lpi: bool = True, images: Tensor | None = None
) -> Model:
    """Remove the skips around attention, MLP and (XCiT) local patch interaction; returns the same object.

    Norms, biases and LayerScale stay; a branch without its skip is not dropped by drop-path, which would leave nothing.
    What is False stays as it is. `images`, a small batch, is needed for blocks that are not timm's (`blocks.adapt`).
    """
    given = {"attention": attention, "mlp": mlp, "lpi": lpi}
    for name, cut in given.items():
        if not isinstance(cut, bool):
            raise ValueError(f"{name} is {cut!r}; give True to cut these skips in every block, or False")
    asked = [name for name, cut in given.items() if cut]
    blocks = adapt(model, images)
    if (attention or mlp) and not any(_has(block, name) for block in blocks for name in asked):
        raise ValueError(f"{type(model).__name__} has no skip of {' or '.join(asked)} to cut")
    for block in blocks:
        for name in asked:
            if _has(block, name):
                setattr(block, f"{name}_gain", 0.0)
    _choose_teller(blocks)
    return model


def restore_skips(model: Model) -> Model:
    """Undo `cut_skips` and `set_gains`: every block is what it was; returns the same object."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; pass a module, e.g. from timm.create_model(…)")
    for block in adapted_blocks(model):
        for gain in block.gains:
            setattr(block, gain, 1.0)
    _choose_teller(adapted_blocks(model))
    if not any(block._sinks for block in adapted_blocks(model)):  # a recording still needs the sites
        unadapt(model)
    return model


def set_gains(
    model: Model,
    attention: OverDepth | None = None,
    mlp: OverDepth | None = None,
    *,
    lpi: OverDepth | None = None,
    images: Tensor | None = None,
) -> Model:
    """Set the gain of the skips, over depth; returns the same object. None leaves a skip as it is.

    A number is for all blocks; a sequence has one number for each block that has this skip; a function is called with
    the depth of each from 0 (first) to 1 (last), e.g. `lambda depth: 1 - 0.4 * depth`. 1 is the original, 0 is no skip.
    A compiled model compiles anew for gains it has not met, up to `torch._dynamo.config.recompile_limit` sets of them.
    """
    blocks = adapt(model, images)
    plans = []
    for name, gain in (("attention", attention), ("mlp", mlp), ("lpi", lpi)):
        if gain is None:
            continue
        having = [block for block in blocks if _has(block, name)]
        if not having:
            raise ValueError(f"{type(model).__name__} has no skip of {name} to set a gain for")
        values = [_number(name, value) for value in over_depth(name, gain, len(having), called="gains")]
        plans.append((having, f"{name}_gain", values))
    for having, attribute, values in plans:  # after all of them have been checked
        for block, value in zip(having, values, strict=True):
            setattr(block, attribute, value)
    _choose_teller(blocks)
    return model


def share_gain(model: Model, gain: Tensor, attention: bool = True, mlp: bool = True) -> Model:
    """Let one 0-d tensor be the gain of these skips in all blocks; returns the same object.

    Whoever writes the tensor changes the gain of the next forward, also of a compiled one and of a CUDA graph, which
    read it anew. A branch is then dropped by drop-path whatever the gain is.
    """
    if gain.ndim:
        raise ValueError(f"gain has the shape {tuple(gain.shape)}; give one number as a 0-d tensor")
    for block in adapt(model):
        for name, asked in (("attention", attention), ("mlp", mlp)):
            if asked and _has(block, name):
                setattr(block, f"{name}_gain", gain)
    return model


def load_own(model: nn.Module, tensors: Mapping[str, Tensor], strict: bool = True) -> None:
    """`load_state_dict` of tensors that are known to be of a model with the same skips: nothing is warned of."""
    own: Any = OrderedDict(tensors)
    own._metadata = getattr(model.state_dict(), "_metadata", {})
    model.load_state_dict(own, strict=strict)


def _number(name: str, value: Any) -> float:
    number = as_number(value)
    if not math.isfinite(number):
        raise ValueError(f"a gain must be a finite number, and one of {name} is {value!r}; 1 keeps the skip, 0 cuts it")
    return number


def _choose_teller(blocks: list[Adapted]) -> None:
    """The first block without a skip warns of weights that were trained with it; one is enough."""
    without = [block for block in blocks if any(getattr(block, gain) == 0.0 for gain in block.gains)]
    for block in blocks:
        block._tells = block is (without or [None])[0]


def _has(block: Adapted, name: str) -> bool:
    return f"{name}_gain" in block.gains
