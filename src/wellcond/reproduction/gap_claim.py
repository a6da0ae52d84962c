"""cts-gap: what still separates skipless, initialized (our α) from with skips; how it moves with epochs and with width.

Cells of cts-table1 on CIFAR-10 as they are, trained for `LONG` epochs, and as ViT-S; all with the learning rates that
cts-rates has found for ViT-Tiny.

Rule, written down before the runs: the gap is the top-1 without skips less that with them, same optimizer, seed by
seed. It closes with epochs, or with width, if the whole 95 % interval of its change, seed by seed, lies above 0; it
widens if under 0; else no change is shown.
"""

from collections.abc import Sequence

from .claim import Judgement, Run
from .comparing import against, best, by_seed, difference_row, mean_row, over_seeds
from .experiments import Experiment, TrainingClaim
from .skipless_cells import EPOCHS, OPTIMIZERS, WORDS, cell, reached, told
from .training_page import accuracy_sections

LONG = 3 * EPOCHS
SCALES = {"base": "ViT-Tiny", "long": f"ViT-Tiny, {LONG} epochs", "wide": "ViT-S"}
MOVES = {"long": "epochs", "wide": "width"}
VERDICTS = {"higher": "closes", "lower": "widens", "one seed": "too few seeds"}
SKIP, OURS = "skip", "skipless-ours"


def _experiments() -> dict[str, Experiment]:
    found = {}
    for optimizer in OPTIMIZERS:
        for model in (SKIP, OURS):
            name = f"{model}/{optimizer}"
            found[f"base/{name}"] = cell("cifar10", name)
            found[f"long/{name}"] = cell("cifar10", name, epochs=LONG)
            found[f"wide/{name}"] = cell("cifar10-s", name)
    return found


def gaps(runs: Sequence[Run], scale: str, optimizer: str) -> dict[int, float]:
    """Seed → top-1 without skips less that with them."""
    ours, theirs = (by_seed(runs, f"{scale}/{model}/{optimizer}", reached) for model in (OURS, SKIP))
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def judge_gap(runs: Sequence[Run]) -> Judgement:
    rows, said = [], []
    for optimizer, words in WORDS.items():
        for scale, label in SCALES.items():
            for model in (SKIP, OURS):
                variant = f"{scale}/{model}/{optimizer}"
                if values := over_seeds(runs, variant, reached):
                    name = f"{label}, {told(f'{model}/{optimizer}')}"
                    rows.append(mean_row(name, "–", values, **best(runs, variant)))
            if values := list(gaps(runs, scale, optimizer).values()):
                rows.append(difference_row(f"{label}, {words}, gap", None, values))
        base = gaps(runs, "base", optimizer)
        for scale, move in MOVES.items():
            there = gaps(runs, scale, optimizer)
            if values := [there[seed] - base[seed] for seed in there if seed in base]:
                rows.append(row := difference_row(f"{words}, change of the gap with {move}", None, values))
                said.append(f"{words}, with {move}: {VERDICTS.get(against(None, row.interval), 'no change shown')}")
    return Judgement(rows=rows, verdict=("; ".join(said) or "Not decided: there is nothing to compare yet") + ".")


CLAIM = TrainingClaim(
    name="cts-gap",
    says="Not in the paper: how the gap of the best model without skips to the one with them moves.",
    measures=(
        f"Top-1 of the last epoch on CIFAR-10: {EPOCHS} epochs of ViT-Tiny, {LONG} of them, {EPOCHS} of ViT-S. A gap "
        "is without skips less with them, seed by seed, with Student's 95 % interval; it closes where the interval of "
        "its change lies above 0. Learning rates are those of cts-rates."
    ),
    scaled_down="ViT-Tiny and ViT-S at 64 tokens on CIFAR-10.",
    experiments=_experiments(),
    quick=tuple(f"{scale}/{model}/soap" for scale in ("base", "wide") for model in (SKIP, OURS)),
    judge=judge_gap,
    sections=accuracy_sections,
    epochs=EPOCHS,
)
