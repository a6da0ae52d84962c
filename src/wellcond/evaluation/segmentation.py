"""A dense linear probe: batch norm and a 1 × 1 convolution on frozen patch tokens → a class for each pixel.

Logits are upsampled (bilinear) to the size of the mask, and cross-entropy is taken there; pixels of the void label do
not count. Heads of several layers train side by side on one pass of the backbone, which is then remembered;
"multi-scale" is the layers at 1/4, 1/2, 3/4 and all of the depth, side by side. AdamW, cosine to 0. Scored by the mean
over classes of intersection / union, from one confusion matrix of all pixels of the set.

Legend: B pictures (S, S), h × w patches of width d, C classes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from wellcond.evaluation.keeping import Batches, Name, Read, ReadOnce

VOID = 255
PIXELS = {"cpu": 1 << 20}  # times classes, at once; elsewhere a whole batch


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How heads are trained."""

    epochs: int = 20
    rate: float = 1e-3
    decay: float = 1e-4


class Head(nn.Module):
    """Tokens (B, d, h, w) → logits (B, C, h, w)."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.project = nn.Conv2d(width, num_classes, 1)
        for parameter in self.project.parameters():
            nn.init.zeros_(parameter)  # convex in the projection: no luck of the draw

    def forward(self, tokens: Tensor) -> Tensor:
        if self.training and tokens.numel() == tokens.shape[1]:  # a batch of one token has no deviation to learn from
            return self.project(torch.zeros_like(tokens))
        return self.project(self.norm(tokens))


def train_heads(read: Read, batches: Batches, num_classes: int, schedule: Schedule) -> dict[Name, Head]:
    """A head for each name that `read` gives tokens (B, d, h, w) of, on the same batches; each as if it were alone."""
    heads: dict[Name, Head] = {}
    optimizer: torch.optim.Optimizer | None = None
    total, step, known = schedule.epochs * len(batches), 0, False
    pictures = ReadOnce(read, batches)
    for _ in range(schedule.epochs):
        for tokens, masks in pictures:
            known = known or bool((masks != VOID).any())
            if optimizer is None:
                heads = {name: Head(x.shape[1], num_classes).to(x).train() for name, x in tokens.items()}
                parameters = [p for head in heads.values() for p in head.parameters()]
                optimizer = torch.optim.AdamW(parameters, lr=schedule.rate, weight_decay=schedule.decay)
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate * 0.5 * (1 + math.cos(math.pi * step / total))
            with torch.enable_grad():
                loss = torch.stack([_loss(heads[name](x), masks) for name, x in tokens.items()]).sum()
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            step += 1
        if heads and not known:
            raise ValueError("the masks of all training pictures are void; look at what is void, or give others")
    if not heads:
        raise ValueError("there are no images to train a segmentation probe on; check the training source")
    return {name: head.eval() for name, head in heads.items()}


def _loss(logits: Tensor, masks: Tensor) -> Tensor:
    """Mean over the pixels that count; 0 where none does. Nobody waits for the device to learn which.

    A CPU takes a few pictures at a time: what its cache holds, and memory that is not asked of the system every time.
    """
    most = PIXELS.get(logits.device.type, masks.numel() * logits.shape[1])
    step = max(1, most // (masks[0].numel() * logits.shape[1]))
    parts = zip(logits.split(step), masks.split(step), strict=True)
    totals = [cross_entropy(upsampled(x, m), m, ignore_index=VOID, reduction="sum") for x, m in parts]
    return torch.stack(totals).sum() / (masks != VOID).sum().clamp(min=1)


def upsampled(logits: Tensor, masks: Tensor) -> Tensor:
    """(B, C, h, w) → (B, C, S, S)."""
    return interpolate(logits, size=tuple(masks.shape[-2:]), mode="bilinear", align_corners=False)


def confusion(truth: Tensor, found: Tensor, num_classes: int) -> Tensor:
    """(C, C) int64: pixels of class [row] that were called [column]; truth VOID is left out.

    >>> confusion(torch.tensor([0, 1, 255]), torch.tensor([0, 0, 1]), 2)
    tensor([[1, 0],
            [1, 0]])
    """
    counted = truth != VOID
    pairs = truth[counted] * num_classes + found[counted]
    return torch.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def intersection_over_union(matrix: Tensor) -> Tensor:
    """(C,) float64 of a confusion matrix; NaN for a class that neither is there nor was found."""
    matrix = matrix.double()
    common = matrix.diagonal()
    union = matrix.sum(0) + matrix.sum(1) - common
    return torch.where(union > 0, common / union, torch.nan)


def mean_iou(matrix: Tensor) -> float:
    """Mean over the classes that are there or were found."""
    return float(intersection_over_union(matrix).nanmean())
