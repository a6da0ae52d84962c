"""A name of timm and perhaps a file of weights → a model, ready to be measured. Floor 8."""

import difflib
import logging
import warnings
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from ..blocks import adapt, adapted_blocks, unadapt
from ..config import DiagnoseConfig
from ..graying import patch_size_of
from .saved import is_saved, load_saved
from .weights import Tensors, matched, misfit, num_classes_of, read_weights

RANDOM, PRETRAINED = "random", "pretrained"


def load_model(config: DiagnoseConfig) -> tuple[nn.Module, str]:
    """The model in eval mode on the CPU, and what its weights are: random, pretrained, or the name of the file."""
    if is_saved(config.model):
        model, kind = load_saved(config)
        if config.image_size is not None:
            _check_image_size(model, config)
        return model, kind
    check_name(config.model)
    tensors, kind = read_weights(config.weights) if config.weights else (None, "")
    model = create(config, config.num_classes)
    if config.image_size is not None:
        _check_image_size(model, config)
    if tensors is not None:
        model = _with_weights(model, tensors, config)
    return model.eval(), kind or (PRETRAINED if config.pretrained else RANDOM)


def check_name(name: str) -> None:
    """ValueError with the nearest names if timm has no such model; names with a tag are timm's too."""
    base, _, tag = name.partition(".")
    if ":" in name:  # hf-hub:OWNER/NAME and local-dir:FOLDER, which timm looks up itself
        return
    if not timm.is_model(base):
        if "/" in name or Path(name).exists():
            raise ValueError(f"{name!r} is no run (no config.json), nor a model of timm; check the path")
        raise ValueError(f"timm has no model {name!r}; {_nearest(base, timm.list_models())}")
    tagged = timm.list_models(f"{base}.*", pretrained=True)
    if tag and name not in tagged:
        hint = _nearest(name, tagged) if tagged else f"say {base}"
        raise ValueError(f"timm has no weights {tag!r} of {base}; {hint}")


def create(config: DiagnoseConfig, num_classes: int | None) -> nn.Module:
    """The model by timm; random weights depend on the seed only, and the caller's generator is left alone."""
    options: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    if config.image_size is not None:
        options["img_size"] = config.image_size
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # names that timm has renamed
        torch.manual_seed(config.seed)
        try:
            return _create(config, options)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            torch.manual_seed(config.seed)  # convolutional families take any size, and have no such option
            return _create(config, {k: v for k, v in options.items() if k != "img_size"})


def _create(config: DiagnoseConfig, options: dict[str, Any]) -> nn.Module:
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # it tells of every attempt
    try:
        return timm.create_model(config.model, pretrained=config.pretrained, **options)
    except TypeError:
        raise
    except Exception as error:  # of the network, of its many libraries, of the model's own checks
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if config.pretrained or ":" in config.model:
            raise ValueError(
                f"the weights of {config.model!r} could not be had ({why[:150]}); check the network, "
                "or give a file with --weights"
            ) from None
        raise ValueError(f"timm cannot make {config.model!r} with {options or 'its defaults'}: {why[:150]}") from None


def _check_image_size(model: nn.Module, config: DiagnoseConfig) -> None:
    """ValueError if the model does not take images of that size: seen from its patches, or tried on one image."""
    size = config.image_size
    assert size is not None
    patch = _patch_side(model)
    if size % patch:
        near = max(1, round(size / patch)) * patch
        raise ValueError(f"image size is {size}, not a multiple of the patch size {patch}; the nearest one is {near}")
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, 3, size, size))
    except (RuntimeError, AssertionError, ValueError) as error:
        why = str(error).strip().splitlines()[0] if str(error).strip() else "its forward pass fails"
        raise ValueError(
            f"{config.model} does not take images of {size} pixels ({why[:150]}); choose another --image-size"
        ) from None


def _patch_side(model: nn.Module) -> int:
    try:
        return patch_size_of(model)[0]
    except ValueError:  # a convolutional stem: no patches
        return 1


def _with_weights(model: nn.Module, tensors: Tensors, config: DiagnoseConfig) -> nn.Module:
    """The model with these tensors, made again if they have another number of classes."""
    tensors = matched(tensors, model)
    classes = num_classes_of(tensors, model)
    adopted = config.num_classes is None and classes is not None and set(tensors) & set(model.state_dict())
    if adopted and classes != getattr(model, "num_classes", classes):
        model = create(config, classes)
    if why := misfit(tensors, model):
        hint = _hint(tensors, model, classes, config)
        raise ValueError(f"{str(config.weights)!r} holds no weights of {config.model}: {why}{hint}")
    model.load_state_dict(tensors)
    return model


def _hint(tensors: Tensors, model: nn.Module, classes: int | None, config: DiagnoseConfig) -> str:
    """What would make them fit, where that can be said."""
    if config.num_classes is not None and classes is not None and classes != config.num_classes:
        return f"; the file has {classes} classes, --num-classes says {config.num_classes}"
    own = model.state_dict()
    wrong = [k for k in own if k not in tensors or tensors[k].shape != own[k].shape]
    if wrong == ["pos_embed"] and "pos_embed" in tensors:
        return "; the weights are for another image size: give it with --image-size"
    return ""


def check_transformer(model: nn.Module, images: torch.Tensor) -> None:
    """ValueError with the reason if the model has no blocks that can be measured; the model stays as it is."""
    before = adapted_blocks(model)
    adapt(model, images)
    if not before:  # a run without skips has them adapted
        unadapt(model)


def _nearest(word: str, known: list[str]) -> str:
    word = word.lower()
    heads: dict[str, list[str]] = {}  # vit_tny is like vit_tiny, which the rest of vit_tiny_patch16_224 hides
    for name in known:
        heads.setdefault(name[: len(word) + 1], []).append(name)
    near = [name for head in difflib.get_close_matches(word, heads, n=1, cutoff=0.85) for name in heads[head]]
    near = near or difflib.get_close_matches(word, known, cutoff=0.6)
    near = (near or [name for name in known if name.startswith(word[:4])])[:3]
    return f"did you mean {' or '.join(near)}?" if near else "see timm.list_models()"
