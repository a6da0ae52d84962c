"""RandAugment with timm's semantics, for a batch in which every picture has operations of its own. Floor 6.

Cubuk et al. (2019), as timm's `rand-m9-mstd0.5-inc1` has it: `n` times (2), one of fifteen operations, drawn with
replacement, is applied with probability `p` (½) at a magnitude N(m, mstd) cut to [0, mmax] (10). `inc1` takes the
operations whose strength grows with the magnitude. Signs are fair. What an argument does is Pillow's, bit for bit;
affine operations are bilinear (timm: `interpolation="bilinear"`).

An operation is a look-up table, a blend with a degenerate picture, or an affine sampling (`layers`). What a table
depends on, the histogram or the mean grey, comes from one pass before it.

Legend: B pictures uint8 (B, 3, H, W), `operation` (B,) index into OPERATIONS or −1 for none, `argument` (B,) float64.
"""

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from ..randomness import integers, normal, uniform
from . import affine, enhancing, layers, tables

OPERATIONS = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color",
    "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateX", "TranslateY",
)  # fmt: skip
_NUMBER = {name: number for number, name in enumerate(OPERATIONS)}
STREAMS = 4  # of each layer
_LEVELS = 10.0  # timm's denominator: magnitude 10 is full strength


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What a string such as rand-m9-mstd0.5-inc1 says."""

    magnitude: float = 10.0
    spread: float = 0.0
    highest: float = _LEVELS
    num_layers: int = 2
    probability: float = 0.5
    increasing: bool = False


def parse(text: str) -> Policy:
    """timm's words: m magnitude, mstd its spread, mmax its bound, n layers, p probability, inc increasing.

    >>> parse("rand-m9-mstd0.5-inc1")
    Policy(magnitude=9.0, spread=0.5, highest=10.0, num_layers=2, probability=0.5, increasing=True)
    """
    known = {
        "m": ("magnitude", float),
        "mstd": ("spread", float),
        "mmax": ("highest", float),
        "n": ("num_layers", int),
        "p": ("probability", float),
        "inc": ("increasing", lambda word: bool(int(word))),
    }
    head, *words = text.split("-")
    values = {}
    for word in words:
        match = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", word)
        if head != "rand" or match is None or match[1] not in known:
            break
        name, read = known[match[1]]
        try:
            values[name] = read(match[2])
        except ValueError:
            break
    if head != "rand" or len(values) < len(words) or not 0 <= values.get("probability", 0.5) <= 1:
        raise ValueError(
            f"randaugment is {text!r}; write it as timm does, for example rand-m9-mstd0.5-inc1, "
            f"with {', '.join(known)} and their numbers"
        )
    return Policy(**values)


def draw(keys: Tensor, stream: int, policy: Policy) -> list[tuple[Tensor, Tensor]]:
    """(operation, argument) of each layer; STREAMS streams per layer from `stream` on."""
    drawn = []
    for layer in range(policy.num_layers):
        first = stream + STREAMS * layer
        operation = integers(keys, first, len(OPERATIONS))
        applied = uniform(keys, first + 1) < policy.probability
        noise = normal(keys, first + 2).double() if 0 < policy.spread <= 100 else torch.zeros_like(keys).double()
        magnitude = policy.magnitude + policy.spread * noise if policy.spread <= 100 else _flat(keys, first + 2, policy)
        negative = uniform(keys, first + 3) >= 0.5
        argument = arguments(operation, magnitude.clamp(0, policy.highest), negative, increasing=policy.increasing)
        drawn.append((torch.where(applied, operation, -1), argument))
    return drawn


def _flat(keys: Tensor, stream: int, policy: Policy) -> Tensor:
    """timm reads a spread over 100 as 'uniform from 0 to the magnitude'."""
    return uniform(keys, stream).double() * policy.magnitude


def arguments(operation: Tensor, magnitude: Tensor, negative: Tensor, *, increasing: bool) -> Tensor:
    """What each operation is called with: degrees, bits, a threshold, an amount, a factor, a share of the side."""
    level = magnitude / _LEVELS
    sign = torch.where(negative, -1.0, 1.0).double()
    bits, threshold = (level * 4).trunc(), (level * 256).trunc().clamp(max=256)
    factor = (1 + sign * (level * 0.9)).clamp(min=0.1) if increasing else level * 1.8 + 0.1
    found = torch.zeros_like(level)
    for names, value in (
        (("Rotate",), sign * (level * 30)),
        (("Posterize",), 4 - bits if increasing else bits),
        (("Solarize",), 256 - threshold if increasing else threshold),
        (("SolarizeAdd",), (level * 110).trunc().clamp(max=128)),
        (("Color", "Contrast", "Brightness", "Sharpness"), factor),
        (("ShearX", "ShearY"), sign * (level * 0.3)),
        (("TranslateX", "TranslateY"), sign * (level * 0.45)),
    ):
        found = torch.where(_is(operation, *names), value, found)
    return found


def apply(pixels: Tensor, operation: Tensor, argument: Tensor, fill: Tensor) -> Tensor:
    """One layer: uint8 (B, 3, H, W) → same shape. `fill` (3,) uint8 is what lies outside a moved picture."""
    is_contrast = _is(operation, "Contrast")
    counts, grey = layers.statistics(pixels, _is(operation, "AutoContrast", "Equalize"), is_contrast)
    side = (pixels.shape[2], pixels.shape[3])
    level = torch.where(is_contrast, enhancing.mean_level(grey, side[0] * side[1]), 0)  # brightness blends with black
    return layers.apply_kinds(
        pixels,
        kinds(operation),
        _tables(counts, operation, argument).to(torch.uint8),
        affine.matrices(
            argument,
            side,
            rotated=_is(operation, "Rotate"),
            sheared_x=_is(operation, "ShearX"),
            sheared_y=_is(operation, "ShearY"),
            moved_x=_is(operation, "TranslateX"),
            moved_y=_is(operation, "TranslateY"),
        ),
        argument.float(),
        level,
        fill,
    )


def kinds(operation: Tensor) -> Tensor:
    """(B,) int64: what `layers` has to do."""
    found = torch.full_like(operation, layers.TABLE)
    for kind, names in (
        (layers.LEVEL, ("Contrast", "Brightness")),
        (layers.GREY, ("Color",)),
        (layers.SMOOTH, ("Sharpness",)),
        (layers.AFFINE, ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")),
    ):
        found = torch.where(_is(operation, *names), kind, found)
    return torch.where(operation < 0, layers.NOTHING, found)


def _tables(counts: Tensor, operation: Tensor, argument: Tensor) -> Tensor:
    """(B, 3, 256): the identity for what is no table."""
    whole = argument.long()
    found = tables.entries(counts).expand(len(counts), 3, 256)
    for name, table in (
        ("AutoContrast", tables.auto_contrast(counts)),
        ("Equalize", tables.equalise(counts)),
        ("Invert", tables.invert(whole)),
        ("Posterize", tables.posterise(whole)),
        ("Solarize", tables.solarise(whole)),
        ("SolarizeAdd", tables.solarise_add(whole)),
    ):
        found = torch.where(_is(operation, name)[:, None, None], table, found)
    return found


def _is(operation: Tensor, *names: str) -> Tensor:
    """(B,) bool: is it one of these?"""
    found = operation == _NUMBER[names[0]]
    for name in names[1:]:
        found = found | (operation == _NUMBER[name])
    return found
