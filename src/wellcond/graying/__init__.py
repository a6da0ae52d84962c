"""Token Graying: lift the small singular values of the raw patch matrix (Always Skip Attention, Algorithms 1 and 2).

`dct.py` the cosine transform, `tokens.py` graying of (…, n, d), `images.py` patches in and out of images, `models.py`
graying in any timm model.
"""

from wellcond.graying.images import TokenGraying, fold_patches, unfold_patches
from wellcond.graying.models import gray, graying_of, patch_size_of, ungray
from wellcond.graying.tokens import gray_tokens

__all__ = [
    "TokenGraying",
    "fold_patches",
    "gray",
    "gray_tokens",
    "graying_of",
    "patch_size_of",
    "unfold_patches",
    "ungray",
]
