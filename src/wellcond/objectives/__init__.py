"""What is minimised. Floor 6. An objective is a module that owns the model (its child `model`), heads and teachers.

`objective(images, targets)` → (loss, metrics): a 0-d tensor and 0-d tensors by name, all on the device. Whatever it
holds as parameters and buffers is trained, averaged and checkpointed by the one loop. What the targets are, the
objective says: labels, the order in which patches are hidden, small crops.

    objective   what the loop asks beyond the loss      supervised  labels
    mae         masked autoencoding; decoder: its painter
    dino        self-distillation; dino_head: its head
    vit         timm's plain ViT in pieces; permuting: patches in another order
"""

import torch
from torch import nn

from wellcond.config import TrainConfig
from wellcond.objectives.dino import DINO
from wellcond.objectives.mae import MAE
from wellcond.objectives.objective import Objective
from wellcond.objectives.supervised import Supervised

__all__ = ["DINO", "MAE", "Objective", "Supervised", "build_objective"]

_HEADS = 7_368_787  # added to the seed: decoders and heads do not repeat the numbers of the model's weights


def build_objective(config: TrainConfig, model: nn.Module) -> Objective:
    """The objective of a config around a model, in the model's precision; its own weights depend on the seed only."""
    if config.objective == "supervised":
        return Supervised(model)
    dtype = next(model.parameters()).dtype
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed + _HEADS)
        if config.objective == "mae":
            return MAE(model, config.mae).to(dtype)
        return DINO(model, config.dino, accumulate=config.accumulate, batch_size=config.batch_size).to(dtype)
