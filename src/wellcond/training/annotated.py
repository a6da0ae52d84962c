"""Pictures with masks and boxes, for judges: at their own size, or as squares with their masks.

Nothing is cached on disk. Squares are kept in memory as bytes up to KEEP, because a dense probe sees them every epoch;
a larger set is decoded again each time.
"""

import copy
import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from wellcond.data.annotations import (
    BoxForm,
    box_field,
    boxes_of,
    check_boxes,
    check_mask,
    mask_field,
    mask_of,
    matching,
)  # fmt: skip
from wellcond.data.augment.normalising import normalise
from wellcond.data.progress import Bar, bar
from wellcond.data.reading import in_order
from wellcond.data.records import Record, Source
from wellcond.evaluation import Scene
from wellcond.training.pictures import as_evaluate

KEEP = 4 << 30  # bytes
MOST_SQUARES = 32  # in a batch: a head has a number for each pixel and class
VOID = 255
OURS = "box"  # of the procedural pictures
Mask = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class View:
    """How pictures are to be read."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None  # of the shorter side; None: as they are
    square: tuple[int, int] | None  # (height, width) for a model that takes nothing else
    foreground: tuple[int, ...]
    void: tuple[int, ...]
    boxes: BoxForm
    where: tuple[str, ...]
    progress: Bar = bar
    spelled: Callable[[str], str] = as_evaluate  # options, as the user knows them

    def normalised(self, pixels: NDArray[np.uint8]) -> Tensor:
        """uint8 (…, H, W, 3) → float32 (…, 3, H, W)."""
        raw = torch.from_numpy(np.array(pixels)).movedim(-1, -3)
        return normalise(raw if raw.ndim == 4 else raw[None], self.mean, self.std).reshape(raw.shape)

    def without_void(self, mask: Mask) -> Mask:
        return np.where(np.isin(mask, self.void), np.uint8(VOID), mask)

    def objects(self, mask: Mask) -> Mask:
        """1 object, 0 not, 255 void."""
        chosen = np.isin(mask, self.foreground) if self.foreground else mask > 0
        return np.where(np.isin(mask, self.void), np.uint8(VOID), chosen.astype(np.uint8))


class Scenes:
    """Pictures of a source at their own size, in its order, with boxes and masks as far as it has them.

    `only_seen`: masks and boxes are welcome but not needed (PCA maps).
    """

    def __init__(self, source: Source, view: View, *, only_seen: bool = False) -> None:
        self.source, self.view = source, view
        self.fields = [name for name in (box_field(source), mask_field(source)) if name]
        if not self.fields and not only_seen:
            raise ValueError(
                f"{source.title} has neither boxes nor masks to judge discovery by; "
                f"give a set with {view.spelled('data')} that does"
            )
        if mask_field(source) and not only_seen and not view.foreground and not getattr(source, "has_background", True):
            warnings.warn(
                f"the masks of {source.title} have no background: 0 is a class, and all others count as the object; "
                f"say which are objects with {view.spelled('foreground')}",
                stacklevel=2,
            )
        self.chosen = matching(source, view.where, view.spelled("where"))

    def __iter__(self) -> Iterator[Scene]:
        records = self.source.records(self.chosen, self.fields)
        with self.view.progress(f"looking at {self.source.title}", len(self.chosen)) as advance:
            for place, (record, parts) in enumerate(in_order(self._read, records)):
                pixels, boxes, mask = parts
                yield Scene(
                    index=place,
                    name=record.name,
                    image=self.view.normalised(pixels),
                    boxes=None if boxes is None else torch.from_numpy(boxes),
                    mask=None if mask is None else torch.from_numpy(np.array(mask)),
                )
                advance(1)

    def _read(self, record: Record) -> tuple[Record, tuple[NDArray[np.uint8], NDArray[np.float64] | None, Mask | None]]:
        pixels = record.read()
        boxes = mask = None
        if (name := box_field(self.source)) is not None:
            boxes = boxes_of(
                record.extras[name],
                record.name,
                self.view.boxes,
                exclusive=name == OURS,
                option=self.view.spelled("boxes"),
            )
            form_is_known = isinstance(record.extras[name], np.ndarray)  # VOC's and COCO's
            check_boxes(boxes, pixels, record.name, in_pixels=form_is_known)
        if mask_field(self.source) and (mask := mask_of(record.extras["mask"], record.name, record.label)) is not None:
            check_mask(mask, pixels, record.name)
            mask = self.view.objects(mask)
        return record, self._resized(pixels, boxes, mask)

    def _resized(self, pixels: NDArray[np.uint8], boxes: NDArray[np.float64] | None, mask: Mask | None):
        height, width = pixels.shape[:2]
        if self.view.square is not None:
            new = self.view.square
        elif self.view.size is not None:
            times = self.view.size / min(height, width)
            new = (max(1, round(height * times)), max(1, round(width * times)))
        else:
            return pixels, boxes, mask
        pixels = np.asarray(Image.fromarray(pixels).resize((new[1], new[0]), Image.Resampling.BICUBIC))
        if boxes is not None:
            boxes = boxes * np.tile([new[1] / width, new[0] / height], 2)
        if mask is not None:
            mask = np.asarray(Image.fromarray(mask).resize((new[1], new[0]), Image.Resampling.NEAREST))
        return pixels, boxes, mask


class Squares:
    """Batches of squares with masks (B, S, S) int64 on the device; its length is the number of batches.

    `shuffled`: in another order every pass, the same in every run; a set that memory does not hold comes in its own.
    """

    def __init__(
        self, source: Source, view: View, side: int, batch_size: int, device: torch.device, *, shuffled: bool = False
    ) -> None:
        if mask_field(source) is None:
            raise ValueError(
                f"{source.title} has no masks to judge segmentation by; "
                f"give a set with {view.spelled('data')} that does"
            )
        self.source, self.view, self.side = source, view, side
        self.batch_size, self.device = min(batch_size, MOST_SQUARES), device
        self.shuffled = shuffled
        self.rng = np.random.default_rng(0) if shuffled else None
        self.chosen = matching(source, view.where, view.spelled("where"))
        self.kept: list[tuple[NDArray[np.uint8], Mask]] = []  # one list of all copies: filled in place

    def anew(self) -> "Squares":
        """The same, at its first pass: who is judged later sees the same order, and what was decoded once stays."""
        other = copy.copy(self)
        other.rng = np.random.default_rng(0) if self.shuffled else None
        return other

    def __len__(self) -> int:
        return math.ceil(len(self.chosen) / self.batch_size)

    @property
    def num_pictures(self) -> int:
        return len(self.chosen)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _, images, masks in self.numbered():
            yield images(), masks

    def numbered(self) -> Iterator[tuple[Tensor, Callable[[], Tensor], Tensor]]:
        """Batches with the numbers of their pictures, which whoever has seen them before need not make ready again."""
        if self.rng is not None:
            self.decode()
        squares = enumerate(self.squares()) if self.rng is None or not self._fits else self._shuffled(self.rng)
        while batch := list(islice(squares, self.batch_size)):
            numbers, pixels, masks = zip(*((number, *square) for number, square in batch), strict=True)
            yield torch.tensor(numbers, device=self.device), partial(self._images, pixels), self._masks(masks)

    def decode(self) -> None:
        """All of them now, where memory holds them: what is wrong with a picture is told before the work."""
        if self._fits and len(self.kept) < len(self.chosen):
            deque(self.squares(), maxlen=0)

    @property
    def _fits(self) -> bool:
        return len(self.chosen) * self.side**2 * 4 <= KEEP

    def _shuffled(self, rng: np.random.Generator) -> Iterator[tuple[int, tuple[NDArray[np.uint8], Mask]]]:
        return ((number, self.kept[number]) for number in rng.permutation(len(self.kept)).tolist())

    def squares(self) -> Iterator[tuple[NDArray[np.uint8], Mask]]:
        """Pixels (S, S, 3) and class numbers (S, S), 255 void."""
        if len(self.kept) == len(self.chosen):
            yield from self.kept
            return
        kept: list[tuple[NDArray[np.uint8], Mask]] = []
        with self.view.progress(f"decoding {self.source.title}", len(self.chosen)) as advance:
            for one in in_order(self._read, self.source.records(self.chosen, ["mask"])):
                if self._fits:
                    kept.append(one)
                yield one
                advance(1)
        self.kept[:] = kept

    @cached_property
    def num_classes(self) -> int:
        """As the layout says, or one more than the largest number in the masks."""
        if known := getattr(self.source, "num_segments", 0):
            return int(known)
        largest = max((int(mask[mask != VOID].max(initial=0)) for _, mask in self.squares()), default=0)
        return largest + 1

    def _read(self, record: Record) -> tuple[NDArray[np.uint8], Mask]:
        pixels, mask = record.read(), mask_of(record.extras["mask"], record.name, record.label)
        if mask is None:
            raise ValueError(
                f"{record.name} of {self.source.title} has no mask; "
                f"leave it out, for example by {self.view.spelled('where')}"
            )
        check_mask(mask, pixels, record.name)
        self._check_classes(mask, record.name)
        size = (self.side, self.side)
        fitted = ImageOps.fit(Image.fromarray(pixels), size, method=Image.Resampling.BICUBIC)
        cut = ImageOps.fit(Image.fromarray(mask), size, method=Image.Resampling.NEAREST)
        return np.asarray(fitted), self.view.without_void(np.asarray(cut))

    def _check_classes(self, mask: Mask, name: str) -> None:
        """ValueError for a class that the set, as its makers laid it out, does not have."""
        known, counted = getattr(self.source, "num_segments", 0), mask[~np.isin(mask, (*self.view.void, VOID))]
        if known and (largest := int(counted.max(initial=0))) >= known:
            raise ValueError(
                f"the mask of {name} holds class {largest}, but {self.source.title} has 0 … {known - 1}; "
                f"mend the mask, or leave the class out with {self.view.spelled('void')}"
            )

    def _images(self, pixels: Sequence[NDArray[np.uint8]]) -> Tensor:
        return self.view.normalised(np.stack(pixels)).to(self.device)

    def _masks(self, masks: Sequence[Mask]) -> Tensor:
        return torch.from_numpy(np.stack(masks)).to(self.device).long()
