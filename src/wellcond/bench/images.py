"""Real photographs for benchmarks, as uint8 arrays (B, H, W, 3); procedural ones only if no data is given.

Speed and error of graying depend on the picture: the patch matrix of a photograph has a κ of thousands (4e3 in the
median of `results/bench-graying.json`), a random one about 3, and rounding to uint8 after the resize is part of what
makes a photograph's smallest singular values. So pictures are resized by PIL (bicubic) to uint8 first and normalised on
the device afterwards.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from ..data.files import centre_square
from ..data.reading import read_pictures
from ..data.sources import PROCEDURAL, open_source

if TYPE_CHECKING:
    import torch

NUM_PROCEDURAL = 64  # they are slow to draw


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pixels and where they came from: ``source`` is "procedural" or "parquet:NAME" or "folder:NAME"."""

    pixels: np.ndarray
    source: str
    num_distinct: int


def load_pictures(data: Path | None, *, count: int, size: int, seed: int = 0) -> Pictures:
    """``count`` square pictures of ``size`` pixels from a parquet file, a folder of them, or an image folder.

    The shorter side is resized and the middle cut out. A choice that depends on ``seed`` only; a set with
    fewer pictures is repeated, and ``num_distinct`` says so.
    """
    source = open_source(data or PROCEDURAL, length=min(count, NUM_PROCEDURAL), size=size, seed=seed)
    pictures = read_pictures(source, count, prepare=lambda p: centre_square(Image.fromarray(p), size), seed=seed)
    decoded = np.stack([pixels for _, pixels in pictures])
    pixels = decoded if len(decoded) == count else decoded[np.arange(count) % len(decoded)]
    return Pictures(pixels=pixels, source=source.title, num_distinct=len(decoded))


def normalise(pixels: np.ndarray, device: "str | torch.device") -> "torch.Tensor":
    """uint8 (B, H, W, 3) → float32 (B, 3, H, W) on ``device``, by ImageNet's mean and deviation."""
    import torch

    from ..pictures import MEAN, STD

    images = torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float().div_(255)
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return images.sub_(mean).div_(std).contiguous()
