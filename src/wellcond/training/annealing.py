"""Skips whose gain falls to zero while the model trains: it begins with them and ends without.

Between "with skips" and "Cutting the Skip" (arXiv 2510.00345); decayed identity shortcuts (2404.10947) let gains fall
with depth, here they fall with time. The gain is a function of the step, so nothing of it is saved but for `load`.
"""

import torch
from torch import nn

from wellcond.config import ModelConfig
from wellcond.objectives import Objective
from wellcond.optim.schedules import skip_gain
from wellcond.skips import set_gains, share_gain


class Annealing:
    """One tensor that all skips read, a teacher's too; `turn(step)` writes the gain after `step` steps into it."""

    def __init__(self, objective: Objective, config: ModelConfig, num_steps: int, device: torch.device) -> None:
        self.share, self.num_steps = config.anneal_skips, num_steps
        dtype = torch.float32 if device.type == "cuda" else torch.float64
        self.gain = torch.ones((), dtype=dtype, device=device)
        for model in objective.backbones():
            share_gain(model, self.gain, attention=config.cut_attention_skips, mlp=config.cut_mlp_skips)

    def at(self, step: int) -> float:
        return skip_gain(step, num_steps=self.num_steps, share=self.share)

    def turn(self, step: int) -> None:
        self.gain.fill_(self.at(step))


def set_gain(model: nn.Module, config: ModelConfig, gain: float) -> None:
    """The skips that the config cuts, as they were when the gain was this."""
    set_gains(
        model,
        attention=gain if config.cut_attention_skips else None,
        mlp=gain if config.cut_mlp_skips else None,
    )
