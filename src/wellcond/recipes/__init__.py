"""Named experiments: each a function that returns a complete, frozen TrainConfig. Floor 8; imports no torch.

The docstring of a recipe is its card: command, hardware, time, expected number, the paper's number. What was not
measured says so. Variants are options on top of a recipe (`--model.graying.method dct`), not more recipes.

    small       ViT-Tiny on CIFAR-10, CIFAR-100, Fashion-MNIST, Tiny-ImageNet; procedural-vit
    families    ConvMixer-Tiny; small Swin, CaiT and PVT v2 on Tiny-ImageNet
    imagenet    ViT-S/B, Swin-S, CaiT-S24, PVT v2 b3 on ImageNet-1K, DeiT-like
    skipless    ViTs without any skip on all of these, and ViT-S on CIFAR-10 and Tiny-ImageNet
    pretraining MAE and DINO on Tiny-ImageNet and ImageNet-1K, and fine-tuning from them
    changing    dotted overrides of a config
    showing     wellcond recipes            starting    wellcond train

>>> config = get("cifar10-vit-tiny", epochs=20, **{"optim.lr": 5e-4, "model.graying.method": "dct"})
>>> config.optim.warmup_epochs, config.model.graying.method  # a recipe scales its warm-up with its epochs
(4.0, 'dct')
"""

import difflib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ..config import TrainConfig
from . import families, imagenet, pretraining, skipless, small
from .changing import changed


class Recipe(NamedTuple):
    """A function → TrainConfig, and what of the papers it is for."""

    function: Callable[..., TrainConfig]
    reproduces: str


CUTTING = "cts-table1"  # of Cutting the Skip; the others are of Always Skip Attention
RECIPES = {
    "procedural-vit": Recipe(small.procedural_vit, "none: a first run"),
    "cifar10-vit-tiny": Recipe(small.cifar10_vit_tiny, "Fig. 1c"),
    "cifar100-vit-tiny": Recipe(small.cifar100_vit_tiny, "Fig. 1c"),
    "fashion-mnist-vit-tiny": Recipe(small.fashion_mnist_vit_tiny, "Fig. 1c"),
    "tiny-imagenet-vit-tiny": Recipe(small.tiny_imagenet_vit_tiny, "Figs. 1c, 2, Table 2"),
    "tiny-imagenet-vit-tiny-p4": Recipe(small.tiny_imagenet_vit_tiny_p4, "Table 2, Figs. 1b, 3-8"),
    "tiny-imagenet-vit-tiny-strong": Recipe(small.tiny_imagenet_vit_tiny_strong, "Table 2"),
    "cifar10-convmixer-tiny": Recipe(families.cifar10_convmixer_tiny, "Fig. 6"),
    "tiny-imagenet-convmixer-tiny": Recipe(families.tiny_imagenet_convmixer_tiny, "Fig. 6"),
    "tiny-imagenet-swin": Recipe(families.tiny_imagenet_swin, "Table 4"),
    "tiny-imagenet-cait": Recipe(families.tiny_imagenet_cait, "Table 4"),
    "tiny-imagenet-pvt": Recipe(families.tiny_imagenet_pvt, "Table 4"),
    "imagenet-vit-s": Recipe(imagenet.imagenet_vit_s, "Table 4"),
    "imagenet-vit-b": Recipe(imagenet.imagenet_vit_b, "Tables 1, 3, 4"),
    "imagenet-swin-s": Recipe(imagenet.imagenet_swin_s, "Table 4"),
    "imagenet-cait-s24": Recipe(imagenet.imagenet_cait_s24, "Table 4"),
    "imagenet-pvt-v2-b3": Recipe(imagenet.imagenet_pvt_v2_b3, "Table 4"),
    "cifar10-vit-tiny-skipless": Recipe(skipless.cifar10_vit_tiny_skipless, CUTTING),
    "cifar10-vit-s": Recipe(skipless.cifar10_vit_s, "none: a wider model"),
    "cifar10-vit-s-skipless": Recipe(skipless.cifar10_vit_s_skipless, "none: a wider model"),
    "tiny-imagenet-vit-tiny-skipless": Recipe(skipless.tiny_imagenet_vit_tiny_skipless, CUTTING),
    "tiny-imagenet-vit-s": Recipe(skipless.tiny_imagenet_vit_s, CUTTING),
    "tiny-imagenet-vit-s-skipless": Recipe(skipless.tiny_imagenet_vit_s_skipless, CUTTING),
    "imagenet-vit-b-skipless": Recipe(skipless.imagenet_vit_b_skipless, CUTTING),
    "procedural-mae": Recipe(pretraining.procedural_mae, "none: a first run"),
    "procedural-dino": Recipe(pretraining.procedural_dino, "none: a first run"),
    "tiny-imagenet-mae-vit-tiny": Recipe(pretraining.tiny_imagenet_mae_vit_tiny, "Table 5"),
    "tiny-imagenet-mae-vit-s": Recipe(pretraining.tiny_imagenet_mae_vit_s, "Table 5"),
    "tiny-imagenet-dino-vit-tiny": Recipe(pretraining.tiny_imagenet_dino_vit_tiny, "CTS Figs. 2, 3"),
    "tiny-imagenet-dino-vit-s": Recipe(pretraining.tiny_imagenet_dino_vit_s, "CTS Figs. 2, 3"),
    "tiny-imagenet-vit-tiny-finetune": Recipe(pretraining.tiny_imagenet_vit_tiny_finetune, "Table 5"),
    "tiny-imagenet-vit-s-finetune": Recipe(pretraining.tiny_imagenet_vit_s_finetune, "Table 5"),
    "imagenet-mae-vit-b": Recipe(pretraining.imagenet_mae_vit_b, "Table 5"),
    "imagenet-dino-vit-s": Recipe(pretraining.imagenet_dino_vit_s, "CTS Figs. 2, 3"),
    "imagenet-vit-b-finetune": Recipe(pretraining.imagenet_vit_b_finetune, "Table 5"),
}


def get(name: str, **overrides: Any) -> TrainConfig:
    """The config of a recipe; ValueError with the nearest names where there is none.

    Overrides are fields by dotted name. Those that the recipe itself takes (`epochs`, `batch_size`) come first, so
    that what hangs on them (warm-up, learning rate) follows.
    """
    function = find(name).function
    own = {key: overrides.pop(key) for key in inspect.signature(function).parameters if key in overrides}
    config = function(**own)
    return changed(config, {"recipe": name, **overrides})


def find(name: str) -> Recipe:
    if name not in RECIPES:
        begun = [recipe for recipe in RECIPES if name and recipe.startswith(name.lower())]
        near = begun[:3] or difflib.get_close_matches(name.lower(), RECIPES, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "wellcond recipes lists them"
        raise ValueError(f"there is no recipe {name!r}; {hint}")
    return RECIPES[name]


def card(name: str) -> str:
    """The experiment card of a recipe."""
    return inspect.getdoc(find(name).function) or ""


__all__ = ["RECIPES", "Recipe", "card", "find", "get"]
