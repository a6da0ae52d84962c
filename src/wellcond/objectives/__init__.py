"""What is minimised. Floor 6. An objective is a module that owns the model (its child `model`), heads and teachers.

`objective(images, targets)` → (loss, metrics): a 0-d tensor and 0-d tensors by name, all on the device. Whatever it
holds as parameters and buffers is trained, averaged and checkpointed by the one loop.
"""

from torch import nn

from wellcond.config import TrainConfig
from wellcond.objectives.supervised import Supervised

__all__ = ["Supervised", "build_objective"]


def build_objective(config: TrainConfig, model: nn.Module) -> nn.Module:
    """The objective of a config around a model."""
    return {"supervised": Supervised}[config.objective](model)
