"""Pictures → the batches of tensors that a timm model wants. Floor 6; needs torch.

The shorter side resized, the centre cut, as the model's own data config says (timm's `resolve_model_data_config`
and `create_transform`), on uint8 in threads; normalised as one batch, where the model is.
"""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from PIL import Image
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform
from torch import Tensor, nn

from .reading import read_pictures
from .records import Pixels, Source


class Preprocessing:
    """What a timm model does to a picture: `pixels` to uint8 (3, H, W), `normalise` a batch of those to floats."""

    def __init__(self, model: nn.Module, *, image_size: int | None = None) -> None:
        config: dict[str, Any] = resolve_model_data_config(model)
        if image_size is not None:
            config["input_size"] = (config["input_size"][0], image_size, image_size)
        channels, *self.size = config["input_size"]
        if channels != 3:
            raise ValueError(f"the model takes {channels} channels; pictures have 3")
        self.mean, self.std, self.crop_pct = config["mean"], config["std"], config["crop_pct"]
        self._transform: Any = create_transform(
            **config, is_training=False, use_prefetcher=True
        )  # uint8, as its loader

    @property
    def side(self) -> int:
        """The shorter side after the resize, before the cut; a generated picture of this size is not resampled."""
        return math.floor(max(self.size) / self.crop_pct)

    def pixels(self, picture: Pixels) -> Tensor:
        return torch.as_tensor(self._transform(Image.fromarray(picture)))

    def normalise(self, pixels: Tensor, *, device: str | torch.device, dtype: torch.dtype) -> Tensor:
        """uint8 (B, 3, H, W) → (x/255 − mean)/std."""
        mean, std = (torch.tensor(v, device=device, dtype=dtype).view(1, 3, 1, 1) for v in (self.mean, self.std))
        return pixels.to(device).to(dtype).div_(255).sub_(mean).div_(std)


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
        yield preprocessing.normalise(torch.stack(batch), device=device, dtype=dtype)
