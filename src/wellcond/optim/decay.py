"""Decoupled weight decay that changes with the step, beside any optimizer: p ← p − lr·λ·p, before its update.

Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (arXiv 1711.05101), Algorithm 2; the fused kernels take λ
as a constant, which a captured step could not change. The optimizer's own decay is then 0.
"""

from typing import Any

import torch
from torch import Tensor, nn

from wellcond.config import OptimConfig
from wellcond.optim.groups import parameter_groups


class ScheduledDecay:
    """Over the parameters that decay, each with the factor of its layer."""

    def __init__(self, objective: nn.Module, config: OptimConfig) -> None:
        groups = parameter_groups(objective, weight_decay=1.0, layer_decay=config.layer_decay)
        self.groups = [(list(g.parameters), g.lr_scale) for g in groups if g.weight_decay]

    @torch.no_grad()
    def step_(self, rate: Tensor) -> None:
        """`rate` is lr·λ, 0-d; 0 changes nothing."""
        foreach: Any = torch
        for parameters, scale in self.groups:
            live = [p.detach() for p in parameters]
            lost = foreach._foreach_mul(live, (rate * scale).to(live[0].dtype))
            foreach._foreach_sub_(live, lost)
