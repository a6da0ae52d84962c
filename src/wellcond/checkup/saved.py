"""Models that bring their own weights: a run, what was pushed of one, a model of `transformers`. Floor 8.

`hf:NAME` is on the hub, `hf:FOLDER` here: what its config.json says decides who reads it. What images a model takes is
left where timm looks for it, so that pictures reach all of them by the same way. Nothing is unpickled, no code is run.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import IMAGENET_MEAN, IMAGENET_STD, DiagnoseConfig
from ..extras import install
from ..runs import CONFIG, Run
from ..training import config_of, load
from ..training.exported import EXPORT, WEIGHTS, is_exported, read_export
from ..training.fetching import HUB, fetched, first_line

TRANSFORMERS = ("vit", "deit", "dinov2", "dinov2_with_registers")  # model_type of its config.json
PROCESSOR = "preprocessor_config.json"
_RESAMPLING = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def is_saved(name: str) -> bool:
    return name.startswith(HUB) or (Path(name) / CONFIG).is_file() or is_exported(Path(name))


def load_saved(config: DiagnoseConfig) -> tuple[nn.Module, str]:
    """The model in eval mode on the CPU, and what its weights are."""
    folder, name, revision = _folder(config.model)
    if is_exported(folder):
        _refuse(config, "was pushed from a run", "image_size")
        exported = read_export(folder)
        size, moments = exported.model.image_size, (exported.mean, exported.std)
        return _seeing(load(folder), size, *moments), "as trained"
    described = _json(folder / CONFIG)
    if "model_type" in described:
        _refuse(config, "is a model of transformers")
        return _of_transformers(config, name, revision, described, _json(folder / PROCESSOR)), "as saved"
    if "architecture" in described or name:
        where = f"hf-hub:{name}" if name and not Path(name).is_dir() else f"local-dir:{name or config.model}"
        raise ValueError(f"{config.model!r} has neither {EXPORT} nor a model_type; a model of timm is {where}")
    _refuse(config, "is a run", "image_size")
    data = config_of(Run(folder)).data
    return _seeing(load(folder), data.image_size, data.mean, data.std), "as trained"


def _folder(given: str) -> tuple[Path, str, str | None]:
    """(where its small files are, its name or path after hf:, revision); those of the hub are fetched."""
    if not given.startswith(HUB):
        return Path(given), "", None
    name = given.removeprefix(HUB)
    if name and Path(name).is_dir():
        if not (Path(name) / CONFIG).is_file():
            raise ValueError(f"{given!r} is a folder without {CONFIG}; name one that save_pretrained wrote")
        return Path(name), name, None
    if not name or name.startswith((".", "/", "~")):
        raise ValueError(f"{given!r} is no folder here; write hf:FOLDER, or hf:OWNER/NAME for a model of the hub")
    name, _, revision = name.partition("@")
    folder = fetched(name, revision or None, [CONFIG, EXPORT, PROCESSOR])
    if is_exported(folder):
        folder = fetched(name, revision or None, [EXPORT, WEIGHTS])
    return folder, name, revision or None


def _refuse(config: DiagnoseConfig, what: str, *more: str) -> None:
    """ValueError for options that the model has its own of."""
    own = {"weights": None, "pretrained": False, "num_classes": None, "image_size": None, "initialize": "default"}
    names = ("weights", "pretrained", "num_classes", *more, *(("initialize",) if more else ()))
    for name in names:
        if getattr(config, name) != own[name]:
            option = name.replace("_", " ")
            raise ValueError(f"{option} is given, and {config.model!r} {what}, which has its own; leave {option} out")


def _seeing(model: Any, size: int, mean: Any, std: Any, **more: Any) -> nn.Module:
    """With what it takes, where timm looks for it."""
    known = getattr(model, "pretrained_cfg", None)
    images = {"input_size": (3, size, size), "mean": tuple(mean), "std": tuple(std), "crop_pct": 1.0, **more}
    model.pretrained_cfg = {**(known if isinstance(known, dict) else {}), **images}
    return model


def _of_transformers(
    config: DiagnoseConfig, name: str, revision: str | None, described: dict[str, Any], processor: dict[str, Any]
) -> nn.Module:
    where = name or config.model
    if described["model_type"] not in TRANSFORMERS:
        known = ", ".join(TRANSFORMERS)
        raise ValueError(f"{config.model!r} is of the type {described['model_type']!r}; wellcond knows {known}")
    try:
        import transformers
    except ImportError:
        raise ValueError(f"{config.model!r} needs the library transformers; {install('hub')}") from None
    talk = transformers.logging
    verbosity, bar = talk.get_verbosity(), talk.is_progress_bar_enabled()
    talk.set_verbosity_error()  # it tells of every head that it leaves out
    talk.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model, loaded = transformers.AutoModel.from_pretrained(
                where, revision=revision or "main", local_files_only=Path(where).is_dir(), use_safetensors=True,
                trust_remote_code=False, attn_implementation="sdpa", dtype=torch.float32,
                output_loading_info=True, ignore_mismatched_sizes=True,  # told by `_check_whole` by their names
            )  # fmt: skip
    except Exception as error:  # of the network, of the file, of the config
        why = first_line(error)
        raise ValueError(f"transformers cannot load {config.model!r} ({why}); it must hold safetensors") from None
    finally:
        talk.set_verbosity(verbosity)
        if bar:
            talk.enable_progress_bar()
    _check_whole(config.model, loaded)
    size = described.get("image_size", model.config.image_size)
    height, width = (size, size) if isinstance(size, int) else size
    channels = model.config.num_channels
    mean, std = _moments(config.model, processor) if channels == 3 else (IMAGENET_MEAN, IMAGENET_STD)
    shown = {"crop_pct": _crop(processor), "interpolation": _RESAMPLING.get(processor.get("resample", 3), "bicubic")}
    return _seeing(model.eval(), height, mean, std, input_size=(channels, height, width), **shown)


def _check_whole(name: str, loaded: dict[str, Any]) -> None:
    """ValueError where weights are not those of the config: transformers draws what is missing, a pooler rightly."""
    found = [f"{key} is missing" for key in loaded["missing_keys"] if not key.startswith("pooler.")]
    for key, given, own in loaded["mismatched_keys"]:
        found.append(f"{key} is {'×'.join(map(str, given))} in the file, {'×'.join(map(str, own))} by its config")
    if found:
        said = "; ".join(sorted(found)[:3]) + ("; …" if len(found) > 3 else "")
        raise ValueError(f"{name!r} has other weights than its {CONFIG} says: {said}; fetch or save it again")


def _moments(name: str, processor: dict[str, Any]) -> tuple[Any, Any]:
    """Mean and deviation by which its processor normalises."""
    if not processor.get("do_normalize", True):
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    mean, std = processor.get("image_mean", IMAGENET_MEAN), processor.get("image_std", IMAGENET_STD)
    for word, of in (("image_mean", mean), ("image_std", std)):
        if not (isinstance(of, list | tuple) and len(of) == 3 and all(isinstance(v, int | float) for v in of)):
            raise ValueError(f"{PROCESSOR} of {name!r} has {word} {of!r}; it must be a number for each of 3 channels")
    return mean, std


def _crop(processor: dict[str, Any]) -> float:
    """Which share of the shorter side is cut out, after the resize."""
    resized, cut = processor.get("size"), processor.get("crop_size")
    edge = resized.get("shortest_edge") if isinstance(resized, dict) else None
    height = cut.get("height") if isinstance(cut, dict) else None
    if not (edge and height and processor.get("do_center_crop", True)):
        return 1.0
    return min(1.0, height / edge)


def _json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file, or it is none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
