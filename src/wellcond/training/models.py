"""A ModelConfig → the module: timm's model, then weights, activation, attention, skips and graying as it says."""

import difflib
from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
from timm.models.convmixer import ConvMixer
from torch import Tensor, nn

from wellcond.activations import set_activation
from wellcond.attention import set_attention
from wellcond.config import InitConfig, ModelConfig, TrainConfig
from wellcond.graying import gray
from wellcond.initializers import calibrate_, init_skipless_, mimetic_
from wellcond.skips import cut_skips

OWN: dict[str, Callable[..., nn.Module]] = {
    # "ConvMixer-Tiny" of Always Skip Attention, Fig. 6, whose sizes it does not give: ours
    "convmixer_tiny": partial(ConvMixer, dim=256, depth=8, kernel_size=5),
}


def build_model(config: ModelConfig, seed: int = 0, *, initialized: bool = True) -> nn.Module:
    """The model with fresh weights that depend on `seed` only; torch's generators are left as they were.

    `initialized` False saves the time of `config.init`, for whoever replaces the weights.
    """
    options: dict[str, Any] = dict(config.options)
    if config.patch_size is not None:
        options["patch_size"] = config.patch_size
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which seeds the GPUs, too
        model = _create(config, options)
        if initialized:
            _initialize(model, config.init)
    if config.activation != "gelu":
        set_activation(model, config.activation)
    if config.attention == "linear":
        set_attention(model, "linear", k=config.k)
    if config.cut_attention_skips or config.cut_mlp_skips:
        cut_skips(model, attention=config.cut_attention_skips, mlp=config.cut_mlp_skips, lpi=False)
    if config.graying.method != "none":
        g = config.graying
        gray(model, g.method, g.epsilon, rescale=g.rescale, precision=g.precision)
    return model


def initial_model(config: TrainConfig, pictures: Callable[[int], Tensor]) -> nn.Module:
    """What a run begins with, on the CPU in its precision; `pictures(count)` are asked for where it is calibrated."""
    dtype = torch.float64 if config.precision == "float64" else torch.float32
    model = build_model(config.model, config.seed).to(dtype)
    if config.model.init.calibrate:
        calibrate_(model, pictures(config.monitor_images).to("cpu", dtype))
    return model


def _initialize(model: nn.Module, config: InitConfig) -> None:
    """By torch's own generator, which goes on from where timm's weights left it."""
    if config.method == "mimetic":
        mimetic_(model)
    elif config.method == "skipless":
        spread = {name: getattr(config, name) for name in ("alpha", "beta", "c", "temperature")}
        one_or_each = {name: values[0] if len(values) == 1 else values for name, values in spread.items()}
        init_skipless_(model, **one_or_each, z=config.z, positions=config.positions)


def _create(config: ModelConfig, options: dict[str, Any]) -> nn.Module:
    words = {"num_classes": config.num_classes, **options}
    if config.drop_path:
        words["drop_path_rate"] = config.drop_path
    try:
        if config.name in OWN:
            return OWN[config.name](**words)
        if not timm.is_model(config.name):
            raise ValueError(f"model.name is {config.name!r}, which timm does not know; {_hint(config.name)}")
        try:
            return timm.create_model(config.name, img_size=config.image_size, **words)
        except TypeError as error:  # convolutional models take images of any size
            if "img_size" not in str(error):
                raise
            return timm.create_model(config.name, **words)
    except TypeError as error:
        raise ValueError(
            f"model.options do not fit {config.name}: {error}; give those that it has, --model.options NAME VALUE …"
        ) from None


def _hint(name: str) -> str:
    near = difflib.get_close_matches(name, [*timm.list_models(), *OWN], n=2)
    return f"did you mean {' or '.join(near)}?" if near else "timm.list_models() has the names"
