"""Small pictures for the page: images as they are, and what graying at the advised ε makes of them."""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from wellcond.diagnosis.result import Advice, Thumbnail
from wellcond.graying import TokenGraying
from wellcond.report import as_png

NUM_IMAGES = 4
MAX_SIDE = 128  # pixels
_SHOWN = {"svd": "SVD", "dct": "DCT"}


def thumbnails(model: nn.Module, images: Tensor, advice: Advice | None) -> list[Thumbnail]:
    """For each of the first images: as it is, then grayed by each method at the advised ε, where there is one."""
    found = []
    for i, image in enumerate(images[:NUM_IMAGES].detach().double().cpu()):
        scale, shift = _pixels(model, image)
        title = f"image {i + 1}"
        found.append(Thumbnail(title=title, note="as it is", png=_png(image * scale + shift)))
        if advice is None or not image.isfinite().all():
            continue
        for method, epsilon in advice.epsilon.items():
            if epsilon is not None:
                grayed = TokenGraying(advice.patch_size, method, epsilon, precision="exact")(image[None])[0]
                note = f"{_SHOWN[method]} at ε = {epsilon:g}"
                found.append(Thumbnail(title=title, note=note, png=_png(grayed * scale + shift)))
    return found


def _pixels(model: nn.Module, image: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, shift) from normalised values (C, H, W) to 0 … 1: by timm's mean and std, else the image's own range."""
    for holder in (model, getattr(model, "module", None), getattr(model, "_orig_mod", None)):
        config: Any = getattr(holder, "pretrained_cfg", None) or getattr(holder, "default_cfg", None) or {}
        if not isinstance(config, dict):
            config = {name: getattr(config, name, None) for name in ("mean", "std")}
        mean, std = config.get("mean"), config.get("std")
        if mean is not None and std is not None and len(mean) == len(std) == len(image):
            scale, shift = (image.new_tensor(v)[:, None, None] for v in (std, mean))
            return scale, shift
    finite = image[image.isfinite()]
    low, high = (finite.min(), finite.max()) if len(finite) else (image.new_zeros(()), image.new_ones(()))
    width = torch.where(high > low, high - low, 1.0)
    return (1 / width).expand(len(image), 1, 1), (-low / width).expand(len(image), 1, 1)


def _png(pixels: Tensor) -> str:
    """Values in 0 … 1 (C, H, W) as base64 PNG; one or three channels, of others the first."""
    channels = pixels if len(pixels) == 3 else pixels[:1].expand(3, -1, -1)
    values = (channels.nan_to_num(0.0).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    picture = Image.fromarray(np.ascontiguousarray(values))
    picture.thumbnail((MAX_SIDE, MAX_SIDE))
    return as_png(picture)
