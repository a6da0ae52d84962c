"""Passes that leave nothing behind: modes of modules are put back however it ends, cast weights are not kept."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Afterwards every module of now has its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            if "training" in vars(module):
                vars(module)["training"] = training  # nn.Module's own assignment looks through its parameters first
            else:  # a scripted module keeps it elsewhere
                module.training = training


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode; afterwards each is as it was.

    >>> model = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
    >>> with evaluating(model):
    ...     print([module.training for module in model.modules()])
    [False, False, False]
    >>> [module.training for module in model.modules()]
    [True, True, False]
    """
    with modes_kept(model):
        model.eval()
        yield


def uncached_autocast(kind: str) -> torch.autocast:
    """The caller's autocast on devices of that kind, without its cache of cast weights."""
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return torch.autocast(kind, dtype, enabled=enabled, cache_enabled=False)
