"""Read the sites of a model while it runs; nothing is kept but what the sink keeps."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.blocks.adapting import adapt, adapted_blocks, unadapt


class Recording(dict[tuple[int, str], Tensor]):
    """The simplest sink: {(layer, site): X}, detached; a later pass replaces an earlier one."""

    def __call__(self, layer: int, site: str, X: Tensor) -> None:
        self[layer, site] = X.detach()


@contextmanager
def record(
    model: nn.Module, sink: Callable[[int, str, Tensor], None] | None = None, images: Tensor | None = None
) -> Iterator[Any]:
    """Inside, every pass of the model calls `sink(layer, site, X)` at each site of each block, X as (B, n, d).

    Yields the sink; without one, a `Recording`. X is the live tensor: keep no reference that you do not need, detach
    what you keep. Sites of a block: `SITES`; XCiT adds lpi_out and lpi_sum, ConvMixer has the first three. A feature
    map is read row by row as n = H·W tokens, whole, also where attention works in windows.

    A compiled model runs uncompiled inside. A model that was not adapted is so only inside (`images` as in `adapt`).
    Two recordings may be nested. Everything is undone at the end, also after an exception.
    """
    sink = Recording() if sink is None else sink
    was_adapted = bool(adapted_blocks(model))
    blocks = adapt(model, images)
    before = [block._sinks for block in blocks]
    try:
        for layer, block in enumerate(blocks):
            block._sinks = (*block._sinks, functools.partial(sink, layer))
        with torch.compiler.set_stance("force_eager"):
            yield sink
    finally:
        still = {id(block) for block in adapted_blocks(model)}
        for block, sinks in zip(blocks, before, strict=True):
            if id(block) in still:
                block._sinks = sinks
        if not was_adapted:
            unadapt(model)
