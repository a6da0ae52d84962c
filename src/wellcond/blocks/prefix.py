"""How many of the first tokens that a block sees are no patches: class, distillation and register tokens.

A block's family may say it (CaiT's class token joins after the first stage), else a rule of `ELSEWHERE`, else the
model's `num_prefix_tokens`, which counts for all blocks.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from wellcond.blocks.adapted import Adapted

ELSEWHERE: dict[str, Callable[[Any, int], int]] = {  # model, layer → number; by name, as in adapting.REFUSED
    "timm.models.pit.PoolingVisionTransformer": lambda model, layer: model.num_tokens,
    # joins that late; newer versions of timm may have taken it away
    "timm.models.convit.ConVit": lambda model, layer: int(
        model.cls_token is not None and layer >= model.local_up_to_layer
    ),
}


def num_prefixes(model: nn.Module, blocks: list[Adapted]) -> list[int | None]:
    """For each of all blocks of the model; None where neither block nor model says it."""
    own: Any = next((m for m in model.modules() if hasattr(m, "num_prefix_tokens")), None)
    said = next(((m, rule) for m in model.modules() if (rule := _rule(m))), None)

    def number(layer: int) -> int | None:
        if said is not None:
            return said[1](said[0], layer)
        return None if own is None else int(own.num_prefix_tokens)

    return [number(layer) if block.num_prefix is None else block.num_prefix for layer, block in enumerate(blocks)]


def _rule(module: nn.Module) -> Callable[[Any, int], int] | None:
    """By class or base class: FSDP2 puts one of its own over a module's."""
    names = (f"{base.__module__}.{base.__name__}" for base in type(module).__mro__)
    return next((ELSEWHERE[name] for name in names if name in ELSEWHERE), None)
