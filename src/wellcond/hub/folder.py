"""What is uploaded of a run: weights, what wellcond must know of them, the same for timm, and a card.

timm's format is that of its own models on the hub: config.json names the architecture, its arguments and what images it
takes; `timm.create_model("local-dir:…", pretrained=True)` reads it. It has no place for graying, cut skips, linear
attention and other activations, so those stand in wellcond.json alone, and the card says so.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import timm
from safetensors.torch import save
from torch import nn

from ..atomic import write_bytes
from ..config import ExportConfig, ModelConfig, TrainConfig, to_json
from ..runs import Run
from ..runs_page.reading import read
from ..training import checkpoints, config_of, load
from ..training.exported import EXPORT, WEIGHTS
from ..training.models import OWN
from . import card

TIMM, CARD = "config.json", "README.md"
FILES = (EXPORT, WEIGHTS, TIMM, CARD)
_ARCHITECTURE = ("classifier", "first_conv", "fixed_input_size", "pool_size")  # of timm's config: not of other weights


def check_place(out: Path) -> None:
    """ValueError if there is something else than an earlier export, which would be lost or uploaded."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"out is {str(out)!r}, which is a file; name a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / EXPORT).is_file():
        raise ValueError(f"out is {str(out)!r}, which holds other files; name an empty or new folder")


def write(run: Path, out: Path, name: str, licence: str | None = None) -> list[Path]:
    """Write the four files, each whole or not at all; returns their paths."""
    directory = Run(run)
    config = config_of(directory)
    model = load(run)
    exported = _export(config, directory)
    tensors = {key: value.contiguous().clone() for key, value in model.state_dict().items()}
    about = {"wellcond": json.dumps({"cut": config.model.cut, "activation": config.model.activation})}
    text = card.write(name, read(run), exported, plain=is_plain(exported), licence=licence, model=model)
    contents = {
        EXPORT: to_json(exported).encode(),  # first: it marks the folder as ours
        WEIGHTS: save(tensors, metadata=about),
        TIMM: (json.dumps(_timm_config(model, exported, directory.classes()), indent=2) + "\n").encode(),
        CARD: text.encode(),
    }
    for file, content in contents.items():
        write_bytes(out / file, content)
    return [out / file for file in contents]


def is_plain(config: ExportConfig) -> bool:
    """Is timm's own model all there is to it?"""
    model = config.model
    own = (model.attention, model.activation, model.graying.method, model.cut) == ("softmax", "gelu", "none", "no")
    return own and model.name not in OWN


def _export(config: TrainConfig, directory: Run) -> ExportConfig:
    step = checkpoints.newest_whole(directory.checkpoints)
    assert step is not None  # its model was just loaded
    state = checkpoints.read_state(directory.checkpoints / checkpoints.name_of(step))
    return ExportConfig(
        model=config.model,
        precision=config.precision,
        skip_gain=state.get("skip_gain") or None,
        mean=config.data.mean,
        std=config.data.std,
        step=step,
    )


def _timm_config(model: Any, config: ExportConfig, classes: Sequence[str]) -> dict[str, Any]:
    size = config.model.image_size
    images = {"input_size": [3, size, size], "mean": config.mean, "std": config.std, "interpolation": "bicubic"}
    known = _known(model)
    own = {word: known[word] for word in _ARCHITECTURE if known.get(word) is not None}
    pretrained = {**own, **images, "crop_pct": 1.0}
    pool = getattr(model, "global_pool", None)
    return {
        "architecture": config.model.name,
        "num_classes": config.model.num_classes,
        **({"label_names": list(classes)} if classes else {}),
        "num_features": getattr(model, "num_features", None),
        **({"global_pool": pool} if isinstance(pool, str) and pool else {}),
        "model_args": _arguments(config.model),
        "pretrained_cfg": pretrained,
    }


def _known(model: nn.Module) -> dict[str, Any]:
    known: Any = getattr(model, "pretrained_cfg", None) or {}
    return known if isinstance(known, dict) else known.to_dict()


def _arguments(config: ModelConfig) -> dict[str, Any]:
    """Of timm.create_model. Convolutional families take images of any size and have no img_size."""
    words = dict(config.options) | ({} if config.patch_size is None else {"patch_size": config.patch_size})
    sized = {"img_size": config.image_size, **words}
    if config.name in OWN:
        return words
    try:
        timm.create_model(config.name, num_classes=config.num_classes, **sized)
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        return words
    return sized
