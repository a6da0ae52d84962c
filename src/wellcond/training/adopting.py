"""Fine-tuning: a model starts from the backbone of another run.

Everything under the head is taken over and must fit by name and shape. The head is fresh, and so is the final norm
where the two have it in different places (one reads the class token, the other the mean of the patches).
"""

import warnings
from typing import Any

from torch import nn

from wellcond.config import ModelConfig, changed_fields
from wellcond.runs import Run
from wellcond.skips import load_own
from wellcond.training.loading import config_of, load

TOP = ("head.", "norm.", "fc_norm.")
FITS_ANYWAY = (
    "attention",
    "k",
    "cut_attention_skips",
    "cut_mlp_skips",
    "activation",
    "graying",
)  # no weight hangs on it
OWN = ("num_classes", "drop_path", "init")  # of the run that starts


def adopt_(model: nn.Module, source: str, config: ModelConfig) -> None:
    """Fill the model with the backbone of the run `source`; ValueError, and the model untouched, where it does not fit.

    A run of another treatment (skips, attention, graying) fits; a warning says so once, and also that an initialization
    that was asked for gives way to the run's weights.
    """
    if not Run(source).exists():
        raise ValueError(f"pretrained is {source!r}, which is no run; train it first, or name another")
    other = load(source)
    theirs, ours = other.state_dict(), model.state_dict()
    changed = changed_fields(config_of(Run(source)).model, config)
    initialized = ("init",) if config.init.method != "default" else ()
    treatment = {name: pair for name, pair in changed.items() if name.startswith((*FITS_ANYWAY, *initialized))}
    form = {name: pair for name, pair in changed.items() if not name.startswith((*FITS_ANYWAY, *OWN))}
    body = [name for name in {**ours, **theirs} if not name.startswith(TOP)]
    wrong = [n for n in body if n not in ours or n not in theirs or ours[n].shape != theirs[n].shape]
    if not wrong and _heads(other) != _heads(model):  # the same weights, cut into heads elsewhere
        wrong = ["the heads of attention"]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ValueError(
            f"pretrained {source!r} does not fit this model at {wrong[0]}{more}: {_said(form)}; make them alike, or "
            "name another run"
        )
    if treatment:
        told = f"pretrained {source!r} was another model: {_said(treatment)}; its weights are taken"
        warnings.warn(told, stacklevel=2)
    shared = {n: t for n, t in theirs.items() if n in ours and not n.startswith("head.") and t.shape == ours[n].shape}
    load_own(model, {**ours, **shared})


def _heads(model: nn.Module) -> list[Any]:
    return [module.num_heads for module in model.modules() if hasattr(module, "num_heads")]


def _said(changed: dict[str, tuple[Any, Any]]) -> str:
    """Which fields of the model's config differ."""
    named = [f"model.{name} is {old!r} there, {new!r} here" for name, (old, new) in changed.items()]
    return "; ".join(named) or "the configs agree, so it was written by another version"
