"""A checkpoint file → the tensors of a model. Nothing is ever unpickled. Floor 8.

safetensors, or what `torch.load(weights_only=True)` takes. Training scripts wrap the model's tensors in a dictionary,
and wrappers of the model (DataParallel, torch.compile, a detector's backbone) put a prefix before each key: both are
taken off.
"""

import argparse
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# An average of the weights is what a recipe evaluates, so it goes before the weights themselves, as in timm.
WRAPPERS = ("model_ema", "state_dict_ema", "ema", "model", "state_dict", "model_state_dict", "net", "teacher")
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder.")
Tensors = dict[str, Tensor]


def read_weights(path: Path) -> tuple[Tensors, str]:
    """The tensors of the file by name, and what to call them: the file and the wrapper that they were in."""
    if not path.exists():
        raise ValueError(f"there are no weights at {str(path)!r}; check the path")
    if path.is_dir():
        raise ValueError(f"weights is {str(path)!r}, a folder; name the file in it")
    path.open("rb").close()  # of a file that may not be read safetensors says that there is none
    content = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)
    tensors, wrapper = _unwrapped(content)
    if not tensors:
        raise ValueError(f"{str(path)!r} holds no tensors by name; give the state dict of the model")
    return tensors, f"{path.name} ({wrapper})" if wrapper else path.name


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"{str(path)!r} is not a safetensors file, or a damaged one ({error}); save or fetch it again"
        ) from None


def about(path: Path) -> dict[str, str]:
    """What a checkpoint of `wellcond train` says of itself, and its tensors cannot: cut (as in --cut), activation."""
    from safetensors import safe_open

    if path.suffix != ".safetensors":
        return {}
    with safe_open(path, framework="pt") as file:
        said = (file.metadata() or {}).get("wellcond", "{}")
    try:
        return {name: str(value) for name, value in json.loads(said).items()}
    except (ValueError, AttributeError):  # another program's entry of that name
        return {}


def _read_pickle(path: Path) -> Any:
    """`argparse.Namespace` is let through, for most training scripts keep their options so; it is plain data."""
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about files that it then refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # whatever a file that is no checkpoint leads the unpickler to
        unsafe = re.search(r"GLOBAL (\S+)", str(error))
        why = "it is no checkpoint of torch, or a damaged one; give a .safetensors or .pth file"
        if unsafe:
            why = f"it holds code ({unsafe[1]}), which is not run; save its state dict as .safetensors and give that"
        raise ValueError(f"{str(path)!r} cannot be read: {why}") from None


def _unwrapped(content: Any) -> tuple[Tensors, str]:
    """The tensors of the innermost wrapper and its name."""
    wrapper = ""
    while isinstance(content, Mapping):
        inner = next((key for key in WRAPPERS if isinstance(content.get(key), Mapping)), None)
        if inner is None:
            return {key: value for key, value in content.items() if isinstance(value, Tensor)}, wrapper
        content, wrapper = content[inner], inner
    return {}, wrapper


def matched(tensors: Tensors, model: nn.Module) -> Tensors:
    """The tensors under up to three prefixes, without them: those that name most of the model's own."""
    own = model.state_dict().keys()
    known = candidates = [tensors]
    for _ in range(3):
        candidates = [cut for named in candidates for prefix in PREFIXES if (cut := _under(prefix, named))]
        known = [*known, *candidates]
    return max(known, key=lambda named: len(own & named.keys()))  # the least cut of equals


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def num_classes_of(tensors: Tensors, model: nn.Module) -> int | None:
    """How many classes the tensors have: 0 without a classifier, None if the model does not name its own.

    None, too, for a classifier that is not for this model: a tensor without columns may claim any number of rows.
    """
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    name = config.get("classifier")
    name = name[0] if isinstance(name, (tuple, list)) and name else name
    own = model.state_dict().get(f"{name}.weight")
    if own is None:
        return None
    weight = tensors.get(f"{name}.weight")
    if weight is None:
        return 0
    return len(weight) if weight.shape[1:] == own.shape[1:] else None


def misfit(tensors: Tensors, model: nn.Module) -> str:
    """Why the tensors are not those of the model, in one line; empty if they are."""
    own = model.state_dict()
    missing = [key for key in own if key not in tensors]
    unexpected = [key for key in tensors if key not in own]
    shapes = [
        f"{key} is {_shape(value)} in the file, {_shape(own[key])} in the model"
        for key, value in tensors.items()
        if key in own and value.shape != own[key].shape
    ]
    kinds = [
        f"{key} is {_kind(value)} in the file, {_kind(own[key])} in the model"
        for key, value in tensors.items()
        if key in own and own[key].is_floating_point() and not _is_plain(value)
    ]
    parts = []
    for what, keys in (("missing", missing), ("unexpected", unexpected)):
        parts += [f"{len(keys)} keys {what} ({_few(keys, ', ')})"] if keys else []
    parts += [f"{len(shapes)} of another shape ({_few(shapes, '; ')})"] if shapes else []
    parts += [f"{len(kinds)} of another kind ({_few(kinds, '; ')})"] if kinds else []
    return ", ".join(parts)


def _is_plain(tensor: Tensor) -> bool:
    """Numbers that a weight can take as they are; those of integers still lack the scale of their quantization."""
    return tensor.is_floating_point() and tensor.layout == torch.strided


def _kind(tensor: Tensor) -> str:
    words = str(tensor.dtype).removeprefix("torch.")
    return words if tensor.layout == torch.strided else f"{words} ({str(tensor.layout).removeprefix('torch.')})"


def _few(words: list[str], separator: str) -> str:
    return separator.join(words[:3]) + (", …" if len(words) > 3 else "")


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"
