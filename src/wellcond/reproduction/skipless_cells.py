"""The six cells of "Cutting the Skip", Table 1, {skip, skipless, skipless-init} × {adamw, soap}, and two of our own.

skipless-ours is skipless-init with less noise Z beside the identity in W_Q W_Kᵀ ≈ αZ + βI: α = 0.5, where the paper has
2; cts-beyond has found it to help. All cells of a set share everything but the model's skips and weights, the
optimizer and its learning rate. Weight decay, clipping, warm-up and schedule are the recipe's, chosen with skips and
AdamW; the betas are those of the authors of each optimizer. The learning rate is looked for alike in every cell
(cts-rates) and stands in `RATES`.
"""

from collections.abc import Sequence
from typing import Any

from .claim import Run
from .experiments import Experiment

EPOCHS = 20
MODELS = {
    "skip": "with skips",
    "skipless": "skipless",
    "skipless-init": "skipless, initialized",
    "skipless-ours": "skipless, initialized with α = 0.5",
}
LESS_NOISE = {"model.init.alpha": (0.5,)}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "soap": {"optim.name": "soap", "optim.betas": (0.95, 0.95)},
}
WORDS = {"adamw": "AdamW", "soap": "SOAP"}
CELLS = tuple(f"{model}/{optimizer}" for model in MODELS for optimizer in OPTIMIZERS)
CUT = {"model.cut_attention_skips": True, "model.cut_mlp_skips": True}

RATES = {  # what cts-rates has found (results/cts-rates.json)
    "cifar10": {
        "skip/adamw": 1e-3,
        "skip/soap": 3e-3,
        "skipless/adamw": 1e-4,
        "skipless/soap": 3e-3,
        "skipless-init/adamw": 3e-4,
        "skipless-init/soap": 3e-3,
    },
    "tiny-imagenet": {
        "skip/adamw": 1e-3,
        "skip/soap": 3e-3,
        "skipless/adamw": 1e-4,
        "skipless/soap": 3e-4,
        "skipless-init/adamw": 3e-4,
        "skipless-init/soap": 3e-3,
    },
}

PAPER = {  # ViT-B on ImageNet-1K, 300 epochs
    "skip/adamw": 80.3,
    "skip/soap": 80.1,
    "skipless/adamw": 61.4,
    "skipless/soap": 77.0,
    "skipless-init/adamw": 78.1,
    "skipless-init/soap": 80.8,
}
SETS = {  # set and model → recipe with skips
    "cifar10": "cifar10-vit-tiny",
    "cifar10-s": "cifar10-vit-s",
    "tiny-imagenet": "tiny-imagenet-vit-tiny",
    "tiny-imagenet-s": "tiny-imagenet-vit-s",
}
NAMES = {
    "cifar10": "CIFAR-10",
    "tiny-imagenet": "Tiny-ImageNet",
    "tiny-imagenet-s": "Tiny-ImageNet, ViT-S",
}


def cell(data: str, name: str, rate: float | None = None, **changes: Any) -> Experiment:
    """A cell on a set of `SETS`; `rate` None is that of `rate_of`."""
    model, optimizer = name.split("/")
    own = {"skipless": CUT, "skipless-ours": LESS_NOISE}.get(model, {})
    rate = rate_of(data, name) if rate is None else rate
    changes = {"monitor_every": 0, **OPTIMIZERS[optimizer], "optim.lr": rate, **own, **changes}
    initialized = model in ("skipless-init", "skipless-ours")
    return Experiment(recipe=f"{SETS[data]}-skipless" if initialized else SETS[data], changes=changes)


def rate_of(data: str, name: str) -> float:
    """That of `RATES`; of CIFAR-10 where the set has none of its own, of the paper's α where ours has none."""
    rates = RATES.get(data.removesuffix("-s"), RATES["cifar10"])
    return rates.get(name) or rates[name.replace("skipless-ours", "skipless-init")]


def cells(sets: Sequence[str], names: Sequence[str] = CELLS) -> dict[str, Experiment]:
    return {f"{data}/{name}": cell(data, name) for data in sets for name in names}


def told(name: str) -> str:
    """
    >>> told("skipless-init/soap")
    'skipless, initialized, SOAP'
    """
    model, optimizer = name.split("/")
    return f"{MODELS[model]}, {WORDS[optimizer]}"


def reached(run: Run) -> float | None:
    """Top-1 of the last epoch; 0 where training failed before there was any, for that is no reason to leave it out."""
    return 0.0 if run["top1"] is None and run["diverged"] is not None else run["top1"]
