"""Raw pictures → what an objective takes: augmented images, and targets beside them. Floor 6.

    supervised  images, labels (or soft ones)
    mae         images, an order of their patches
    dino        two large crops of each, and small ones

Pure functions of the raw pictures and their keys. For validation the keys are those of the picture's number alone: the
same in every epoch, run and process.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..config import TrainConfig
from . import randomness
from .augment import Augment, build, evaluation
from .masking import patch_order
from .multicrop import MultiCrop

Fixed = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # raw (B, 3, H, W), numbers (B,) → images, targets
_FIXED = 20_211_111  # the seed of validation: no run's own


def build_views(config: TrainConfig) -> Augment:
    """views(raw uint8 (B, 3, H, W), labels (B,), keys (B,), step_key ()) → (images, targets) for training."""
    data = config.data
    if config.objective == "dino":
        return multicrop(config)
    augment = build(data.augment, data.image_size, config.model.num_classes, data.mean, data.std)
    return augment if config.objective == "supervised" else Masked(augment, num_patches(config))


def build_fixed_views(config: TrainConfig) -> Fixed:
    """views(raw, numbers) → (images, targets) for validating an objective without labels."""

    def cropped(raw: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        return multicrop(config)(raw, numbers, fixed_keys(numbers), numbers)

    def masked(raw: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        data = config.data
        images = evaluation(raw, data.image_size, data.mean, data.std)
        return images, patch_order(fixed_keys(numbers), num_patches(config))

    return cropped if config.objective == "dino" else masked


@dataclass(frozen=True)
class Masked:
    """Augmented images and, in place of their labels, an order of their patches."""

    augment: Augment
    num_patches: int

    def __call__(self, raw: Tensor, labels: Tensor, keys: Tensor, step_key: Tensor) -> tuple[Tensor, Tensor]:
        images, _ = self.augment(raw, labels, keys, step_key)
        return images, patch_order(keys, self.num_patches)


def multicrop(config: TrainConfig) -> MultiCrop:
    data = config.data
    return MultiCrop(config=config.dino, image_size=data.image_size, mean=data.mean, std=data.std)


def fixed_keys(numbers: Tensor) -> Tensor:
    """(B,) keys of validation pictures."""
    return randomness.keys(seed=_FIXED, epoch=0, indices=numbers)


def num_patches(config: TrainConfig) -> int:
    model = config.model
    assert model.patch_size is not None  # TrainConfig has checked it
    return (model.image_size // model.patch_size) ** 2
