"""Who is judged: a model, and both halves of the pictures in the forms that judges ask for."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

from wellcond.evaluation import segmentation
from wellcond.evaluation.scenes import Scene
from wellcond.evaluation.settings import Settings

Half = Literal["train", "val"]
Batches = Iterable[tuple[Tensor, Tensor]]
Show = Callable[[str, int, int, Any], None]  # what, layer, number of the picture, how it looks


DEFAULTS = Settings()


def _absent(what: str) -> Callable[[Half], Any]:
    def absent(half: Half) -> Any:
        raise ValueError(f"this judge needs pictures with {what}; give them to the subject")

    return absent


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A trained model, in eval mode on its device, and the pictures to judge it on."""

    model: nn.Module
    forward: Callable[[Tensor], Tensor]
    """The model's call in the precision that it was trained in."""
    batches: Callable[[Half], Batches]
    """Normalised images (B, C, H, W) and labels (B,) of a half, each picture once, in order, without augmentation."""
    scenes: Callable[[Half], Iterable[Scene]] = field(default_factory=lambda: _absent("boxes or masks"))
    """Pictures of a half at their own size, with boxes or masks."""
    segments: "Callable[[Half], segmentation.Batches]" = field(default_factory=lambda: _absent("masks"))
    """Squares of a half with their masks, each picture once, in order."""
    num_segments: int = 0
    """Classes of the masks."""
    settings: Settings = DEFAULTS
    kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What one judge has read and the next may take; a changed subject (`replace`) has its own."""
    show: Show = lambda what, layer, index, value: None
    """Gets what a judge found in the first pictures:
    "object" (box, mask (H, W)), "pca" (h, w, 3) in 0 … 1, "segments" (S, S) class numbers; layer −1 is multi-scale.
    """
