"""One measurement: the model's own forward pass, in eval mode and without gradients, on a few images.

Not the live pass of training: a compiled or captured one shows nothing, an adapted one would be compiled anew, and
drop-path would be measured. Modes, random states and buffers are left as they were.

Many small decompositions cost a GPU far more than one of all of them, so sites of one shape wait for each other. The
numbers come to the host by a copy that nobody waits for.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.blocks import adapted_blocks, record
from wellcond.blocks.modes import uncached_autocast
from wellcond.monitor.budget import Clock, Span, span_on
from wellcond.probes.prober import Prober, is_unchanged
from wellcond.probes.probing import reading
from wellcond.probes.quantities import of_tokens
from wellcond.probes.rows import Measured, Place

_AT_ONCE = 1 << 24  # entries of tokens that wait: 64 MiB in float32, a small part of what training needs


class Together(Prober):
    """A prober that decomposes sites of one shape in one call. Whatever is written over later was copied before."""

    def __init__(self, wanted: set[str]) -> None:
        super().__init__(wanted)
        self.num_waiting = 0
        self.waiting: dict[tuple[Any, ...], list[tuple[Tensor, list[Place]]]] = {}
        self.seen: tuple[Tensor, int, list[Place]] | None = None  # the last site: mostly also the next block's input

    @torch.no_grad()
    def __call__(self, layer: int, site: str, X: Tensor) -> None:
        X = X.detach()
        if self.of_tokens and not self._again((layer, site), X):
            places = [(layer, site)]
            self.seen = None if X.is_inference() else (X, X._version, places)
            copied = X.to(X.dtype if X.dtype == torch.float64 else torch.float32, copy=True)
            self.waiting.setdefault((*X.shape, copied.dtype, X.device), []).append((copied, places))
            self.num_waiting += X.numel()
        if self.of_attention and site == "sab_in" and layer not in self.no_map:
            self._attention(layer, X, self.num_prefix[layer])
        if self.num_waiting >= _AT_ONCE:
            self.flush()

    def _again(self, place: Place, X: Tensor) -> bool:
        """Is X the tensor of the last site, unchanged? Then its numbers are also those of this place."""
        if self.seen is None or X.is_inference():
            return False
        Y, version, places = self.seen
        if not is_unchanged(X, Y, version):
            return False
        places.append(place)
        return True

    @torch.no_grad()
    def flush(self) -> None:
        """Measure what waits."""
        for group in self.waiting.values():
            B = len(group[0][0])
            found = of_tokens(torch.cat([X for X, _ in group]), self.of_tokens)
            parts = {name: values.split(B) for name, values in found.items()}
            for i, (X, places) in enumerate(group):
                for place in places:
                    self._keep(place, X, {name: values[i] for name, values in parts.items()})
        self.waiting, self.num_waiting, self.seen = {}, 0, None


@dataclass
class Pending:
    """A measurement that has been started; its numbers may still be on their way."""

    step: int
    prober: Prober
    values: Tensor  # on the host
    span: Span

    def measured(self) -> Measured:
        """Once `span.over()`."""
        self.prober.merge(self.values.numpy())
        return self.prober.measured()


def start(model: nn.Module, images: Tensor, wanted: Collection[str], step: int, now: Clock) -> Pending:
    """Measure `model`, a plain module, on images that fit it. Does not wait for a GPU once its libraries are loaded."""
    prober = Together(set(wanted))
    with span_on(images.device, now) as span, _undisturbed(model, images.device), record(model, prober, images[:2]):
        blocks = adapted_blocks(model)
        prober.begin(blocks, [0] * len(blocks))
        with torch.no_grad():
            model(images)
        prober.flush()
        values = prober.numbers()
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
            values = host.copy_(values, non_blocking=True)
        else:
            values = values.cpu()
    return Pending(step, prober, values, span)


@contextmanager
def _undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, the caller's autocast without its cache, and random states that are put back.

    A weight that autocast casts here, without gradients, must not be found by a later pass that needs them.
    """
    kind = device.type
    with (
        torch.random.fork_rng(devices=[device] if kind == "cuda" else []),
        uncached_autocast(kind),
        reading(model),
    ):
        yield


def plain(model: nn.Module) -> nn.Module:
    """The model inside the wrappers that only call it: torch.compile's, DistributedDataParallel, DataParallel."""
    while True:
        if "_orig_mod" in model._modules:
            model = model.get_submodule("_orig_mod")
        elif isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        else:
            return model


def check_whole(model: nn.Module) -> None:
    """ValueError where parameters are sharded over processes: a pass on one of them alone would wait for ever."""
    kinds = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    if kinds & {"FullyShardedDataParallel", "FSDPModule"}:
        raise ValueError(
            f"{type(model).__name__} is sharded (FSDP), and the monitor's pass runs on one process alone; "
            "monitor a model that is whole on each process, e.g. under DistributedDataParallel"
        )
