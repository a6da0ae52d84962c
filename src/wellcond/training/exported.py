"""A folder that `wellcond push` wrote, here or on the hub → the model, as it was trained.

    wellcond.json      ExportConfig: what the weights do not say
    model.safetensors  the state dict
    config.json        the same for timm, which knows neither graying nor cut skips; README.md, the card

Both files are plain data: reading them runs no code.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from wellcond.config import ExportConfig, from_json
from wellcond.training.annealing import set_gain
from wellcond.training.models import build_model
from wellcond.training.step import DTYPES

EXPORT, WEIGHTS = "wellcond.json", "model.safetensors"
HUB = "hf:"  # before a name of the hub, as for data


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
    model.load_state_dict(weights)
    return model.eval()


def fetch(name: str) -> Path:
    """The folder of OWNER/NAME, perhaps @REVISION, of the hub, in its cache; ValueError with the reason."""
    repository, _, revision = name.partition("@")
    files = fetched(repository, revision or None, [EXPORT, WEIGHTS])
    if not is_exported(files):
        raise ValueError(
            f"{name!r} on the hub has no {EXPORT}, so it is not from wellcond push; "
            f"a model of timm is timm.create_model('hf-hub:{name}', pretrained=True)"
        )
    return files


def fetched(repository: str, revision: str | None, names: list[str]) -> Path:
    """These files of a repository, as far as it has them."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=names))
    except Exception as error:  # of the network, of its libraries, of the hub
        raise ValueError(f"{repository!r} could not be had from the hub: {in_words(error)}") from None


def in_words(error: Exception) -> str:
    """What went wrong between here and the hub, and what to do."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return "it is gated; ask for access on its page, then say hf auth login"
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:  # the hub answers strangers with 401
        return "it is not there, or is private; check the name, or say hf auth login"
    if isinstance(error, errors.LocalTokenNotFoundError) or status == 401:
        return "there is no token, or one that is not valid; say hf auth login, or set HF_TOKEN"
    if status == 403:
        return "the token may not do that; make one with write access, or choose a name of your own"
    if isinstance(error, errors.HFValidationError):
        return f"{_first_line(error)}; a name is OWNER/NAME of letters, digits, '-', '_' and '.'"
    if status is None:
        return f"it cannot be reached ({_first_line(error)}); check the network"
    return _first_line(error)


def _first_line(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:150].rstrip(" .:")
