"""A ModelConfig → the module: timm's model, then attention, skips and graying as the config says."""

import timm
import torch
from torch import nn

from wellcond.attention import K, set_attention
from wellcond.config import ModelConfig
from wellcond.graying import gray
from wellcond.skips import cut_skips


def build_model(config: ModelConfig, seed: int = 0) -> nn.Module:
    """The model with fresh weights that depend on `seed` only; torch's generators are left as they were."""
    options = dict(config.options)
    if config.patch_size is not None:
        options["patch_size"] = config.patch_size
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which seeds the GPUs, too
        model = _create(config, options)
    if config.attention == "linear":
        set_attention(model, "linear", k=config.k if config.k is not None else K)
    if config.cut_attention_skips or config.cut_mlp_skips:
        cut_skips(model, attention=config.cut_attention_skips, mlp=config.cut_mlp_skips, lpi=False)
    if config.graying.method != "none":
        g = config.graying
        gray(model, g.method, g.epsilon, rescale=g.rescale, precision=g.precision)
    return model


def _create(config: ModelConfig, options: dict) -> nn.Module:
    if not timm.is_model(config.name):
        near = timm.list_models(f"{config.name.split('_')[0]}*")[:3]
        hint = f"for example {', '.join(near)}" if near else "see timm.list_models()"
        raise ValueError(f"model.name is {config.name!r}, which timm does not know; {hint}")
    sized = {"img_size": config.image_size, **options}
    for words in (sized, options):  # convolutional models take no img_size
        try:
            return timm.create_model(
                config.name, num_classes=config.num_classes, drop_path_rate=config.drop_path, **words
            )
        except TypeError as error:
            if "img_size" in str(error) and words is sized:
                continue
            raise ValueError(f"model.options do not fit {config.name}: {error}") from None
    raise AssertionError("unreachable")
