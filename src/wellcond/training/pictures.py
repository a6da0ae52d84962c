"""Both halves of a run's data, or of other data, as normalised batches of every picture once."""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence

import torch
from torch import Tensor

from wellcond.config import TrainConfig
from wellcond.data.augment import evaluation
from wellcond.data.cache import Cache, open_cache
from wellcond.data.feeds import check_labels, check_same_classes, open_feed
from wellcond.data.fingerprints import fingerprint
from wellcond.data.progress import Bar, bar
from wellcond.data.records import Source
from wellcond.data.sampling import evaluation_batches
from wellcond.data.splits import open_split
from wellcond.evaluation import Half
from wellcond.runs import CLASSES


def as_evaluate(option: str) -> str:
    """How `wellcond evaluate` spells an option."""
    return f"--{option}"


class Pictures:
    """`batches("val")` of `source`, or of the run's own where that is None; decoded when first asked for.

    `own_head`: its classes must be the model's, because the model's own head is judged; probes bring their own.
    `classes`: their names where the run knows them, in the order of its labels.
    `spelled`: options as the user knows them, for what is wrong with the pictures.
    """

    def __init__(
        self, config: TrainConfig, source: str | None, device: torch.device, batch_size: int, *, own_head: bool = True,
        classes: Sequence[str] = (), progress: Bar = bar, spelled: Callable[[str], str] = as_evaluate,
    ) -> None:  # fmt: skip
        self.config, self.device, self.batch_size, self.own_head = config, device, batch_size, own_head
        self.classes, self.progress, self.spelled = list(classes), progress, spelled
        self.sources: dict[Half, str] = {"train": source or config.data.train, "val": source or config.data.val}

    def check(self) -> None:
        """ValueError where there are no validation pictures, or their classes are not the model's."""
        self._cache("val")

    def check_halves(self) -> None:
        """ValueError where the training pictures have other classes; for what learns on them."""
        check_same_classes(self._cache("train"), self._cache("val"))

    def tell_of_one_half(self, judges: Collection[str]) -> None:
        """A warning where judges that learn are asked about the very pictures that they learned on."""
        train, val = self.source("train"), self.source("val")
        if (train.title, len(train)) == (val.title, len(val)) and fingerprint(train) == fingerprint(val):
            warnings.warn(
                f"{val.title} has no train and val of its own: {', '.join(sorted(judges))} will be asked about the "
                f"pictures learned from, which flatters; give {self.spelled('data')} with both",
                stacklevel=2,
            )

    def source(self, half: Half) -> Source:
        try:
            return open_split(self.sources[half], half, image_size=self.config.data.image_size)
        except ValueError as error:
            raise ValueError(f"{error}; say where with {self.spelled('data')}") from None

    def _cache(self, half: Half) -> Cache:
        data = self.config.data
        cache = open_cache(self.source(half), data.image_size, data.cache, progress=self.progress)
        num_classes = self.config.model.num_classes if self.own_head else max(1, cache.meta.num_classes)
        # a folder's classes are numbered in its own order, so fewer of them would be other ones
        if self.own_head and cache.meta.classes and len(cache.meta.classes) != num_classes:
            raise ValueError(
                f"{cache.meta.title} has {len(cache.meta.classes)} classes, but the run was trained on {num_classes}; "
                f"give {self.spelled('data')} with the same classes"
            )
        check_labels(cache, num_classes)
        if self.own_head and self.classes and cache.meta.classes:
            self._check_names(cache)
        return cache

    def _check_names(self, cache: Cache) -> None:
        """ValueError where a label means another class than it meant in training: it would be counted by its number."""
        for label, (known, found) in enumerate(zip(self.classes, cache.meta.classes, strict=False)):
            if known != found:
                raise ValueError(
                    f"label {label} is {found!r} in {cache.meta.title}, but the run was trained with {known!r}; "
                    f"give {self.spelled('data')} with the same classes, or, where only names differ, move the run's "
                    f"{CLASSES} away"
                )

    def batches(self, half: Half) -> Iterator[tuple[Tensor, Tensor]]:
        """Images (B, C, H, W), labels (B,) on the device; the last batch may be short."""
        data, cache = self.config.data, self._cache(half)
        feed = open_feed(cache, self.device, data.resident, data.workers)
        with self.progress(f"judging on {cache.meta.title}", len(cache)) as advance:
            for raw, labels in feed.batches(evaluation_batches(len(cache), self.batch_size)):
                yield evaluation(raw, data.image_size, data.mean, data.std), labels
                advance(len(labels))
