"""A run → who is judged: its model, its data in the forms that the judges ask for, and an album for what they find."""

import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from ..config import DataConfig
from ..evaluation import Backbone, Scene, Settings, Subject
from ..runs import Run
from ..training import checkpoints, config_of, load
from ..training.annotated import Squares
from ..training.pictures import Pictures
from ..training.processes import choose_device
from ..training.subjects import LABELLED, PROBING, annotated, forward_of, judges_without_head
from .album import Album, Sight
from .options import EvaluateCommand


def examine(run: Path, command: EvaluateCommand) -> tuple[Subject, Album, int]:
    """Everything that can be wrong is looked at here, before the work: the run, the device, the pictures, the model.

    Returns who is judged, the album that its judges fill, and the step of its checkpoint.
    """
    config = config_of(Run(run))
    device = choose_device(command.device)
    asked = set(command.judges)
    classes = Run(run).classes()
    pictures = Pictures(config, command.data, device, command.batch_size, own_head="accuracy" in asked, classes=classes)
    if "accuracy" in asked and not config.model.num_classes:
        judges = judges_without_head([pictures.source("train"), pictures.source("val")])
        raise ValueError(f"{str(run)!r} was trained without labels and has no classifier; say --with {judges}")
    if asked == {"accuracy"} and command.layers != ("last",):
        raise ValueError(
            f"layers is {' '.join(command.layers)}, and accuracy is that of the model's own head, on its last; "
            "add --with knn linear, or leave layers out"
        )
    if asked & LABELLED:
        pictures.check()
    if asked & PROBING:
        pictures.check_halves()
    model = load(run).to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # load has told of damaged ones
        step = checkpoints.newest_whole(Run(run).checkpoints)
    assert step is not None
    album = Album(name=str(run), data=command.data or config.data.val, num_layers=0)
    subject = Subject(
        model=model,
        forward=forward_of(model, config.precision),
        batches=pictures.batches,
        settings=_settings(command),
        show=album.show,
    )
    if asked - {"accuracy"}:
        backbone = Backbone(model, pool=command.pool)
        backbone.layers(command.chosen_layers)
        album = replace(album, num_layers=backbone.num_layers, patch_size=backbone.patch_size)
        subject = annotated(replace(subject, show=album.show), backbone, pictures, command, asked)
        _fill(album, subject, command, config.data)
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


def _fill(album: Album, subject: Subject, command: EvaluateCommand, data: DataConfig) -> None:
    """The first pictures of the set, as they are."""
    if {"discovery", "pca"} & set(command.judges):
        album.scenes.extend(_sight(scene, data) for scene in islice(subject.scenes("val"), command.pictures))
    if "segmentation" in command.judges:
        squares = subject.segments("val")
        assert isinstance(squares, Squares)
        album.squares.extend(
            Sight(name=f"picture {number}", pixels=pixels, mask=mask)
            for number, (pixels, mask) in enumerate(islice(squares.squares(), command.pictures))
        )


def _sight(scene: Scene, data: DataConfig) -> Sight:
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    pixels = (255 * (scene.image * std + mean)).round().clamp(0, 255).byte().permute(1, 2, 0)
    return Sight(
        name=scene.name,
        pixels=np.ascontiguousarray(pixels.numpy()),
        boxes=None if scene.boxes is None else scene.boxes.numpy(),
        mask=None if scene.mask is None else scene.mask.numpy(),
    )
