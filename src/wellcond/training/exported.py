"""A folder that `wellcond push` wrote → the model, as it was trained; `fetching` brings one from the hub.

    wellcond.json      ExportConfig: what the weights do not say
    model.safetensors  the state dict
    config.json        the same for timm, which knows neither graying nor cut skips; README.md, the card

Both files are plain data: reading them runs no code.
"""

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from wellcond.config import ExportConfig, from_json
from wellcond.skips import load_own
from wellcond.training.annealing import set_gain
from wellcond.training.models import build_model
from wellcond.training.step import DTYPES

EXPORT, WEIGHTS = "wellcond.json", "model.safetensors"


def is_exported(path: Path) -> bool:
    return (path / EXPORT).is_file()


def read_export(folder: Path) -> ExportConfig:
    """What stands beside the weights; ValueError where it cannot be read."""
    path = folder / EXPORT
    try:
        return from_json(path.read_text(), ExportConfig)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} cannot be read: {error}; push the run again") from None


def load_exported(folder: Path) -> nn.Module:
    """The model on the CPU, in eval mode."""
    config, path = read_export(folder), folder / WEIGHTS
    try:
        weights = load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{str(folder)!r} has no {WEIGHTS}; push the run again") from None
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is damaged ({error}); fetch it, or push the run, again") from None
    model = build_model(config.model, initialized=False).to(DTYPES[config.precision])
    own = model.state_dict()
    for name in [*own, *weights]:
        if name not in weights or name not in own or weights[name].shape != own[name].shape:
            raise ValueError(f"{str(path)!r} does not fit {EXPORT} beside it at {name!r}; push the run again")
    if config.skip_gain:
        set_gain(model, config.model, config.skip_gain)
    load_own(model, weights)
    return model.eval()
