"""The supply of real images: cache, order of samples and augmentation (`wellcond.data`) as the loop asks for them.

Resident images are gathered on the device inside `prepare`, so a captured step holds gather and augmentation; streamed
ones arrive as inputs. Both give the same bits.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from wellcond.config import TrainConfig
from wellcond.data.augment import evaluation
from wellcond.data.cache import Cache, Say, open_cache, outline
from wellcond.data.feeds import Resident, Streamed, check_labels, check_same_classes, open_feed
from wellcond.data.progress import bar
from wellcond.data.records import Source
from wellcond.data.sampling import Sampling, evaluation_batches
from wellcond.data.splits import Split, open_split
from wellcond.data.views import build_fixed_views, build_views
from wellcond.training.beginning import check_classes
from wellcond.training.contents import contents_of
from wellcond.training.processes import Processes
from wellcond.training.supply import Contents, Inputs


@dataclass(frozen=True, kw_only=True)
class Images:
    """Both halves of a set, decoded; where training reads them is made when first asked for. Runs may share it."""

    train: Cache
    val: Cache
    feed_of: Callable[[Cache], Resident | Streamed]

    @cached_property
    def feed(self) -> Resident | Streamed:
        return self.feed_of(self.train)

    @cached_property
    def val_feed(self) -> Resident | Streamed:
        return self.feed_of(self.val)


def open_images(
    config: TrainConfig,
    device: torch.device,
    say: Say = lambda line: None,
    admit: Callable[[Contents], None] = lambda contents: None,
) -> Images:
    """The images that a config names; `say` gets lines about damaged ones and the like.

    `admit` may refuse what they hold, before it is asked whether they suit the model.
    """
    data = config.data

    def opened(name: str, split: Split) -> Cache:
        source = open_split(name, split, image_size=data.image_size)
        return open_cache(source, data.image_size, data.cache, say=say, progress=bar)

    train, val = opened(data.train, "train"), opened(data.val, "val")
    admit(contents_of(train, val))
    if config.objective == "supervised":
        check_halves(train, val, config.model.num_classes)
        if train.meta.fingerprint == val.meta.fingerprint:
            say(f"{val.meta.title} is not split: top-1 and top-5 are of the images trained on; give data.val others")
    feed_of = partial(open_feed, device=device, resident=data.resident, workers=data.workers)
    return Images(train=train, val=val, feed_of=feed_of)


def check_halves(train: Cache, val: Cache, num_classes: int) -> None:
    """ValueError where a model of `num_classes` cannot be trained on the one and judged on the other."""
    check_same_classes(train, val)
    for cache in (train, val):
        check_labels(cache, num_classes)


def check_sources(config: TrainConfig, train: Source, val: Source) -> None:
    """What can be wrong with number and labels of the pictures, told before they are decoded, which may take hours."""
    halves = (outline(train), outline(val)) if config.objective == "supervised" else ()
    if halves:
        check_halves(*halves, config.model.num_classes)
    sampling_of(config, len(train))
    if halves:
        check_classes(config, max(half.meta.num_classes for half in halves))


def sampling_of(config: TrainConfig, length: int) -> Sampling:
    repeats = config.data.augment.repeats
    return Sampling(length=length, batch_size=config.batch_size, seed=config.seed, repeats=repeats)


class ImageSupply:
    """Batches of one process from the sources of a config, or from `images` that are open already."""

    def __init__(
        self,
        config: TrainConfig,
        processes: Processes,
        say: Say = lambda line: None,
        images: Images | None = None,
        admit: Callable[[Contents], None] = lambda contents: None,
    ) -> None:
        self.config, self.processes = config, processes
        data = config.data
        check_pairs(config, processes)
        self.augment = build_views(config)  # which may refuse: before anything is decoded
        images = images or open_images(config, processes.device, say, admit)
        train = images.train
        if len(images.val) < processes.world_size:
            raise ValueError(
                f"{data.val!r} has {len(images.val)} validation images for {processes.world_size} processes; "
                "give at least one for each"
            )
        # of both: labels without names do not say how many there are, and a half may lack the last one
        self.num_classes = max(train.meta.num_classes, images.val.meta.num_classes)
        self.classes: Sequence[str] = train.meta.classes
        self.fingerprint, self.val_fingerprint = train.meta.fingerprint, images.val.meta.fingerprint
        self.contents = contents_of(train, images.val)
        self.sampling = sampling_of(config, len(train))
        self.steps_per_epoch = self.sampling.steps_per_epoch
        self.feed, self.val_feed = images.feed, images.val_feed
        self.coming: Iterator[tuple[Tensor, Tensor]] | None = None  # streamed batches from `next_step` on
        self.next_step = -1

    def indices(self, step: int) -> Tensor:
        return self.sampling.indices(step)

    def inputs(self, step: int) -> Inputs:
        keys = self._carried(self.processes.part(self.sampling.keys(step)))
        known = {"keys": keys, "step_key": self._carried(self.sampling.step_key(step))}
        if isinstance(self.feed, Resident):
            return {"indices": self._carried(self.processes.part(self.indices(step))), **known}
        if self.coming is None or step != self.next_step:  # the first, or after a rollback
            self.close()
            self.coming = self.feed.batches(self._from(step))
        raw, labels = next(self.coming)
        self.next_step = step + 1
        return {"raw": raw, "labels": labels, **known}

    def _from(self, step: int) -> Iterator[Tensor]:
        for later in range(step, self.config.epochs * self.steps_per_epoch):
            yield self.processes.part(self.indices(later))

    def _carried(self, tensor: Tensor) -> Tensor:
        """To the device without a wait; torch keeps the pinned memory until the copy is done."""
        if self.processes.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.processes.device, non_blocking=True)

    def prepare(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        if isinstance(self.feed, Resident):
            raw, labels = self.feed.gather(inputs["indices"])
        else:
            raw, labels = inputs["raw"], inputs["labels"]
        return self.augment(raw, labels, inputs["keys"], inputs["step_key"])

    def validation(self) -> Iterable[tuple[Tensor, Tensor]]:
        """This process's share; the last batch is filled up (label −1), so that every batch has one shape. Without
        labels it is short."""
        size = self.config.batch_size // (self.processes.world_size * self.config.accumulate)
        chosen = evaluation_batches(len(self.val_feed), size, self.processes.rank, self.processes.world_size)
        if self.config.objective != "supervised":
            yield from self._fixed_views(list(chosen))
            return
        for raw, labels in self.val_feed.batches(chosen):
            missing = size - len(labels)
            if missing:
                raw = torch.cat([raw, raw[:1].expand(missing, *raw.shape[1:])])
                labels = torch.cat([labels, labels.new_full((missing,), -1)])
            yield self._normalised(raw), labels

    def _fixed_views(self, chosen: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        views = build_fixed_views(self.config)
        for numbers, (raw, _) in zip(chosen, self.val_feed.batches(chosen), strict=True):
            yield views(raw, numbers.to(raw.device))

    def fixed_images(self, count: int) -> Tensor:
        ((raw, _),) = self.val_feed.batches([spread(len(self.val_feed), count)])
        return self._normalised(raw)

    def _normalised(self, raw: Tensor) -> Tensor:
        data = self.config.data
        return evaluation(raw, data.image_size, data.mean, data.std)

    def close(self) -> None:
        if self.coming is not None:
            self.coming.close()  # type: ignore[attr-defined]  # a generator: its readers end
            self.coming = None


def spread(length: int, count: int) -> Tensor:
    """Indices over the whole of a set, which may be sorted by class."""
    return torch.linspace(0, length - 1, min(count, length)).round().long()


def check_pairs(config: TrainConfig, processes: Processes) -> None:
    """Mixup pairs neighbours, so every chunk must hold whole pairs."""
    chunk = config.batch_size // (processes.world_size * config.accumulate)
    if (config.data.augment.mixup or config.data.augment.cutmix) and chunk % 2:
        raise ValueError(
            f"batch_size {config.batch_size} gives {processes.world_size} processes × accumulate {config.accumulate} "
            f"chunks of {chunk} images, and mixup and CutMix need an even number; choose a multiple of "
            f"{2 * processes.world_size * config.accumulate}"
        )
