"""A model and a source of pictures → a Subject of the judges: in the precision of training, with masks and boxes."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import cache
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from wellcond.data.records import Source, has_labels
from wellcond.evaluation import Backbone, Half, Subject
from wellcond.training.annotated import Scenes, Squares, View
from wellcond.training.pictures import Pictures
from wellcond.training.step import DTYPES

PROBING = {"knn", "linear"}
LEARNING = {*PROBING, "segmentation"}  # on one half, and are asked on the other
LABELLED = {"accuracy", *PROBING}


class Looking(Protocol):
    """How pictures with masks and boxes are to be read: the words of `wellcond evaluate`, and of a config's `along`."""

    @property
    def size(self) -> int | None: ...
    @property
    def where(self) -> tuple[str, ...]: ...
    @property
    def foreground(self) -> tuple[int, ...]: ...
    @property
    def void(self) -> tuple[int, ...]: ...
    @property
    def boxes(self) -> Literal["corners", "sizes"]: ...
    @property
    def batch_size(self) -> int: ...


def judges_without_head(sources: Iterable[Source]) -> str:
    """Who can judge a model that has no classifier, as `--with` has it: probes where every picture has a class."""
    return "knn linear" if all(map(has_labels, sources)) else "pca"


def forward_of(model: nn.Module, precision: str) -> Callable[[Tensor], Tensor]:
    """The model's call in the precision that it was trained in."""
    device = next(model.parameters()).device.type

    def forward(images: Tensor) -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            return model(images.to(DTYPES[precision])).float()

    return forward


def annotated(
    subject: Subject, backbone: Backbone, pictures: Pictures, looking: Looking, asked: Collection[str]
) -> Subject:
    """The subject with what the judges in `asked` need: pictures with masks and boxes.

    ValueError where the pictures have none, or the model has no keys or does not take their size.
    """
    data = pictures.config.data
    if learning := LEARNING & set(asked):
        pictures.tell_of_one_half(learning)
    if "discovery" in asked:
        backbone.check_keys()
    if looking.size is not None and looking.size < max(backbone.patch_size):
        raise ValueError(
            f"size is {looking.size}, smaller than a patch of {backbone.patch_size[1]} × {backbone.patch_size[0]} px; "
            f"choose a larger {pictures.spelled('size')}"
        )
    view = View(
        mean=data.mean, std=data.std, size=looking.size, square=_only_size(backbone), foreground=looking.foreground,
        void=looking.void, boxes=looking.boxes, where=looking.where, progress=pictures.progress,
        spelled=pictures.spelled,
    )  # fmt: skip
    if {"discovery", "pca"} & set(asked):
        scenes = Scenes(pictures.source("val"), view, only_seen="discovery" not in asked)
        subject = replace(subject, scenes=lambda half: scenes)
    if "segmentation" in asked:
        side = _side(looking.size or data.image_size, backbone, pictures.spelled("size"))
        halves = _squares(pictures, view, side, looking.batch_size)
        num_segments = max(halves("train").num_classes, halves("val").num_classes)
        subject = replace(subject, segments=lambda half: halves(half).anew(), num_segments=num_segments)
    return subject


def _squares(pictures: Pictures, view: View, side: int, batch_size: int) -> Callable[[Half], Squares]:
    @cache
    def half(which: Half) -> Squares:
        return Squares(
            pictures.source(which), view, side, batch_size, pictures.device, shuffled=which == "train"
        )  # fmt: skip

    return half


def _only_size(backbone: Backbone) -> tuple[int, int] | None:
    """For models that take no other."""
    own = backbone.own_size
    return None if own is None or backbone.takes(own[0] + backbone.patch_size[0], own[1]) else own


def _side(side: int, backbone: Backbone, option: str) -> int:
    p, q = backbone.patch_size
    if side % p or side % q:
        near = max(1, round(side / p)) * p
        raise ValueError(f"size is {side}, not whole patches of {p} × {q} px; the nearest {option} is {near}")
    if not backbone.takes(side, side):
        raise ValueError(f"size is {side}, but the model takes only {backbone.own_size} px; leave {option} out")
    return side
