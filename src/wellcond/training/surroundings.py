"""torch's global state for the time of a run: random generators, deterministic kernels. Afterwards as it was."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def surroundings(*, deterministic: bool, device: torch.device) -> Iterator[None]:
    on_cuda = device.type == "cuda"
    random = torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_cuda else None
    modes = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        if deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, before its first call
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        yield
    finally:
        torch.use_deterministic_algorithms(modes[0], warn_only=modes[1])
        torch.backends.cudnn.benchmark = benchmark
        torch.set_rng_state(random[0])
        if random[1] is not None:
            torch.cuda.set_rng_state(random[1], device)
