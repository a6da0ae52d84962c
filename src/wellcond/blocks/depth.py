"""One number for every block: the same for all, one for each, or a function of depth."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from torch import Tensor

OverDepth = float | Sequence[float] | np.ndarray | Tensor | Callable[[float], float]


def over_depth(name: str, values: Any, num_blocks: int, *, called: str = "values") -> list[Any]:
    """`values` spread over the blocks, as they are; a function is called with depths from 0 (first) to 1 (last).

    >>> over_depth("alpha", lambda depth: 2 - depth, 3), over_depth("alpha", 2.0, 3)
    ([2.0, 1.5, 1.0], [2.0, 2.0, 2.0])
    """
    if callable(values):
        return [values(i / max(num_blocks - 1, 1)) for i in range(num_blocks)]
    if hasattr(values, "__len__") and not isinstance(values, str | Mapping | Set) and getattr(values, "ndim", 1):
        if len(values) != num_blocks:
            raise ValueError(
                f"{name} has {len(values)} {called} for {num_blocks} blocks; give one for each or one number"
            )
        return list(values)
    return [values] * num_blocks


def as_number(value: Any) -> float:
    """The number, or nan for what is none: True, a word, a tensor of several."""
    try:
        return math.nan if isinstance(value, bool | str) else float(value)
    except (OverflowError, RuntimeError, TypeError, ValueError):  # torch has the second for meta and complex tensors
        return math.nan
