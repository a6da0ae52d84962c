"""What a judge is, and which there are.

A judge looks at a `Subject` and yields (name, value) pairs. It gets both halves of the set, for judges that learn
something of their own on the training half (neighbours, a linear probe) as well as for those that only count; what a
judge needs besides (masks, boxes) belongs to the records of the source behind it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from wellcond.evaluation.accuracy import count_correct

Half = Literal["train", "val"]
Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A trained model, in eval mode on its device, and the pictures to judge it on."""

    model: nn.Module
    forward: Callable[[Tensor], Tensor]
    """The model's call in the precision that it was trained in."""
    batches: Callable[[Half], Batches]
    """Normalised images (B, C, H, W) and labels (B,) of a half, each picture once, in order, without augmentation."""
    num_classes: int


Judge = Callable[[Subject], Iterator[tuple[str, float]]]


def judge_accuracy(subject: Subject) -> Iterator[tuple[str, float]]:
    """Top-1 and top-5 in percent over the validation half, and how many images that was."""
    top1, top5, images = count_correct(subject.model, subject.batches("val"), forward=subject.forward).tolist()
    yield "top1", 100 * top1 / images
    yield "top5", 100 * top5 / images
    yield "images", images


JUDGES: dict[str, Judge] = {"accuracy": judge_accuracy}
