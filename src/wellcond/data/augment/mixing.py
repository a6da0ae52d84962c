"""Mixup and cutmix with timm's rules, for a whole batch, and soft labels. Floor 6.

Zhang et al. (2018) and Yun et al. (2019) as timm's `Mixup(mode="batch")`: with probability `probability` the batch is
mixed, by cutmix in half of the cases if both are on; λ ~ Beta(α, α); the box of cutmix has the share 1 − λ of the area,
a centre anywhere, is cut at the border, and λ becomes what is left of the picture.

The partner of position p is p ^ 1, its neighbour (timm's is B − 1 − p): then an even part of a batch needs no picture
of another process. λ and the box belong to the step and are scalars on the device: no one waits for them.

Both are one formula, w·x + (1 − w)·partner, with w = λ everywhere, or 0 inside the box and 1 outside.

Legend: B pictures (B, C, H, W) floats, K classes, `step_key` () int64.
"""

import torch
from torch import Tensor

from ..randomness import integers, uniform

TRIES = 128
MOST = 2.0  # alpha up to here: at 2 a try of Jöhnk's method succeeds with probability 1/6, all of TRIES fail in 1e-10


def draw(
    step_key: Tensor, stream: int, mixup: float, cutmix: float, probability: float, side: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """(weights (H, W), λ ()), float32: how much each pixel and the label keep of their own."""
    mixed = uniform(step_key, stream) < probability
    lam_mixup = beta(step_key, stream + 4, mixup) if mixup else torch.ones((), device=step_key.device)
    lam_cutmix = beta(step_key, stream + 4, cutmix) if cutmix else torch.ones((), device=step_key.device)
    is_cutmix = uniform(step_key, stream + 1) < (0.5 if mixup and cutmix else 1.0 if cutmix else 0.0)
    H, W = side
    centre = integers(step_key, stream + 2, H), integers(step_key, stream + 3, W)
    inside, share = cut_box(lam_cutmix, centre, side)
    cut_weights = torch.where(inside, 0.0, 1.0)
    weights = torch.where(mixed, torch.where(is_cutmix, cut_weights, lam_mixup), 1.0)
    lam = torch.where(mixed, torch.where(is_cutmix, 1.0 - share, lam_mixup), 1.0)
    return weights, lam


def mix(images: Tensor, weights: Tensor) -> Tensor:
    """w·x + (1 − w)·partner; the batch is even."""
    if len(images) % 2:
        raise ValueError(f"a batch of {len(images)} cannot be mixed in pairs; make the batch even")
    weights = weights.to(images.dtype)
    return images * weights + partners(images) * (1 - weights)


def partners(values: Tensor) -> Tensor:
    """What stands at p ^ 1.

    >>> partners(torch.arange(4)).tolist()
    [1, 0, 3, 2]
    """
    return values.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def soft_labels(labels: Tensor, num_classes: int, smoothing: float, lam: Tensor | None) -> Tensor:
    """(B, K) float32: 1 − s + s/K on the class and s/K elsewhere, mixed with the partner's if `lam` is given."""
    off = smoothing / num_classes
    one_hot = torch.arange(num_classes, device=labels.device) == labels[:, None]
    own = torch.where(one_hot, 1 - smoothing + off, off).float()
    return own if lam is None else own * lam.float() + partners(own) * (1 - lam.float())


def cut_box(lam: Tensor, centre: tuple[Tensor, Tensor], side: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """((H, W) bool inside the box, its share of the area) for scalar tensors λ and centre."""
    ratio = torch.sqrt(1 - lam.double())
    inside, sides = [], []
    for middle, length in zip(centre, side, strict=True):
        cut = (length * ratio).long()
        low = (middle - cut // 2).clamp(0, length)
        high = (middle + (cut + 1) // 2).clamp(0, length)
        line = torch.arange(length, device=lam.device)
        inside.append((line >= low) & (line < high))
        sides.append(high - low)
    share = (sides[0] * sides[1]).double() / (side[0] * side[1])
    return inside[0][:, None] & inside[1][None, :], share.float()


def beta(key: Tensor, stream: int, alpha: float) -> Tensor:
    """() float32 ~ Beta(α, α), by Jöhnk (1964): U^{1/α} / (U^{1/α} + V^{1/α}) given that the sum is at most 1.

    All tries at once, the first good one by index; 2·TRIES streams from `stream` on.
    """
    tries = torch.arange(TRIES, device=key.device)
    # in (0, 1), not [0, 1): 0/0 must not be accepted
    U, V = (uniform(key, stream + 2 * tries + i).double() + 2.0**-25 for i in range(2))
    u, v = U ** (1 / alpha), V ** (1 / alpha)
    first = (u + v <= 1).int().argmax(0, keepdim=True)
    # below α ≈ 0.02 both may be too small for float64; their ratio is then 0 or 1 to all digits
    share = torch.where(u + v > 0, u / (u + v), (U > V).double())
    return share.gather(0, first)[0].float()
