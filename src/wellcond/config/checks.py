"""One-line refusals: the field, the value, the remedy."""

import math
from collections.abc import Collection
from typing import Any


def check_at_least(name: str, value: float, low: float, *, example: Any = None) -> None:
    if not (math.isfinite(value) and value >= low):
        raise ValueError(f"{name} is {value}; choose {low} or more{_example(example)}")


def check_positive(name: str, value: float, *, example: Any = None) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}; choose a positive number{_example(example)}")


def check_number(name: str, value: float, *, positive: bool = False) -> None:
    if not math.isfinite(value) or (positive and value <= 0):
        raise ValueError(f"{name} is {value}; choose a {'positive' if positive else 'finite'} number")


def check_within(
    name: str, value: float, low: float, high: float, *, brackets: str = "[]", example: Any = None
) -> None:
    above = value > low if brackets[0] == "(" else value >= low
    below = value < high if brackets[1] == ")" else value <= high
    if not (above and below):
        raise ValueError(
            f"{name} is {value}; choose it in {brackets[0]}{low:g}, {high:g}{brackets[1]}{_example(example)}"
        )


def check_mask_values(name: str, values: Collection[int]) -> None:
    if wrong := [value for value in values if not 0 <= value <= 255]:
        raise ValueError(f"{name} holds {wrong[0]}; mask values are 0 … 255")


def check_one_of(name: str, value: Any, options: Collection[Any]) -> None:
    if value not in options:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, options))}")


def _example(example: Any) -> str:
    return "" if example is None else f", for example {example}"
