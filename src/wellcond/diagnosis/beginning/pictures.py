"""W_Q W_Kᵀ of one head as a picture, beside the two settings that the paper illustrates ("Cutting the Skip", Fig. 5).

Blue is negative, red positive, white zero; each picture has its own scale, the largest entry. The corner shown is that
of the first channels, pixel for entry.
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from wellcond.blocks.matrices import Matrices
from wellcond.diagnosis.result import Thumbnail
from wellcond.initializers.drawing import factors, near_identity
from wellcond.report import as_png

ILLUSTRATED = ((0.1, 5.0), (0.1, 0.0))
CORNER = 96  # entries
_ZOOM = 3


def query_key_pictures(block: Matrices) -> list[Thumbnail]:
    """The first head of the block, and of the illustrated settings at the same width, seed 0."""
    own = block.query[0].double().mT @ block.key[0].double()
    found = [_picture(own, "this model", f"{block.name}, head 0")]
    d, rank = len(own), block.query.shape[1]
    for alpha, beta in ILLUSTRATED:
        generator = torch.Generator().manual_seed(0)
        Q, K = factors(near_identity(d, alpha, beta, "normal", generator), rank)
        found.append(
            _picture(Q @ K.mT, f"α = {alpha:g}, β = {beta:g}", f"rank {rank} of {d}, illustrated in the paper")
        )
    return found


def _picture(M: Tensor, title: str, note: str) -> Thumbnail:
    top = float(M.abs().max())
    share = (M[:CORNER, :CORNER].cpu() / (top or 1.0)).numpy()
    fade = np.round(255 * (1 - np.abs(share))).astype(np.uint8)
    full = np.full_like(fade, 255)
    pixels = np.where(share[..., None] >= 0, np.stack([full, fade, fade], -1), np.stack([fade, fade, full], -1))
    side = len(share) * _ZOOM
    picture = Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)
    note = f"{note}; diagonal {float(M.diagonal().mean()):.2g} on average, largest entry {top:.2g}"
    return Thumbnail(title=title, note=note, png=as_png(picture))
