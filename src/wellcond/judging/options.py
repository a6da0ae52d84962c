"""The options of `wellcond evaluate`."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from ..config.checks import check_at_least, check_mask_values

JudgeName = Literal["accuracy", "knn", "linear", "segmentation", "discovery", "pca"]
SHOWING = {"segmentation", "discovery", "pca"}  # judges whose findings can be seen
OBJECTS = {"discovery", "pca"}  # those that look at objects; segmentation tells all classes apart
HEEDING = {"size": SHOWING, "where": SHOWING, "void": SHOWING, "foreground": OBJECTS, "boxes": OBJECTS}


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Judge trained runs; the numbers go into the evaluation.json of each, pictures to a page."""

    runs: tuple[Path, ...]
    """Run directories: the --out of wellcond train."""
    judges: Annotated[tuple[JudgeName, ...], tyro.conf.arg(name="with")] = ("accuracy",)
    """accuracy: the model's own head; linear: a probe; segmentation: a dense probe, mIoU; discovery: TokenCut, CorLoc
    and foreground IoU; pca: maps of patch features."""
    layers: tuple[str, ...] = ("last",)
    """Of which blocks: last, all, or numbers from 0 on."""
    data: str | None = None
    """Other pictures than the run's own: a folder with train/ and val/, parquet shards, VOC, COCO, ADE20K."""
    where: tuple[str, ...] = ()
    """Only pictures with FIELD=VALUE (masks and boxes)."""
    size: int | None = None
    """Side in pixels, or the shorter one; none: the model's for segmentation, else the picture's."""
    foreground: tuple[int, ...] = ()
    """Mask values that are the object; none: all but 0."""
    void: tuple[int, ...] = (255,)
    """Mask values that do not count."""
    boxes: Literal["corners", "sizes"] = "corners"
    """In parquet files: x0, y0, x1, y1 or x, y, width, height."""
    k: int = 20
    """Neighbours of knn."""
    temperature: float = 0.07
    """Of the neighbours' votes."""
    pool: Literal["auto", "class", "mean"] = "auto"
    """What knn and linear see: the class token, or the mean of patches; auto: what the head reads."""
    probe_epochs: int = 50
    """Epochs of the linear probe."""
    segmentation_epochs: int = 20
    """Epochs of the dense probe."""
    pictures: int = 8
    """On the page, the first of the set."""
    html: Path | None = None
    """The page; none: evaluation.html, of one run in its own directory."""
    json: bool = False
    """Print the new rows of evaluation.json, no tables."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where there is one."""
    batch_size: int = 256
    """Images at once."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("evaluate needs a run directory: wellcond evaluate runs/x")
        if not self.judges:
            raise ValueError("with names no judge; say --with accuracy")
        words = [word for word in self.layers if not word.isdecimal()]
        if not self.layers or (words and self.layers not in (("last",), ("all",))):
            raise ValueError(
                f"layers is {' '.join(self.layers) or 'empty'}; say last, all, or numbers such as 2 5 8 11"
            )
        for name in ("batch_size", "k", "probe_epochs", "segmentation_epochs", "pictures"):
            check_at_least(name.replace("_", " "), getattr(self, name), 1)
        if self.size is not None:
            check_at_least("size", self.size, 1, example=224)
        for name, heeding in HEEDING.items():
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default and not heeding & set(self.judges):  # no number would hang on it
                told = " ".join(map(str, value)) if isinstance(value, tuple) else value
                who = ", ".join(sorted(heeding))
                raise ValueError(f"{name} is {told!r}, which only {who} heed; leave it out, or add one --with")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}; choose more than 0, for example 0.07")
        for name in ("foreground", "void"):
            check_mask_values(name, getattr(self, name))

    @property
    def chosen_layers(self) -> "Literal['last', 'all'] | tuple[int, ...]":
        if self.layers == ("last",):
            return "last"
        return "all" if self.layers == ("all",) else tuple(int(word) for word in self.layers)
