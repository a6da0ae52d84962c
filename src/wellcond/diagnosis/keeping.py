"""A model as it was: whatever is done to it inside, and however that ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from wellcond.blocks import adapted_blocks
from wellcond.blocks.adapted import swap_out
from wellcond.blocks.modes import modes_kept


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Afterwards the model has its own modes, classes and gains again, and the random generators their states."""
    blocks = [(b, b._context, {name: getattr(b, name) for name in (*b.gains, "_tells")}) for b in adapted_blocks(model)]
    ours = {id(block) for block, _, _ in blocks}
    gpus = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    with modes_kept(model), torch.random.fork_rng(list(gpus)):
        try:
            yield
        finally:
            for block in adapted_blocks(model):
                if id(block) not in ours:
                    swap_out(block)
            for block, context, settings in blocks:
                block._context = context
                for name, value in settings.items():
                    setattr(block, name, value)
