"""Peak device memory of one call, measured apart from the timing (the counters cost a synchronisation)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch


def peak_memory(call: Callable[[], Any]) -> int:
    """The most bytes allocated at one moment of ``call``, everything resident before it included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of these tensors. Their storages are assumed to be distinct."""
    return sum(t.numel() * t.element_size() for t in tensors)
