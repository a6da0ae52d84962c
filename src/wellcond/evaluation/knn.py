"""Nearest neighbours: the label of a picture from those of the k training pictures with the most similar features.

As in DINO (Caron et al., 2021, after Wu et al., 2018): cosine similarity s, each of the k neighbours votes for its
class with weight exp(s / T), k = 20 and T = 0.07. Exact: every similarity is computed, a slab of queries at a time, so
memory holds one slab whatever the size of the sets.

Legend: N training and M test features of width d, C classes.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize

K, TEMPERATURE = 20, 0.07
SLAB = 1 << 26  # similarities at once, 256 MiB


@torch.no_grad()
def knn_votes(
    train: Tensor, labels: Tensor, test: Tensor, num_classes: int, *, k: int = K, temperature: float = TEMPERATURE
) -> Tensor:
    """Votes (M, C) for test (M, d) by train (N, d) with labels (N,) int64. Fewer than k training features all vote.

    Where the k-th and the next neighbour are equally near, one of them votes.
    """
    if k < 1 or not temperature > 0:
        raise ValueError(f"k is {k} and temperature is {temperature}; choose k from 1 on and a temperature above 0")
    if not len(train):
        raise ValueError("there are no training features to be neighbours of; check the training source")
    train = train.float() if train.dtype.itemsize < 4 else train  # half precision would blur who is nearest
    train, test = normalize(train, dim=-1), normalize(test.to(train.dtype), dim=-1)
    k = min(k, len(train))
    votes = test.new_zeros(len(test), num_classes)
    for low in range(0, len(test), rows := max(1, SLAB // len(train))):
        similarity, which = (test[low : low + rows] @ train.mT).topk(k, dim=-1)
        # against the nearest: exp(1/0.07) is 1.6 million, and float32 should not have to hold such sums
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
        votes[low : low + rows].scatter_add_(1, labels[which], weight)
    return votes


def count_top(scores: Tensor, labels: Tensor) -> tuple[int, int]:
    """How many of (M, C) have their label first, and within the first five; of equal scores the smaller class wins."""
    order = scores.argsort(dim=1, descending=True, stable=True)[:, :5]
    hits = order == labels[:, None]
    return int(hits[:, 0].sum()), int(hits.sum())
