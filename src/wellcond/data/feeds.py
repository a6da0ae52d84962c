"""Raw batches on the device, from a cache: resident there, or streamed to it. Floor 6; needs torch.

Resident: the whole set is one uint8 tensor on the device, and a batch is a gather, which fits into a CUDA graph with
the step. Streamed: processes read the images of coming batches into pinned memory (`readers.py`), and a thread carries
them over on a stream of its own while the device computes. Both give the same bits; on the CPU the mapped file is the
memory. (The thread calls CUDA: a graph that is captured meanwhile needs `capture_error_mode="thread_local"`.)

`batches` takes indices, (B,) int64 each, and gives raw uint8 (B, 3, S, S) and labels (B,) on the device.

A set is resident if it takes at most SHARE of the free memory of the device: the rest is for the model.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .cache import Cache
from .readers import Readers

SHARE = 0.4


def open_feed(
    cache: Cache,
    device: str | torch.device,
    resident: Literal["auto", "yes", "no"] = "auto",
    workers: int = 4,
) -> "Resident | Streamed":
    """The feed that `resident` asks for; auto measures the free memory."""
    device = torch.device(device)
    if resident == "yes" or (resident == "auto" and fits(cache.images.nbytes, device)):
        return Resident(cache, device)
    return Streamed(cache, device, workers)


def fits(nbytes: int, device: torch.device) -> bool:
    """Is it at most SHARE of what is free there? On the CPU the mapped file takes no memory of its own."""
    if device.type != "cuda":
        return True
    return nbytes <= SHARE * torch.cuda.mem_get_info(device)[0]


def check_labels(cache: Cache, num_classes: int) -> None:
    """ValueError if a model of `num_classes` cannot be trained on these labels."""
    if not cache.meta.num_classes or (cache.labels < 0).any():
        missing = (
            "no labels" if not cache.meta.num_classes else f"{int((cache.labels < 0).sum())} images without a label"
        )
        raise ValueError(
            f"{cache.meta.title} has {missing}; give a set in which every image has one, "
            "of an image folder one with every image in the folder of its class"
        )
    if cache.meta.num_classes > num_classes:
        raise ValueError(
            f"{cache.meta.title} has {cache.meta.num_classes} classes, but the model has {num_classes}; "
            f"give other pictures, or train with --model.num-classes {cache.meta.num_classes}"
        )


def check_same_classes(train: Cache, val: Cache) -> None:
    """ValueError if the halves name other classes: folders are numbered in their own order, so labels would differ."""
    if not train.meta.classes or not val.meta.classes or train.meta.classes == val.meta.classes:
        return
    alone = sorted(set(train.meta.classes) ^ set(val.meta.classes))
    raise ValueError(
        f"{train.meta.title} has {len(train.meta.classes)} classes and {val.meta.title} {len(val.meta.classes)}; "
        f"{alone[0] if alone else 'their order'!r} is not in both; give both halves the same classes"
    )


class Resident:
    """`images` (N, 3, S, S) uint8 and `labels` (N,) int64 on the device."""

    def __init__(self, cache: Cache, device: torch.device) -> None:
        self.device = device
        try:
            self.images = torch.from_numpy(cache.images).to(device)
        except torch.OutOfMemoryError:
            raise ValueError(
                f"{cache.meta.title} takes {cache.images.nbytes / 1e9:.1f} GB, more than {device} has free; "
                "let it stream: resident no"
            ) from None
        self.labels = torch.from_numpy(cache.labels).to(device)

    def __len__(self) -> int:
        return len(self.images)

    def gather(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """For (B,) int64 on the device: pure tensor work, to be captured with the step."""
        return self.images.index_select(0, indices), self.labels.index_select(0, indices)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        for chosen in indices:
            yield self.gather(chosen.to(self.device, non_blocking=True))


class Streamed:
    """Batches read ahead by `workers` processes; memory holds workers + 2 of them. The first must be the largest."""

    def __init__(self, cache: Cache, device: torch.device, workers: int = 4) -> None:
        self.cache, self.device, self.workers = cache, device, max(1, workers)
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self.cache)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        coming, ahead = iter(indices), self.workers + 2
        if (chosen := next(coming, None)) is None:
            return
        carrier = ThreadPoolExecutor(1, thread_name_prefix="wellcond-carry")
        with (
            closing(Readers(self.cache, count=self.workers, slots=ahead, size=len(chosen))) as readers,
            self._pinned(readers) as slots,
        ):

            def carry(batch: int, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
                readers.wait(batch)
                return self._carried(slots[batch % ahead, : len(rows)], torch.from_numpy(self.cache.labels[rows]))

            waiting: deque[Future[tuple[Tensor, Tensor]]] = deque()
            asked = 0
            try:
                while chosen is not None or waiting:
                    while chosen is not None and len(waiting) < ahead:  # then batch `asked - ahead` has left its slot
                        rows = chosen.numpy()
                        readers.ask(asked, rows)
                        waiting.append(carrier.submit(carry, asked, rows))
                        asked, chosen = asked + 1, next(coming, None)
                    yield self._arrived(*waiting.popleft().result())
            finally:
                readers.end()  # first: the carrier may be waiting for one
                carrier.shutdown(wait=True, cancel_futures=True)

    @contextmanager
    def _pinned(self, readers: Readers) -> Iterator[Tensor]:
        """The memory of the readers as (slots, B, 3, S, S), which the device may read while it computes."""
        shape = (readers.slots, readers.size, *self.cache.images.shape[1:])
        slots = torch.frombuffer(readers.memory, dtype=torch.uint8).view(shape)
        if self._copies is None:
            yield slots
            return
        cuda: Any = torch.cuda.cudart()
        torch.cuda.check_error(cuda.cudaHostRegister(slots.data_ptr(), slots.nbytes, 0))
        try:
            yield slots
        finally:
            torch.cuda.check_error(cuda.cudaHostUnregister(slots.data_ptr()))

    def _carried(self, raw: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """On the device, and the slot is free. In a thread of its own: it waits, not the one that trains."""
        if self._copies is None:
            return raw.to(self.device, copy=True), labels.to(self.device)
        with torch.cuda.stream(self._copies):
            carried = raw.to(self.device, non_blocking=True), labels.to(self.device)
            self._copies.synchronize()
        return carried

    def _arrived(self, raw: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The training stream may use it, and its memory is not given away before that stream is done with it."""
        if self._copies is not None:
            for tensor in (raw, labels):
                tensor.record_stream(torch.cuda.current_stream(self.device))
        return raw, labels
