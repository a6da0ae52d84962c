"""A run → who is judged: its model, its data in the forms that the judges ask for, and an album for what they find."""

import warnings
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..evaluation import Backbone, Half, Scene, Settings, Subject
from ..runs import Run
from ..training import checkpoints, config_of, load
from ..training.processes import choose_device
from ..training.step import DTYPES
from .album import Album, Sight
from .annotated import Scenes, Squares, View
from .options import EvaluateCommand
from .pictures import Pictures

PROBING = {"knn", "linear"}
LABELLED = {"accuracy"} | PROBING


def examine(run: Path, command: EvaluateCommand) -> tuple[Subject, Album, int]:
    """Everything that can be wrong is looked at here, before the work: the run, the device, the pictures, the model.

    Returns who is judged, the album that its judges fill, and the step of its checkpoint.
    """
    config = config_of(Run(run))
    device = choose_device(command.device)
    asked = set(command.judges)
    if "accuracy" in asked and not config.model.num_classes:
        raise ValueError(f"{str(run)!r} was trained without labels and has no classifier; say --with knn linear")
    pictures = Pictures(config, command.data, device, command.batch_size, own_head="accuracy" in asked)
    if asked & LABELLED:
        pictures.check()
    if asked & PROBING:
        pictures.check_halves()
    model = load(run).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # load has told of damaged ones
        step = checkpoints.newest_whole(Run(run).checkpoints)
    assert step is not None

    def forward(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            return model(images.to(DTYPES[config.precision])).float()

    album = Album(name=str(run), data=command.data or config.data.val, num_layers=0)
    subject = Subject(
        model=model,
        forward=forward,
        batches=pictures.batches,
        num_classes=config.model.num_classes,
        settings=_settings(command),
        show=album.show,
    )
    if asked == {"accuracy"} and command.layers != ("last",):
        raise ValueError(
            f"layers is {' '.join(command.layers)}, and accuracy is that of the model's own head, on its last; "
            "add --with knn linear, or leave layers out"
        )
    if asked - {"accuracy"}:
        backbone = Backbone(model, pool=command.pool)
        backbone.layers(command.chosen_layers)
        album = replace(album, num_layers=backbone.num_layers)
        subject = _annotated(replace(subject, show=album.show), album, backbone, pictures, command)
    return subject, album, step


def _settings(command: EvaluateCommand) -> Settings:
    return Settings(
        layers=command.chosen_layers,
        k=command.k,
        temperature=command.temperature,
        pool=command.pool,
        probe_epochs=command.probe_epochs,
        segmentation_epochs=command.segmentation_epochs,
        batch_size=command.batch_size,
        pictures=command.pictures,
    )


def _annotated(
    subject: Subject, album: Album, backbone: Backbone, pictures: Pictures, command: EvaluateCommand
) -> Subject:
    """With pictures that have masks and boxes, and the first of them in the album."""
    asked, data = set(command.judges), pictures.config.data
    if "discovery" in asked:
        backbone.check_keys()
    view = View(
        mean=data.mean, std=data.std, size=command.size, square=_only_size(backbone), foreground=command.foreground,
        void=command.void, boxes=command.boxes, where=command.where,
    )  # fmt: skip
    if asked & {"discovery", "pca"}:
        scenes = Scenes(pictures.source("val"), view, only_seen="discovery" not in asked)
        album.scenes.extend(_sight(scene, view) for scene in islice(scenes, command.pictures))
        subject = replace(subject, scenes=lambda half: scenes)
    if "segmentation" in asked:
        side = _side(command.size or data.image_size, backbone)
        halves = _squares(pictures, view, side, command.batch_size)
        album.squares.extend(
            Sight(name=f"picture {number}", pixels=pixels, mask=mask)
            for number, (pixels, mask) in enumerate(islice(halves("val").squares(), command.pictures))
        )
        num_segments = max(halves("train").num_classes, halves("val").num_classes)
        subject = replace(subject, segments=halves, num_segments=num_segments)
    return subject


def _squares(pictures: Pictures, view: View, side: int, batch_size: int):
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


def _side(side: int, backbone: Backbone) -> int:
    p, q = backbone.patch_size
    if side % p or side % q:
        near = max(1, round(side / p)) * p
        raise ValueError(f"size is {side}, not whole patches of {p} × {q} px; the nearest --size is {near}")
    if not backbone.takes(side, side):
        raise ValueError(f"size is {side}, but the model takes only {backbone.own_size} px; leave --size out")
    return side


def _sight(scene: Scene, view: View) -> Sight:
    mean, std = (torch.tensor(values)[:, None, None] for values in (view.mean, view.std))
    pixels = (255 * (scene.image * std + mean)).round().clamp(0, 255).byte().permute(1, 2, 0)
    return Sight(
        name=scene.name,
        pixels=np.ascontiguousarray(pixels.numpy()),
        boxes=None if scene.boxes is None else scene.boxes.numpy(),
        mask=None if scene.mask is None else scene.mask.numpy(),
    )
