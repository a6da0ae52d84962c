"""One training step: forward, cross-entropy, backward, AdamW; compiled, or captured whole as a CUDA graph.

And what it weighs, measured apart from the timing (the counters cost a synchronisation).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Step:
    """``step(images, labels)`` trains ``model`` once, with bf16 autocast on CUDA.

    Gradients are dropped at the end of a step, so that between steps a variant holds its weights and AdamW's
    two moments, and nothing else.
    """

    pool_bytes = 0  # memory that a graph keeps to itself

    def __init__(self, model: nn.Module, *, device: str, compiled: bool, capturable: bool = False):
        self.model = model.to(device).train()
        self.forward = torch.compile(self.model, dynamic=False) if compiled else self.model
        self.on_cuda = device == "cuda"
        # The weights' bf16 copies must not outlive a captured step, hence no cache there.
        self.cache_casts = not capturable
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-4, weight_decay=0.05, fused=self.on_cuda, capturable=capturable
        )

    def autocast(self) -> torch.autocast:
        device = "cuda" if self.on_cuda else "cpu"
        return torch.autocast(device, torch.bfloat16, enabled=self.on_cuda, cache_enabled=self.cache_casts)

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        with self.autocast():
            loss = functional.cross_entropy(self.forward(images), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def num_bytes(self) -> int:
        """What stays allocated between steps: weights, buffers, moments."""
        state = [t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, Tensor)]
        return num_bytes([*self.model.parameters(), *self.model.buffers(), *state])


class CapturedStep:
    """The whole step as one CUDA graph over static buffers: a call copies the batch in and replays.

    A graph keeps the memory of its intermediate results to itself; ``pool_bytes`` is the most that the
    capture had allocated at one moment, over what was there before.
    """

    def __init__(self, step: Step, images: Tensor, labels: Tensor, *, warmup: int = 3):
        self.step = step
        self.images, self.labels = images.clone(), labels.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # capture wants compilation and lazy initialisation done on another stream
            for _ in range(warmup):
                step(self.images, self.labels)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        before = torch.cuda.memory_allocated()
        self.pool_bytes = peak_memory(self._capture) - before

    def _capture(self) -> None:
        with torch.cuda.graph(self.graph):
            self.step(self.images, self.labels)

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        self.images.copy_(images)
        self.labels.copy_(labels)
        self.graph.replay()

    def num_bytes(self) -> int:
        return self.step.num_bytes() + num_bytes([self.images, self.labels])


def peak_memory(call: Callable[[], Any]) -> int:
    """The most bytes allocated at one moment of ``call``, everything resident before it included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def num_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of these tensors. Their storages are assumed to be distinct."""
    return sum(t.numel() * t.element_size() for t in tensors)
