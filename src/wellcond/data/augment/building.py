"""An AugmentConfig → the one function that turns raw pictures into what a model is trained on. Floor 6.

In timm's and DeiT's order: crop and flip, RandAugment or colour jitter, normalise, erase, mix; the labels along with
them. The function is pure: the same raw pictures, labels and keys give the same output, in whatever batch they come. It
makes no shape from data and never waits for the device, so it can be compiled, and captured in a CUDA graph together
with the step.

timm leaves the colour jitter out when RandAugment is on; here asking for both is an error.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...config import AugmentConfig
from . import crops, erasing, flips, jitter, mixing, randaugment, resampling
from .normalising import normalise, per_channel

Augment = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
# streams of the randomness, one range for each part, so that turning one on or off leaves the others as they were
_CROP, _FLIP, _JITTER, _ERASE, _MIX, _RANDAUGMENT = 0, 100, 200, 300, 400, 1000


def build(
    config: AugmentConfig,
    image_size: int,
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
) -> Augment:
    """augment(raw uint8 (B, 3, H, W), labels (B,), keys (B,), step_key ()) → (images (B, 3, h, w), targets).

    `keys` and `step_key` are int64 (see `randomness`). Targets are (B, K) floats if labels are mixed or smoothed,
    else the labels themselves.
    """
    check(config)
    policy = randaugment.parse(config.randaugment) if config.randaugment else None
    return _Augment(config, policy, image_size, num_classes, tuple(mean), tuple(std))


def check(config: AugmentConfig) -> None:
    """ValueError for what the parts here cannot do, beyond the ranges that the config itself checks."""
    for name in ("mixup", "cutmix"):
        if getattr(config, name) > mixing.MOST:
            raise ValueError(f"{name} is {getattr(config, name)}; choose its alpha in 0 … {mixing.MOST:g}, 0 is off")
    if config.jitter and config.randaugment:
        raise ValueError(
            f"jitter is {config.jitter} and randaugment is {config.randaugment!r}; choose one "
            "(timm would leave the jitter out without a word)"
        )
    if config.randaugment:
        randaugment.parse(config.randaugment)


@dataclass(frozen=True)
class _Augment:
    config: AugmentConfig
    policy: randaugment.Policy | None
    image_size: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, raw: Tensor, labels: Tensor, keys: Tensor, step_key: Tensor) -> tuple[Tensor, Tensor]:
        config = self.config
        pixels = self.colours(self.cropped(raw, keys), keys)
        images = normalise(pixels, self.mean, self.std)
        side = (self.image_size, self.image_size)
        if config.erase:
            boxes = erasing.draw(keys, _ERASE, side, config.erase)
            images = erasing.erase(images, boxes, keys, _ERASE)
        lam = None
        if config.mixup or config.cutmix:
            weights, lam = mixing.draw(step_key, _MIX, config.mixup, config.cutmix, config.mix_probability, side)
            images = mixing.mix(images, weights)
        if lam is None and not config.smoothing:
            return images, labels
        return images, mixing.soft_labels(labels, self.num_classes, config.smoothing, lam)

    def cropped(self, raw: Tensor, keys: Tensor) -> Tensor:
        """uint8 of the final size, cropped and mirrored."""
        config, side = self.config, (self.image_size, self.image_size)
        mirrored = flips.draw_flip(keys, _FLIP) if config.flip else None
        if config.crop == "resized":
            boxes = crops.resized_boxes(keys, _CROP, (raw.shape[2], raw.shape[3]), config.scale, config.ratio)
            return resampling.resize_boxes(raw, boxes, side, mirrored)
        if tuple(raw.shape[2:]) != side:  # native pictures of another size
            raw = fit(raw, self.image_size)
        if config.crop == "pad":
            return crops.pad_crop(raw, crops.pad_offsets(keys, _CROP, config.padding), config.padding, mirrored)
        return raw if mirrored is None else flips.flip(raw, mirrored)

    def colours(self, pixels: Tensor, keys: Tensor) -> Tensor:
        """uint8 after RandAugment or colour jitter."""
        if self.policy is not None:
            fill = per_channel([min(255, round(255 * m)) for m in self.mean], pixels.device, torch.uint8)
            for operation, argument in randaugment.draw(keys, _RANDAUGMENT, self.policy):
                pixels = randaugment.apply(pixels, operation, argument, fill)
        if self.config.jitter:
            pixels = jitter.apply(pixels, *jitter.draw(keys, _JITTER, self.config.jitter))
        return pixels


def fit(raw: Tensor, image_size: int) -> Tensor:
    """uint8 (B, C, H, W) → the centre of it at image_size²: cut where it is larger, enlarged where it is smaller."""
    H, W = raw.shape[2:]
    if min(H, W) < image_size:
        scale = image_size / min(H, W)
        raw = resampling.resize(raw, (round(H * scale), round(W * scale)))
        H, W = raw.shape[2:]
    top, left = (H - image_size) // 2, (W - image_size) // 2
    return raw[:, :, top : top + image_size, left : left + image_size]


def evaluation(raw: Tensor, image_size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """What a model is judged on: the centre of each picture, normalised, and nothing else."""
    return normalise(fit(raw, image_size), mean, std)
