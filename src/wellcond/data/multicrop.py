"""DINO's views of a picture: two large crops and several small ones, each with colours of its own. Floor 6.

As Caron et al. (arXiv 2104.14294, §3.1 and its code's defaults): a random-resized-crop and a mirror; with probability
.8 jitter of brightness and contrast (.4), saturation (.2) and hue (.1) in random order; .2 grey; a blur of deviation
.1 … 2 pixels with probability 1 (first large crop), .1 (second), .5 (small); .2 solarised (second large crop).
Ours: crops are resampled bilinearly (theirs: bicubic), and the deviation of the blur shrinks with pictures smaller than
224 pixels, for it is a share of what is seen.

Every crop has a key of its own, a hash of the sample's and its number: batched, the same bits in any batch and process.

Legend: B pictures, V crops of a kind, S and s sides of the large and small ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import DINOConfig
from .augment import colours, crops, flips, resampling
from .augment.normalising import normalise_floats, per_channel
from .randomness import bits, uniform

STRENGTHS = (0.4, 0.4, 0.2, 0.1)  # brightness, contrast, saturation, hue
JITTER, GREY = 0.8, 0.2
SIGMA, SIGMA_SIDE = (0.1, 2.0), 224
RATIO = (3 / 4, 4 / 3)
# streams of a crop's key, and of the sample's key from which crops get theirs
_BOX, _FLIP, _JITTER, _CHANCES, _CROPS = 0, 100, 200, 300, 6000


@dataclass(frozen=True, kw_only=True)
class MultiCrop:
    """views(raw uint8 (B, 3, H, W), labels, keys (B,), step_key) → large (B, 2, 3, S, S), small (B, L, 3, s, s)."""

    config: DINOConfig
    image_size: int
    mean: Sequence[float]
    std: Sequence[float]

    def __call__(self, raw: Tensor, labels: Tensor, keys: Tensor, step_key: Tensor) -> tuple[Tensor, Tensor]:
        config, count = self.config, self.config.local_crops
        large = self._crops(raw, keys, 0, self.image_size, config.global_scale, blurred=(1.0, 0.1), solar=(0.0, 0.2))
        if not count:
            return large, large.new_zeros(len(raw), 0, 3, config.local_size, config.local_size)
        chances = {"blurred": (0.5,) * count, "solar": (0.0,) * count}
        return large, self._crops(raw, keys, 2, config.local_size, config.local_scale, **chances)

    def _crops(
        self,
        raw: Tensor,
        keys: Tensor,
        first: int,
        size: int,
        scale: tuple[float, float],
        *,
        blurred: tuple[float, ...],
        solar: tuple[float, ...],
    ) -> Tensor:
        """Crops `first` … of every picture, as many as there are chances of each kind."""
        V = len(blurred)
        own = crop_keys(keys, first, V).flatten()  # (B·V,)
        pictures = raw[:, None].expand(-1, V, -1, -1, -1).flatten(0, 1)
        boxes = crops.resized_boxes(own, _BOX, (raw.shape[2], raw.shape[3]), scale, RATIO)
        x = resampling.resize_boxes(pictures, boxes, (size, size), flips.draw_flip(own, _FLIP)).float() / 255
        x = self._coloured(x, own, self._each(blurred, raw), self._each(solar, raw))
        return normalise_floats(x, self.mean, self.std).unflatten(0, (-1, V))

    def _coloured(self, x: Tensor, keys: Tensor, blurred: Tensor, solar: Tensor) -> Tensor:
        chances = [uniform(keys, _CHANCES + i)[:, None, None, None] for i in range(5)]
        x = torch.where(chances[0] < JITTER, colours.jitter(x, *colours.draw_jitter(keys, _JITTER, STRENGTHS)), x)
        x = torch.where(chances[1] < GREY, colours.luma(x), x)
        shrink = min(1.0, self.image_size / SIGMA_SIDE)
        low, high = (shrink * sigma for sigma in SIGMA)
        sigma = low + (high - low) * chances[4].flatten()
        x = torch.where(chances[2] < blurred, colours.blur(x, sigma, colours.blur_radius(high, x.shape[3])), x)
        return torch.where(chances[3] < solar, colours.solarise(x), x)

    def _each(self, chances: tuple[float, ...], raw: Tensor) -> Tensor:
        """(B·V, 1, 1, 1): the chance of every crop."""
        own = per_channel(chances, raw.device, torch.float32)
        return own.expand(len(raw), -1).reshape(-1, 1, 1, 1)


def crop_keys(keys: Tensor, first: int, count: int) -> Tensor:
    """(B, V) keys of the crops `first` … `first + count − 1` of every sample."""
    return torch.stack([bits(keys, _CROPS + first + v) for v in range(count)], 1)
