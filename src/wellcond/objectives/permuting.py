"""Rows in another order, with a gradient that is a gather, too.

torch's gather adds up its gradient by atomic sums, for an index may come twice. In a permutation none does: the
gradient is the gather by its inverse, the same bits every time, and a CUDA graph can hold it.
"""

from typing import Any

import torch
from torch import Tensor


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return take(x, order)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return take(grads[0], inverse), None, None


def permute(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """(B, n, d) → (B, n, d) with rows `order` (B, n), a permutation for each image, and its `inverse`."""
    return _Permute.apply(x, order, inverse)  # type: ignore[return-value]


def take(x: Tensor, indices: Tensor) -> Tensor:
    """(B, n, d) at (B, k) → (B, k, d)."""
    return x.gather(1, indices[:, :, None].expand(-1, -1, x.shape[2]))
