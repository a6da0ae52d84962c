"""Pictures → the batches of tensors that a timm model wants. Floor 6; needs torch.

The shorter side resized, the centre cut, as the model's own data config says (timm's `resolve_model_data_config`
and `create_transform`), on uint8 in threads; normalised as one batch, where the model is.
"""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn

from .reading import read_pictures
from .records import Pixels, Source


class Preprocessing:
    """What a timm model does to a picture: `pixels` to uint8 (H, W, 3), `normalise` a batch of those to floats."""

    def __init__(self, model: nn.Module, *, image_size: int | None = None) -> None:
        config: dict[str, Any] = resolve_model_data_config(model)
        if image_size is not None:
            config["input_size"] = (config["input_size"][0], image_size, image_size)
        channels, *self.size = config["input_size"]
        if channels != 3:
            raise ValueError(f"the model takes {channels} channels, and pictures have 3; choose a model of 3")
        self.mean, self.std, self.crop_pct = config["mean"], config["std"], config["crop_pct"]
        whole: Any = create_transform(**config, is_training=False, use_prefetcher=True)  # on uint8, as its loader does
        # Without the last step, to a tensor: torch in many threads would start a pool of workers in each of them.
        self._transforms = whole.transforms[:-1]

    @property
    def side(self) -> int:
        """The shorter side after the resize, before the cut; a generated picture of this size is not resampled."""
        return math.floor(max(self.size) / self.crop_pct)

    def pixels(self, picture: Pixels) -> Pixels:
        image = Image.fromarray(picture)
        for transform in self._transforms:
            image = transform(image)
        return np.asarray(image)

    def normalise(self, pixels: NDArray[np.uint8], *, device: str | torch.device, dtype: torch.dtype) -> Tensor:
        """(B, H, W, 3) → (B, 3, H, W), (x/255 − mean)/std."""
        images = (
            torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).to(dtype, memory_format=torch.contiguous_format)
        )
        mean, std = (torch.tensor(v, device=device, dtype=dtype).view(1, 3, 1, 1) for v in (self.mean, self.std))
        return images.div_(255).sub_(mean).div_(std)


def image_batches(
    source: Source,
    count: int,
    preprocessing: Preprocessing,
    *,
    batch_size: int,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    skipped: list[str] | None = None,
) -> Iterator[Tensor]:
    """Batches (B, 3, H, W) of `count` pictures chosen by `read_pictures`; one batch is in memory at a time."""
    pictures = read_pictures(source, count, prepare=preprocessing.pixels, seed=seed, skipped=skipped)
    while batch := [pixels for _, pixels in islice(pictures, batch_size)]:
        yield preprocessing.normalise(np.stack(batch), device=device, dtype=dtype)
