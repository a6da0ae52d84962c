"""What is trained on: a source of images, and what is done to them."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .checks import check_at_least, check_one_of, check_within

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Augmentation of a batch on the device, keyed by (seed, epoch, sample)."""

    crop: Literal["none", "pad", "resized"] = "none"
    """none; pad: shift by up to `padding`; resized: random area and aspect."""
    padding: int = 4
    """Pixels of crop pad."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Range of the area of crop resized."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of the aspect of crop resized."""
    flip: bool = True
    """Mirror half of the images."""
    jitter: float = 0.0
    """Strength of brightness, contrast and saturation jitter."""
    randaugment: str | None = None
    """RandAugment in timm's words, e.g. rand-m9-mstd0.5-inc1."""
    mixup: float = 0.0
    """Mixup's alpha; 0 is off."""
    cutmix: float = 0.0
    """CutMix's alpha; 0 is off."""
    mix_probability: float = 1.0
    """How often mixup or CutMix is applied."""
    erase: float = 0.0
    """Probability of erasing a rectangle."""
    repeats: int = 1
    """Repeated augmentation: how often each sample comes in a batch."""
    smoothing: float = 0.0
    """Label smoothing."""

    def __post_init__(self) -> None:
        check_one_of("augment.crop", self.crop, ("none", "pad", "resized"))
        check_at_least("augment.padding", self.padding, 0, example=4)
        for name in ("scale", "ratio"):
            low, high = getattr(self, name)
            if not 0 < low <= high < math.inf:
                raise ValueError(f"augment.{name} is ({low}, {high}); give a lower and an upper bound above 0")
        if self.scale[1] > 1:
            raise ValueError(f"augment.scale is {self.scale}; the area of a crop is at most 1")
        for name in ("jitter", "mixup", "cutmix"):
            check_at_least(f"augment.{name}", getattr(self, name), 0)
        for name in ("mix_probability", "erase"):
            check_within(f"augment.{name}", getattr(self, name), 0, 1)
        check_within("augment.smoothing", self.smoothing, 0, 1, brackets="[)", example=0.1)
        check_at_least("augment.repeats", self.repeats, 1)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where images come from, and how they reach the device."""

    train: str
    """Source of the training images: procedural, a parquet file or folder, an image folder, cifar10, …"""
    val: str
    """Source of the validation images."""
    image_size: int
    """Side of the images in pixels."""
    cache: Path | None = None
    """Folder of the decoded uint8 cache; none: the user's cache folder."""
    resident: Literal["auto", "yes", "no"] = "auto"
    """Keep all images on the device: auto where they fit."""
    workers: int = 4
    """Processes that read images which are not resident, for each process that trains."""
    augment: AugmentConfig = AugmentConfig()
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Mean of each channel, of pixels in 0 … 1."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Standard deviation of each channel."""

    def __post_init__(self) -> None:
        for name in ("train", "val"):
            if not getattr(self, name):
                raise ValueError(f"data.{name} is empty; name a source, for example procedural")
        check_at_least("data.image_size", self.image_size, 1, example=224)
        check_one_of("data.resident", self.resident, ("auto", "yes", "no"))
        check_at_least("data.workers", self.workers, 0, example=4)
        for name in ("mean", "std"):
            if any(1 < value < math.inf for value in getattr(self, name)):
                raise ValueError(
                    f"data.{name} is {getattr(self, name)}, but pixels are in 0 … 1; divide what is of 0 … 255 by 255"
                )
        for value in self.mean:
            check_within("data.mean", value, 0, 1, example=0.5)
        if not all(1e-6 <= value < math.inf for value in self.std):
            raise ValueError(f"data.std is {self.std}; every deviation must be positive, 1e-6 or more")
