"""Stochastic depth (Huang et al., "Deep Networks with Stochastic Depth", arXiv 1603.09382) whose chance hangs on the
sample.

timm's DropPath draws from torch's generator, and each process has its own: two processes would drop other branches than
one does. Here the step says whose rows it is about to compute, by the keys that augmentation has (`data.randomness`),
and each row of a batch draws from its sample's key. So the number of processes and of accumulated chunks changes
nothing, a resumed run finds the same masks, and a captured step holds the drawing: it asks no generator.

Rates, one mask for each row and its scale 1/keep are timm's. Its modules stay, with another class, so the names of
weights do, too; a model that is loaded is timm's own. Outside of a step, and in models that compute activations again
in the backward pass (which would draw a second time), they draw as timm does. Other dropout (`proj_drop_rate` and the
like in model.options) is left to torch's generators, one for each process.

Legend: B samples, V rows of each in a batch, side by side: 1, or DINO's crops.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn

from wellcond.data.randomness import uniform

STREAM = 10_000  # and all above: beyond those of augmentation, masks and crops


def kept_rows(keys: Tensor, first: int, num_rows: int, keep: float) -> Tensor:
    """(B,) keys → (B·V,) bool, True with probability `keep`: row v of a sample takes its stream `first` + v."""
    # not an arange of streams: inductor's C++ knows its range, and what wraps is then undefined to the compiler
    drawn = [uniform(keys, first + v) for v in range(num_rows // len(keys))]
    return (torch.stack(drawn, 1) < keep).flatten()


class Drops:
    """Whose rows are being computed, and the next stream of each; all DropPath modules of an objective read it."""

    def __init__(self, objective: nn.Module) -> None:
        self.keys: Tensor | None = None
        self.stream = STREAM
        if any(getattr(module, "grad_checkpointing", False) for module in objective.modules()):
            return
        for module in objective.modules():
            if type(module) is DropPath:
                module.__class__ = KeyedDropPath
                module.drops = self  # type: ignore[assignment]

    @contextmanager
    def of(self, keys: Tensor | None) -> Iterator[None]:
        """Inside, one forward pass over the samples with these keys (B,)."""
        self.keys, self.stream = keys, STREAM
        try:
            yield
        finally:
            self.keys = None


class KeyedDropPath(DropPath):
    """The n-th call of a forward pass draws from the n-th streams: a module that a block calls twice draws twice."""

    drops: Drops

    def forward(self, x: Tensor) -> Tensor:
        drops = self.drops
        if not self.training or not self.drop_prob or drops.keys is None or len(x) % len(drops.keys):
            return super().forward(x)
        keep = 1 - self.drop_prob
        kept = kept_rows(drops.keys, drops.stream, len(x), keep).to(x.dtype)
        drops.stream += len(x) // len(drops.keys)
        scaled = kept / keep if self.scale_by_keep else kept
        return x * scaled.view(-1, *(1,) * (x.ndim - 1))
