"""A linear probe: a softmax regression on frozen features, many learning rates side by side in one pass.

As DINOv2 does (Oquab et al., 2023): every batch of features goes through all heads at once, each head with its own
learning rate, so a sweep costs little more than one head. Features are standardised by the training set's mean and
deviation (a batch norm without parameters, as MAE's probe has), heads start at zero, SGD with momentum 0.9 and no
decay, cosine to 0. Pictures are not augmented: features are computed once.

The learning rate is never chosen on the test set: heads are trained on nine tenths of the training set, the best on the
held-out tenth names the rate, and a new head is trained with it on all of the training set. That one is judged.

Legend: N features of width d, C classes, R learning rates.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
MOMENTUM = 0.9
HELD_OUT = 10  # one in so many chooses the learning rate


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How heads are trained."""

    epochs: int = 50
    batch_size: int = 1024
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Heads:
    """R linear heads on standardised features."""

    weight: Tensor  # (R, d, C)
    bias: Tensor  # (R, C)
    mean: Tensor  # (d,)
    std: Tensor  # (d,)

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (R, N, C) of features (N, d)."""
        return ((features - self.mean) / self.std) @ self.weight + self.bias[:, None]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The head that was chosen, its learning rate, and what every rate reached on the held-out tenth, in percent."""

    head: Heads
    rate: float
    held_out: dict[float, float]


@torch.no_grad()
def train_heads(
    features: Tensor, labels: Tensor, num_classes: int, rates: tuple[float, ...], schedule: Schedule
) -> Heads:
    """Heads trained side by side on features (N, d), labels (N,); each as if it were alone.

    The gradient of softmax regression is written down: Xᵀ (softmax − one-hot) / batch.
    """
    N, d = features.shape
    mean, std = features.mean(0), features.std(0, correction=0)
    std = torch.where(std > 0, std, 1.0)
    X = (features - mean) / std
    rate = torch.tensor(rates, dtype=X.dtype, device=X.device)[:, None, None]
    W = X.new_zeros(len(rates), d + 1, num_classes)  # the last row is the bias
    speed = torch.zeros_like(W)
    X = torch.cat([X, X.new_ones(N, 1)], 1)
    size = min(schedule.batch_size, N)
    total, step = schedule.epochs * (N // size), 0
    generator = torch.Generator().manual_seed(schedule.seed)
    for _ in range(schedule.epochs):
        order = torch.randperm(N, generator=generator).to(X.device)
        for rows in order[: N - N % size].split(size):
            x = X[rows]
            gradient = (x @ W).softmax(-1)
            gradient[:, torch.arange(size, device=X.device), labels[rows]] -= 1
            speed = MOMENTUM * speed + x.mT @ gradient / size
            W = W - rate * _cosine(step, total) * speed
            step += 1
    return Heads(weight=W[:, :d], bias=W[:, d], mean=mean, std=std)


def probe(
    features: Tensor, labels: Tensor, num_classes: int, *, rates: tuple[float, ...] = RATES,
    schedule: Schedule | None = None,
) -> Probe:  # fmt: skip
    """The head of the best rate: chosen on a held-out tenth of the training set, then trained on all of it."""
    schedule = schedule or Schedule()
    if len(features) < 2:
        raise ValueError(f"{len(features)} training images cannot train a probe and choose its rate; give more")
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(schedule.seed + 1))
    order = order.to(features.device)
    held, kept = order.tensor_split([max(1, len(features) // HELD_OUT)])
    heads = train_heads(features[kept], labels[kept], num_classes, rates, schedule)
    right = (heads(features[held]).argmax(-1) == labels[held]).double().mean(1).tolist()
    held_out = {rate: 100 * share for rate, share in zip(rates, right, strict=True)}
    rate = max(held_out, key=lambda r: (held_out[r], -r))  # of equal ones the smallest
    return Probe(head=train_heads(features, labels, num_classes, (rate,), schedule), rate=rate, held_out=held_out)


def _cosine(step: int, total: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / total))
