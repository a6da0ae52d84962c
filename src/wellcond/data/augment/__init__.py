"""Augmentation of a batch on the device where it lies: pure tensor functions, keyed randomness. Floor 6.

building      AugmentConfig → augment(raw, labels, keys, step_key);  evaluation: the same without chance
crops         pad-crop, the box of a random-resized-crop       resampling  boxes resized with Pillow's bits
flips         mirrored pictures                                jitter      brightness, contrast, saturation
randaugment   timm's policy, over layers, from tables, enhancing and affine (kernels: the same in Triton)
normalising   uint8 → floats                                   erasing     boxes of noise
mixing        mixup, cutmix, soft labels                       rounding    products that nothing can fuse
colours       jitter with hue, blur, solarisation in floats, for DINO's crops (data.multicrop)
"""

from .building import Augment, build, evaluation

__all__ = ["Augment", "build", "evaluation"]
