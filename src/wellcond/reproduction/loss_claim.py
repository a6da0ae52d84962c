"""asa-fig2: does training fail without the SAB skip? ("Always Skip Attention", Fig. 2.)

Rule, written down before the runs. Training *fails* in a run if its loss stays without finite values, or
ends above 0.9 ln K (K classes; ln K is guessing), or ends 0.1 ln K above its own minimum. Reproduced if every run
without the SAB skip fails and no other does. Else it is said in how many it fails, and whether its loss ends higher
than with all skips by an interval.
"""

import math
from collections.abc import Sequence

from .claim import Judgement, Run
from .comparing import against, differences, interval_of, mean_row, over_seeds
from .experiments import TrainingClaim
from .skip_claim import NAMES, WORDS, vits
from .training_page import loss_sections

NUM_CLASSES = 200
GUESSING, RISE = 0.9, 0.1  # of ln K


def fails(run: Run) -> str:
    """Why training failed in this run, or "" where it did not."""
    chance = math.log(NUM_CLASSES)
    losses = [value for value in run["loss"]["value"] if value is not None]
    if run["diverged"] is not None or not losses:
        return "no finite loss"
    if losses[-1] > GUESSING * chance:
        return "never learns"
    return "rises again" if losses[-1] > min(losses) + RISE * chance else ""


def last_loss(run: Run) -> float | None:
    return run["loss"]["value"][-1] if run["loss"]["value"] else None


def judge_losses(runs: Sequence[Run]) -> Judgement:
    rows = []
    failed: dict[str, list[bool]] = {}
    for variant in dict.fromkeys(run["variant"] for run in runs):
        of_variant = [run for run in runs if run["variant"] == variant]
        reasons = [fails(run) for run in of_variant]
        failed[variant] = [bool(reason) for reason in reasons]
        told = f"fails in {sum(failed[variant])} of {len(reasons)}"
        told += f" ({', '.join(sorted(set(filter(None, reasons))))})" if any(reasons) else ""
        paper = "fails" if variant.endswith("no-sab-skip") else "trains"
        data, _, skips = variant.partition("/")
        values = over_seeds(runs, variant, last_loss)
        rows.append(mean_row(f"{NAMES[data]}, {WORDS[skips]}, last training loss", paper, values, told))
    cut = [f for variant, of in failed.items() if variant.endswith("no-sab-skip") for f in of]
    others = [f for variant, of in failed.items() if not variant.endswith("no-sab-skip") for f in of]
    if not cut or not others:
        verdict = "Not decided: both kinds of runs are needed."
    elif all(cut) and not any(others):
        verdict = "Reproduced: training fails without the SAB skip, and only there."
    else:
        worse = differences(runs, "tiny-imagenet/no-sab-skip", "tiny-imagenet/all-skips", last_loss)
        higher = against(None, interval_of(worse)) == "higher"
        words = "it learns less, its loss ends higher" if higher else "its loss does not end higher for sure"
        verdict = f"Not reproduced: without the SAB skip training fails in {sum(cut)} of {len(cut)} runs; {words}."
    return Judgement(rows=rows, verdict=verdict)


CLAIM = TrainingClaim(
    name="asa-fig2",
    says=(
        "Always Skip Attention, Fig. 2: on Tiny-ImageNet the training loss of ViT-Tiny without the SAB skip diverges "
        "after about 30 epochs; with all skips, and without the FFN skip, it falls."
    ),
    measures=(
        "The training loss, mean of each epoch. A run fails if its loss stays without finite values, ends above "
        f"{GUESSING} ln 200 (ln 200 is guessing), or ends {RISE} ln 200 above its own minimum. Reproduced if every run "
        "without the SAB skip fails and no other does."
    ),
    scaled_down="Patch 8 (64 tokens).",
    experiments=vits(("tiny-imagenet",)),
    quick=tuple(vits(("tiny-imagenet",))),
    judge=judge_losses,
    sections=loss_sections,
)
