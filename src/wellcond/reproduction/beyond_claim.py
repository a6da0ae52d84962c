"""cts-beyond: what else helps a transformer without skips. Not in the paper; each is an option of the config.

calibrated    a temperature for every block, found so that attention stays as diagonal as in the first one
centred-gelu  GELU without its mean, which drives tokens together
tat           a leaky ReLU made for the depth of the model
annealed      skips whose gain falls from 1 to 0 over the first half of the run
dct           token graying on top
alpha-0.5     less noise Z beside the identity in W_Q W_Kᵀ ≈ αZ + βI, where the paper has α = 2
alpha-0.5-c-6 the same with W_V and W_O twice as large: norms undo that, but a step then changes them less
alpha-0.5-positions  the same with larger position embeddings: the tokens of a picture begin further apart

Rule, written down before the runs: an extension helps if the whole 95 % interval of its difference to skipless,
initialized, with the same optimizer and learning rate, seed by seed, lies above 0; it hurts if under 0; else nothing
is shown. The gap that remains is the difference to the model with skips and the same optimizer; the paper's headline
is SOAP without skips less AdamW with them.
"""

from collections.abc import Sequence
from typing import Any

from .claim import Judgement, Row, Run
from .comparing import against, best, difference_row, differences, mean_row, over_seeds
from .experiments import Experiment, TrainingClaim
from .graying_claim import grayed
from .skip_claim import sets_of
from .skipless_cells import EPOCHS, LESS_NOISE, NAMES, OPTIMIZERS, WORDS, cell, reached
from .training_page import accuracy_sections

CENTRED = {"model.activation": "centred-gelu"}
CALIBRATED = {"model.init.calibrate": True}
EXTENSIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "calibrated": CALIBRATED,
    "centred-gelu": CENTRED,
    "tat": {"model.activation": "tat"},
    "annealed": {"model.anneal_skips": 0.5},
    "dct": grayed("dct"),
    "calibrated-centred": {**CALIBRATED, **CENTRED},
    "alpha-0.5": LESS_NOISE,
    "alpha-0.5-positions": {**LESS_NOISE, "model.init.positions": 0.3},
    "alpha-0.5-c-6": {**LESS_NOISE, "model.init.c": (6.0,)},
}
VERDICTS = {"higher": "helps", "lower": "hurts", "one seed": "too few seeds"}
ON_TINY = ("none", "alpha-0.5")  # what was ahead in small trials (docs/log.md), on the second set


def _experiments() -> dict[str, Experiment]:
    found = {}
    for data, names in (("cifar10", EXTENSIONS), ("tiny-imagenet", ON_TINY)):
        for optimizer in OPTIMIZERS:
            found[f"{data}/{optimizer}/skip"] = cell(data, f"skip/{optimizer}")
            for name in names:
                changes = EXTENSIONS[name]
                found[f"{data}/{optimizer}/{name}"] = cell(data, f"skipless-init/{optimizer}", **changes)
    return found


def judge_beyond(runs: Sequence[Run]) -> Judgement:
    rows: list[Row] = []
    told = []
    for data in sets_of(runs):
        for optimizer, words in WORDS.items():
            found, said = _judged(runs, f"{data}/{optimizer}", f"{NAMES[data]}, {words}")
            rows += found
            if said:
                verdicts = "; ".join(f"{verdict}: {', '.join(of)}" for verdict, of in said.items())
                told.append(f"{NAMES[data]}, {words}: {verdicts}")
        ahead = []
        for name in EXTENSIONS:
            if values := differences(runs, f"{data}/soap/{name}", f"{data}/adamw/skip", reached):
                words = f"{NAMES[data]}, SOAP, {_label(name)}, less with skips, AdamW"
                rows.append(row := difference_row(words, None, values))
                if against(None, row.interval) == "higher":
                    ahead.append("the paper's" if name == "none" else name)
        if ahead:
            told.append(f"{NAMES[data]}, SOAP ahead of AdamW with skips: {', '.join(ahead)}")
    return Judgement(rows=rows, verdict=(". ".join(told) or "Not decided: there is nothing to compare yet") + ".")


def _judged(runs: Sequence[Run], of: str, words: str) -> tuple[list[Row], dict[str, list[str]]]:
    """Rows of a set and an optimizer, and what is said of which extensions."""
    rows: list[Row] = []
    for name in ("skip", *EXTENSIONS):
        if values := over_seeds(runs, f"{of}/{name}", reached):
            rows.append(mean_row(f"{words}, {_label(name)}", "–", values, **best(runs, f"{of}/{name}")))
    said: dict[str, list[str]] = {}
    for name in list(EXTENSIONS)[1:]:
        if values := differences(runs, f"{of}/{name}", f"{of}/none", reached):
            rows.append(row := difference_row(f"{words}, {name}, gain", None, values))
            verdict = VERDICTS.get(against(None, row.interval), "not shown to matter")
            said.setdefault(verdict, []).append(name)
    for name in EXTENSIONS:
        if values := differences(runs, f"{of}/{name}", f"{of}/skip", reached):
            rows.append(difference_row(f"{words}, {_label(name)}, less with skips", None, values))
    return rows, said


def _label(name: str) -> str:
    return {"skip": "with skips", "none": "skipless, initialized"}.get(name, f"skipless, initialized, {name}")


CLAIM = TrainingClaim(
    name="cts-beyond",
    says="Not in the paper: extensions of its initialization that its theory suggests.",
    measures=(
        "Top-1 of the last epoch. Gains are to skipless, initialized, seed by seed, with Student's 95 % interval; an "
        "extension helps where it lies above 0. Learning rates are those of skipless, initialized (cts-rates)."
    ),
    scaled_down="ViT-Tiny at 64 tokens on CIFAR-10; of Tiny-ImageNet the smaller α alone.",
    experiments=_experiments(),
    quick=tuple(f"cifar10/adamw/{name}" for name in ("skip", *EXTENSIONS)),
    judge=judge_beyond,
    sections=accuracy_sections,
    epochs=EPOCHS,
)
