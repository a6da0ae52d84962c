"""One picture, grayed, with its singular spectrum before and after. Floor 3.

Pixels are normalised with the ImageNet mean and deviation first, as a model would see them, and brought
back and clipped to be shown. κ belongs to the unclipped tokens.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .graying import fold_patches, gray_tokens, unfold_patches
from .spectral import numerical_floor, singular_values

MEAN = (0.485, 0.456, 0.406)  # ImageNet-1K, red, green, blue, of pixels in [0, 1]
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Singular values of one token matrix, and what follows from them."""

    sigma: NDArray[np.float64]  # descending
    kappa: float  # inf if rank-deficient, nan if all zero
    log_kappa: float
    floor_count: int  # singular values at or under the numerical floor


@dataclass(frozen=True, kw_only=True)
class GrayedPicture:
    """A picture before and after."""

    before: NDArray[np.uint8]  # (H, W, 3)
    after: NDArray[np.uint8]
    spectrum_before: Spectrum
    spectrum_after: Spectrum
    num_tokens: int
    width: int  # of a token: p·p·3


def gray_picture(
    image: NDArray[np.uint8],
    *,
    patch_size: int = 16,
    method: Literal["svd", "dct"] = "dct",
    epsilon: float = 0.95,
    rescale: bool | Literal["contrast"] = True,
    precision: Literal["exact", "fast"] = "exact",
    order: Literal["rows", "channels"] = "rows",
    spectrum_before: Spectrum | None = None,
) -> GrayedPicture:
    """Gray a (H, W, 3) uint8 picture; the arguments are those of `gray_tokens`.

    `spectrum_before` of an earlier call on the same picture saves one decomposition in a sweep.
    """
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    pixels = (torch.from_numpy(np.array(image)).float() / 255 - mean) / std
    tokens = unfold_patches(pixels.permute(2, 0, 1)[None], patch_size, order=order)
    grayed = gray_tokens(tokens, method, epsilon, rescale=rescale, precision=precision)
    height, width, channels = image.shape
    folded = fold_patches(grayed, (channels, height, width), patch_size, order=order)
    shown = (folded[0].permute(1, 2, 0) * std + mean).clamp(0, 1)
    return GrayedPicture(
        before=image,
        after=(shown * 255).round().byte().numpy(),
        spectrum_before=spectrum_before or spectrum(tokens[0]),
        spectrum_after=spectrum(grayed[0]),
        num_tokens=tokens.shape[1],
        width=tokens.shape[2],
    )


def spectrum(tokens: torch.Tensor) -> Spectrum:
    """The spectrum of one (n, d) token matrix; κ as `condition_number` defines it, from the same σ."""
    sigma = singular_values(tokens).double().numpy()
    floor_count = int(numerical_floor(tokens))
    kappa = math.nan if sigma[0] == 0 else math.inf if floor_count else float(sigma[0] / sigma[-1])
    return Spectrum(sigma=sigma, kappa=kappa, log_kappa=math.log(kappa), floor_count=floor_count)
