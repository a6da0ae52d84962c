"""Activations that keep tokens apart: `set_activation` puts one in place of the GELUs of a model's MLPs.

Each layer of a random network maps the cosine of two tokens by its C-map, C(c) = E[φ(u) φ(v)]/E[φ(u)²] for standard
normal u, v with correlation c (Poole et al. 2016). Without skips the C-maps of all layers act one after the other, and
where they drive cosines to 1 all tokens become one. GELU has the mean 1/(2√π), so C(0) > 0: unrelated tokens leave with
a positive cosine.

centred-gelu  (GELU(x) − 1/(2√π))/s, s its deviation: C(0) = 0, and outputs have mean 0 and variance 1
tat           leaky ReLU √(2/(1+a²)) (max(x, 0) + a min(x, 0)), the slope a chosen so that a chain of as many layers as
              the model has MLPs takes a cosine of 0 to η (Zhang, Botev & Martens 2022, "Deep Learning without
              Shortcuts": tailored activation transformations). Their η is 0.9, for 50 layers and more; 12 plain ReLUs
              stay under that, so it is 0.5 here

The price of the first: C'(1) = E[φ'²]/E[φ²] is 1.32, where GELU has 1.07 and the second exactly 1. So gradients, and
the distance of two nearly equal tokens, grow by 15 % in every layer, and it wants a smaller learning rate.

Both are exact for standard normal inputs, which `init_skipless_` gives the MLPs of models with LayerNorm at the start.
"""

import math
from typing import Any, TypeVar

from torch import Tensor, nn

from wellcond.blocks.adapting import find_blocks
from wellcond.blocks.depth import as_number

Model = TypeVar("Model", bound=nn.Module)
KINDS = ("gelu", "centred-gelu", "tat")
ETA = 0.5
_MEAN = 1 / (2 * math.sqrt(math.pi))  # of GELU(u): E[u Φ(u)] = E[φ(u)]
_SQUARE = 1 / 3 + 1 / (2 * math.pi * math.sqrt(3))  # E[u² Φ(u)²]
_DEVIATION = math.sqrt(_SQUARE - _MEAN**2)


class _InPlaceOf(nn.Module):
    """Without parameters, so the state dict is that of the original, which is kept beside and given back."""

    original: nn.Module

    def __init__(self, original: nn.Module) -> None:
        super().__init__()
        self.__dict__["original"] = original  # not a submodule: names of modules stay


class CentredGELU(_InPlaceOf):
    """(GELU(x) − E GELU)/deviation, over standard normal x."""

    def forward(self, x: Tensor) -> Tensor:
        return (self.original(x) - _MEAN) / _DEVIATION


class TailoredReLU(_InPlaceOf):
    """Leaky ReLU of that slope, scaled so that E[φ(u)²] = 1."""

    def __init__(self, original: nn.Module, slope: float) -> None:
        super().__init__(original)
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.leaky_relu(x, self.slope) * math.sqrt(2 / (1 + self.slope**2))

    def extra_repr(self) -> str:
        return f"slope={self.slope:.4f}"


def set_activation(model: Model, kind: str, *, eta: float = ETA) -> Model:
    """Put "centred-gelu" or "tat" in place of the GELU of every MLP, or "gelu" back; returns the same object.

    The state dict stays as it is; whoever loads a checkpoint sets the activation again. A second call replaces the
    first. `eta`, for "tat" alone, is the cosine that unrelated tokens may reach. ValueError, and the model untouched,
    where an MLP has another activation, or one that is a gate.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r} is unknown; use {', '.join(map(repr, KINDS))}")
    if not 0 < as_number(eta) < 1:
        raise ValueError(f"eta is {eta!r}; choose a cosine in (0, 1), for example {ETA}")
    mlps: list[Any] = []
    for name, block in find_blocks(model).items():
        mlp: Any = getattr(block, "mlp", None)
        if reason := _reason(mlp):
            raise ValueError(f"block {name!r}: {reason}; leave the activation of this model as it is")
        mlps.append(mlp)
    slope = tailored_slope(len(mlps), eta) if kind == "tat" else 0.0
    for mlp in mlps:
        own = _own(mlp)
        act = own if kind == "gelu" else CentredGELU(own) if kind == "centred-gelu" else TailoredReLU(own, slope)
        setattr(mlp, _word(mlp), act)
    return model


def is_replaceable(model: nn.Module) -> bool:
    """Does `set_activation` take this model?"""
    return not any(_reason(getattr(block, "mlp", None)) for block in find_blocks(model).values())


def _word(mlp: Any) -> str:
    """What the MLP calls its activation: act in timm, activation_fn in transformers; "" if neither."""
    return next((word for word in ("act", "activation_fn") if hasattr(mlp, word)), "")


def _own(mlp: Any) -> nn.Module:
    """Its original activation."""
    act = getattr(mlp, _word(mlp))
    return act.original if isinstance(act, _InPlaceOf) else act


def _reason(mlp: Any) -> str:
    """Why the activation cannot be changed."""
    if type(mlp).__name__.endswith(("GluMlp", "SwiGLU", "GatedMlp", "SwiGLUFFN")):
        return f"its MLP is a {type(mlp).__name__}, whose activation is a gate and multiplies what it lets through"
    if not _word(mlp):
        return "it has no MLP with an activation of its own"
    act = type(_own(mlp)).__name__
    if act not in ("GELU", "GELUTanh", "GELUActivation"):
        return f"its activation is {act}, and only GELU is known well enough to be replaced"
    return ""


def tailored_slope(num_layers: int, eta: float = ETA) -> float:
    """The slope a in [0, 1) with which `num_layers` leaky ReLUs in a row take a cosine of 0 to `eta`.

    C(c) = c + (1−a)²/(π(1+a²)) · (√(1−c²) − c arccos c). ReLU itself (a = 0) where so few layers do not reach η.

    >>> round(tailored_slope(12), 3)
    0.488
    """
    low, high = 0.0, 1.0  # the cosine falls as a grows, to 0 at a = 1
    if _chain(0.0, num_layers) <= eta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _chain(middle, num_layers) > eta else (low, middle)
    return high


def _chain(slope: float, num_layers: int) -> float:
    strength = (1 - slope) ** 2 / (math.pi * (1 + slope**2))
    c = 0.0
    for _ in range(num_layers):
        c = min(1.0, c + strength * (math.sqrt(1 - c * c) - c * math.acos(c)))
    return c
