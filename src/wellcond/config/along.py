"""Judges along the way: what is asked of a model at intervals of its training."""

from dataclasses import dataclass
from typing import Literal

from .checks import check_at_least, check_mask_values

TITLES = {  # (judge, its number) → words; the first number of a judge stands for it
    ("knn", "top1"): "k-NN top-1, %",
    ("linear", "top1"): "linear probe top-1, %",
    ("segmentation", "miou"): "dense probe mIoU, %",
    ("segmentation", "miou_multi_scale"): "dense probe mIoU of four layers, %",
    ("discovery", "corloc"): "CorLoc, %",
    ("discovery", "foreground_iou"): "foreground IoU, %",
    ("pca", "explained"): "variance in three components, %",
}
JUDGES = tuple(dict.fromkeys(judge for judge, _ in TITLES))


@dataclass(frozen=True, kw_only=True)
class AlongConfig:
    """What `wellcond evaluate` would say of the last layer, every few epochs; its words are the same.

    Of several processes the first judges, and the others wait for it, up to twelve hours.
    """

    judges: tuple[str, ...] = ()
    """knn, linear, segmentation, discovery, pca; JUDGE=SOURCE on other pictures than the run's own."""
    every: int = 10
    """Epochs between; 0: only at the end, when they are asked in any case."""
    where: tuple[str, ...] = ()
    """Only pictures with FIELD=VALUE, for masks and boxes: bbox_source=voc2012."""
    size: int | None = None
    """Side in pixels: of the squares for segmentation; the shorter one for discovery and pca."""
    foreground: tuple[int, ...] = ()
    """Mask values that are the object; none: all but 0."""
    void: tuple[int, ...] = (255,)
    """Mask values that do not count."""
    boxes: Literal["corners", "sizes"] = "corners"
    """Boxes in parquet files are x0, y0, x1, y1 or x, y, width, height."""
    probe_epochs: int = 50
    """Epochs of the linear probe."""
    segmentation_epochs: int = 20
    """Epochs of the dense probe."""
    batch_size: int = 256
    """Images at once."""

    def __post_init__(self) -> None:
        for word in self.judges:
            judge, equals, source = word.partition("=")
            if judge not in JUDGES or (equals and not source):
                raise ValueError(
                    f"along.judges has {word!r}; choose from {', '.join(JUDGES)}, each alone or as JUDGE=SOURCE"
                )
        if len(set(self.judges)) < len(self.judges):
            raise ValueError(f"along.judges is {' '.join(self.judges)}; name each once")
        check_at_least("along.every", self.every, 0, example=10)
        for name in ("probe_epochs", "segmentation_epochs", "batch_size"):
            check_at_least(f"along.{name}", getattr(self, name), 1)
        if self.size is not None:
            check_at_least("along.size", self.size, 1, example=224)
        for name in ("foreground", "void"):
            check_mask_values(f"along.{name}", getattr(self, name))

    def asked(self) -> tuple[tuple[str, str | None], ...]:
        """(judge, source), None for the run's own pictures.

        >>> AlongConfig(judges=("knn", "discovery=voc")).asked()
        (('knn', None), ('discovery', 'voc'))
        """
        pairs = (word.partition("=") for word in self.judges)
        return tuple((judge, source or None) for judge, _, source in pairs)

    def due(self, epoch: int, last: bool) -> bool:
        """At the end of this epoch?"""
        return bool(self.judges) and (last or bool(self.every and epoch % self.every == 0))
