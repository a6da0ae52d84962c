"""Which parameter decays, and how fast its layer learns.

No weight decay for vectors and scalars (norms, biases, LayerScale) nor for what the model itself exempts
(`no_weight_decay()`: position and class tokens), as timm does. Layer-wise decay: block l of L learns with lr·γ^(L−l)
(Clark et al., ELECTRA, arXiv 2003.10555, §A.1; BEiT and MAE fine-tune so); the layers are timm's `group_matcher`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from timm.models import group_parameters
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters, by name, with one weight decay and one factor of the learning rate."""

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    weight_decay: float
    lr_scale: float


def parameter_groups(objective: nn.Module, *, weight_decay: float, layer_decay: float = 1.0) -> list[Group]:
    """Groups of all trainable parameters; the timm model is the child `model`.

    Parameters outside of it (an objective's own heads) learn at the full rate.
    """
    model: Any = objective.get_submodule("model")
    exempt = {f"model.{name}" for name in getattr(model, "no_weight_decay", set)()}
    scales = {f"model.{name}": scale for name, scale in _layer_scales(model, layer_decay).items()}
    found: dict[tuple[float, float], list[str]] = {}
    for name, parameter in objective.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim > 1 and name not in exempt
            found.setdefault((weight_decay if decays else 0.0, scales.get(name, 1.0)), []).append(name)
    every = dict(objective.named_parameters())
    return [
        Group(names=tuple(names), parameters=tuple(every[n] for n in names), weight_decay=decay, lr_scale=scale)
        for (decay, scale), names in found.items()
    ]


def _layer_scales(model: Any, layer_decay: float) -> dict[str, float]:
    if layer_decay == 1.0:
        return {}
    matcher: Callable[..., Any] | None = getattr(model, "group_matcher", None)
    if matcher is None:
        raise ValueError(
            f"optim.layer_decay is {layer_decay}, but {type(model).__name__} does not say what its layers are "
            "(group_matcher); use 1"
        )
    layer_of: dict[str, Any] = group_parameters(model, matcher(coarse=False), reverse=True)
    last = max(layer_of.values())
    return {name: layer_decay ** (last - layer) for name, layer in layer_of.items()}
