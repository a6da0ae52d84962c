"""cts-beyond: what else helps a transformer without skips. Not in the paper; each is an option of the config.

calibrated    a temperature for every block, found so that attention stays as diagonal as in the first one
centred-gelu  GELU without its mean, which drives tokens together
tat           a leaky ReLU made for the depth of the model
annealed      skips whose gain falls from 1 to 0 over the first half of the run
dct           token graying on top
alpha-0.5     less noise Z beside the identity in W_Q W_Kᵀ ≈ αZ + βI, where the paper has α = 2
alpha-0.5-c-6 the same with W_V and W_O twice as large: norms undo that, but a step then changes them less

Rule, written down before the runs: an extension helps if the whole 95 % interval of its difference to skipless,
initialized, with the same optimizer and learning rate, seed by seed, lies above 0; it hurts if under 0; else nothing
is shown. The gap that remains is the difference to the model with skips and the same optimizer.
"""

from collections.abc import Sequence
from typing import Any

from ..config import ReproduceConfig
from .claim import Claim, Judgement, Run
from .comparing import against, best, by_seed, difference_row, differences, mean_row
from .experiments import Experiment, TrainingClaim
from .graying_claim import grayed
from .skipless_cells import EPOCHS, OPTIMIZERS, WORDS, cell, reached
from .training_page import accuracy_sections

CENTRED = {"model.activation": "centred-gelu"}
CALIBRATED = {"model.init.calibrate": True}
LESS_NOISE = {"model.init.alpha": (0.5,)}
EXTENSIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "calibrated": CALIBRATED,
    "centred-gelu": CENTRED,
    "tat": {"model.activation": "tat"},
    "annealed": {"model.anneal_skips": 0.5},
    "dct": grayed("dct"),
    "calibrated-centred": {**CALIBRATED, **CENTRED},
    "alpha-0.5": LESS_NOISE,
    "alpha-0.5-c-6": {**LESS_NOISE, "model.init.c": (6.0,)},
}


def _experiments() -> dict[str, Experiment]:
    found = {}
    for optimizer in OPTIMIZERS:
        found[f"{optimizer}/skip"] = cell("cifar10", f"skip/{optimizer}")
        for name, changes in EXTENSIONS.items():
            found[f"{optimizer}/{name}"] = cell("cifar10", f"skipless-init/{optimizer}", **changes)
    return found


def judge_beyond(runs: Sequence[Run]) -> Judgement:
    rows, told = [], []
    for optimizer, words in WORDS.items():
        for name in ("skip", *EXTENSIONS):
            if values := list(by_seed(runs, f"{optimizer}/{name}", reached).values()):
                rows.append(mean_row(f"{words}, {_label(name)}", "–", values, **best(runs, f"{optimizer}/{name}")))
        said: dict[str, list[str]] = {}
        for name in list(EXTENSIONS)[1:]:
            if values := differences(runs, f"{optimizer}/{name}", f"{optimizer}/none", reached):
                rows.append(row := difference_row(f"{words}, {name}, gain", None, values))
                verdict = {"higher": "helps", "lower": "hurts"}.get(against(None, row.interval), "not shown to matter")
                said.setdefault(verdict, []).append(name)
        for name in EXTENSIONS:
            if values := differences(runs, f"{optimizer}/{name}", f"{optimizer}/skip", reached):
                rows.append(difference_row(f"{words}, {_label(name)}, less with skips", None, values))
        if said:
            told.append(f"{words}: " + "; ".join(f"{verdict}: {', '.join(of)}" for verdict, of in said.items()))
    return Judgement(rows=rows, verdict=(". ".join(told) or "Not decided: there is nothing to compare yet") + ".")


def _label(name: str) -> str:
    return {"skip": "with skips", "none": "skipless, initialized"}.get(name, f"skipless, initialized, {name}")


BEYOND = TrainingClaim(
    name="cts-beyond",
    says="Not in the paper: extensions of its initialization that its theory suggests.",
    measures=(
        "Top-1 of the last epoch. Gains are to skipless, initialized, seed by seed, with Student's 95 % interval; an "
        "extension helps where it lies above 0. Learning rates are those of skipless, initialized (cts-rates)."
    ),
    scaled_down="ViT-Tiny at 64 tokens on CIFAR-10.",
    experiments=_experiments(),
    quick=tuple(f"adamw/{name}" for name in ("skip", *EXTENSIONS)),
    judge=judge_beyond,
    sections=accuracy_sections,
    epochs=EPOCHS,
)


def claim(options: ReproduceConfig) -> Claim:
    return BEYOND.claim(options)
