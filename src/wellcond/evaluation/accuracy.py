"""Top-1 and top-5 accuracy, as exact counts."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from wellcond.blocks.modes import evaluating

Correct = Tensor  # (3,) int64: right at first, right within five, all


@torch.no_grad()
def count_correct(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, forward: Callable[[Tensor], Tensor] | None = None
) -> Correct:
    """Counts over batches of (images (B, C, H, W), labels (B,)): top-1, top-5, images; int64, on the device.

    Every image counts once: batches may be of any size, the last one too. A label below 0 is no image (padding).
    The model is evaluated without gradients and then left as it was. `forward` stands in for the model's call, e.g.
    a compiled one. An image with NaN among its logits is wrong. Of equal logits, which bfloat16 has
    many of, the smaller class wins, as in argmax.
    """
    total: Tensor | None = None
    with evaluating(model):
        for images, labels in batches:
            found = _count((forward or model)(images), labels)
            total = found if total is None else total + found
    if total is None:
        raise ValueError("there are no images to evaluate on; check the validation source")
    return total


def _count(logits: Tensor, labels: Tensor) -> Correct:
    """By how many logits come before the label's; without sorting, without shapes that depend on data."""
    real = labels >= 0
    label = labels.clamp(min=0)[:, None]
    own = logits.gather(1, label)
    smaller = torch.arange(logits.shape[1], device=logits.device) < label
    before = ((logits > own) | ((logits == own) & smaller)).sum(1)
    valid = real & ~logits.isnan().any(1)
    return torch.stack([((before < 1) & valid).sum(), ((before < 5) & valid).sum(), real.sum()])
