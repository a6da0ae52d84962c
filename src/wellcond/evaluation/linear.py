"""A linear probe: a softmax regression on frozen features, many learning rates side by side in one pass.

As DINOv2 does (Oquab et al., 2023): every batch of features goes through all heads at once, each head with its own
learning rate, so a sweep costs little more than one head; so do the heads of several layers. Features are standardised
by the training set's mean and deviation (a batch norm without parameters, as MAE's probe has), heads start at zero, SGD
with momentum 0.9 and no decay, cosine to 0. Pictures are not augmented: features are computed once.

The learning rate is never chosen on the test set: heads are trained on nine tenths of the training set, the best on the
held-out tenth names the rate, and a new head is trained with it on all of the training set. That one is judged.

Legend: N features of width d, C classes, R learning rates; … layers, or nothing.
"""

import math
from collections.abc import Sequence
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
    """R linear heads on standardised features, of one layer or of several."""

    weight: Tensor  # (…, R, d, C)
    bias: Tensor  # (…, R, C)
    mean: Tensor  # (…, d)
    std: Tensor  # (…, d)

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (…, R, N, C) of features (…, N, d)."""
        standardised = (features - self.mean[..., None, :]) / self.std[..., None, :]
        return standardised[..., None, :, :] @ self.weight + self.bias[..., None, :]

    def of_layer(self, layer: int) -> "Heads":
        return Heads(weight=self.weight[layer], bias=self.bias[layer], mean=self.mean[layer], std=self.std[layer])


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The head that was chosen, its learning rate, and what every rate reached on the held-out tenth, in percent."""

    head: Heads
    rate: float
    held_out: dict[float, float]


@torch.no_grad()
def train_heads(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    rates: Sequence[float] | Sequence[Sequence[float]],
    schedule: Schedule,
) -> Heads:
    """Heads trained side by side on features (…, N, d), labels (N,), with rates (R,) or (…, R); each as if alone.

    The gradient of softmax regression is written down: Xᵀ (softmax − one-hot) / batch. Heads of all rates are the
    columns of one matrix (…, d + 1, R · C), so that a step is two products.
    """
    *layers, N, d = features.shape
    mean, std = features.mean(-2), features.std(-2, correction=0)
    std = torch.where(std > 0, std, 1.0)
    X = torch.cat([(features - mean[..., None, :]) / std[..., None, :], features.new_ones(*layers, N, 1)], -1)
    rate = torch.as_tensor(rates, dtype=X.dtype, device=X.device)
    heads = rate.shape[-1], num_classes
    rate = rate.repeat_interleave(num_classes, -1)[..., None, :]
    W = X.new_zeros(*layers, d + 1, math.prod(heads))  # the last row is the bias
    speed = torch.zeros_like(W)
    size = min(schedule.batch_size, N)
    total, step = schedule.epochs * (N // size), 0
    generator = torch.Generator().manual_seed(schedule.seed)
    own = torch.arange(size, device=X.device)
    for _ in range(schedule.epochs):
        order = torch.randperm(N, generator=generator, device="cpu").to(X.device)
        for rows in order[: N - N % size].split(size):
            x = X[..., rows, :]
            gradient = (x @ W).unflatten(-1, heads).softmax(-1)
            gradient[..., own, :, labels[rows]] -= 1
            speed = MOMENTUM * speed + x.mT @ gradient.flatten(-2) / size
            W = W - rate * _cosine(step, total) * speed
            step += 1
    W = W.unflatten(-1, heads).transpose(-3, -2)
    return Heads(weight=W[..., :d, :], bias=W[..., d, :], mean=mean, std=std)


def probes(
    features: Tensor, labels: Tensor, num_classes: int, *, rates: tuple[float, ...] = RATES,
    schedule: Schedule | None = None,
) -> list[Probe]:  # fmt: skip
    """Of each layer of (L, N, d) the head of the best rate: chosen on a held-out tenth, then trained on all."""
    schedule, N = schedule or Schedule(), features.shape[1]
    if N < 2:
        raise ValueError(f"{N} training images cannot train a probe and choose its rate; give more")
    generator = torch.Generator().manual_seed(schedule.seed + 1)
    order = torch.randperm(N, generator=generator, device="cpu").to(features.device)
    held, kept = order.tensor_split([max(1, N // HELD_OUT)])
    heads = train_heads(features[:, kept], labels[kept], num_classes, rates, schedule)
    held_out = []
    for layer, of_layer in enumerate(features):
        right = (heads.of_layer(layer)(of_layer[held]).argmax(-1) == labels[held]).double().mean(1).tolist()
        held_out.append({rate: 100 * share for rate, share in zip(rates, right, strict=True)})
    best = [max(found, key=lambda rate: (found[rate], -rate)) for found in held_out]  # of equal ones the smallest
    heads = train_heads(features, labels, num_classes, [[rate] for rate in best], schedule)
    return [Probe(head=heads.of_layer(layer), rate=rate, held_out=held_out[layer]) for layer, rate in enumerate(best)]


def _cosine(step: int, total: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / total))
