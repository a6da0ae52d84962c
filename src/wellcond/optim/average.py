"""Exponential moving average of the weights, updated on the device (Polyak averaging with forgetting).

The average holds parameters and floating buffers; the names are those of the module.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class WeightAverage:
    """avg ← avg + w (weights − avg), with the weight w as a tensor: a captured step reads it anew; 0 is no change."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.tensors = {name: tensor.detach().clone() for name, tensor in self._live().items()}

    def _live(self) -> dict[str, Tensor]:
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {name: tensor for name, tensor in named.items() if tensor.is_floating_point()}

    @torch.no_grad()
    def update_(self, weight: Tensor) -> None:
        average = [_own(t) for t in self.tensors.values()]
        live = [_own(t.detach()) for t in self._live().values()]
        foreach: Any = torch  # its fused list operations have no public names
        difference = foreach._foreach_sub(live, average)
        foreach._foreach_mul_(difference, weight.to(average[0].dtype))
        foreach._foreach_add_(average, difference)

    @contextmanager
    def applied(self) -> Iterator[nn.Module]:
        """The module with the average in place of its weights; values move, storage stays (a CUDA graph reads it)."""
        live = self._live()
        before = {name: tensor.detach().clone() for name, tensor in live.items()}
        try:
            self._fill(live, self.tensors)
            yield self.module
        finally:
            self._fill(live, before)

    @staticmethod
    @torch.no_grad()
    def _fill(target: dict[str, Tensor], source: dict[str, Tensor]) -> None:
        for name, tensor in target.items():
            tensor.copy_(source[name])


def _own(tensor: Any) -> Tensor:
    """This rank's part of a sharded tensor; buffers are never sharded, and a list of both is refused by torch."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
