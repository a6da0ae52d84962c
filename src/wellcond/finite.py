"""What JSON can say: it knows neither NaN nor infinity. Floor 0."""

import math
from collections.abc import Mapping
from typing import Any


def finite(value: Any) -> Any:
    """The same with null for NaN and infinity, and lists for tuples and for what numpy holds.

    >>> finite({"kappa": (1.5, float("inf")), "log": [float("nan")]})
    {'kappa': [1.5, None], 'log': [None]}
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
