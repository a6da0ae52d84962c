"""How many of the first tokens that a block sees are no patches: class, distillation and register tokens.

A block's family may say it (CaiT's class token joins after the first stage), else the model's `num_prefix_tokens`; the
models of `ELSEWHERE` keep it under a name of their own.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from wellcond.blocks.adapted import Adapted

ELSEWHERE: dict[str, Callable[[Any, int], int]] = {  # model, layer → number; by name, as in adapting.REFUSED
    "timm.models.pit.PoolingVisionTransformer": lambda model, layer: model.num_tokens,
    "timm.models.convit.ConVit": lambda model, layer: int(layer >= model.local_up_to_layer),  # joins that late
}


def num_prefixes(model: nn.Module, blocks: list[Adapted]) -> list[int | None]:
    """For each of all blocks of the model; None where neither block nor model says it."""
    own: Any = next((m for m in model.modules() if hasattr(m, "num_prefix_tokens")), None)
    said: Any = next((m for m in model.modules() if _name(m) in ELSEWHERE), None)

    def number(layer: int) -> int | None:
        if own is not None:
            return int(own.num_prefix_tokens)
        return None if said is None else ELSEWHERE[_name(said)](said, layer)

    return [number(layer) if block.num_prefix is None else block.num_prefix for layer, block in enumerate(blocks)]


def _name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__name__}"
