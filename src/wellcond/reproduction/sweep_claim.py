"""asa-table3: accuracy and κ by ε, for both methods ("Always Skip Attention", Table 3).

Rules, written down before the runs: κ is reproduced if the mean κ_in over blocks falls from every ε to the
next smaller one; a gain in accuracy as in graying_claim. Seeds differ more than neighbouring ε do, so the means are
over the seeds that every ε has.
"""

from collections.abc import Sequence
from itertools import pairwise

from .claim import Judgement, Row, Run
from .comparing import RULE, Number, by_seed, difference_row, differences, mean_row, over_seeds, top1
from .experiments import Experiment, TrainingClaim
from .graying_claim import EPOCHS, VIT, gain, grayed
from .statistics import known_mean
from .training_page import accuracy_sections

SWEEP = {"svd": (0.9, 0.8, 0.7, 0.6, 0.5), "dct": (0.97, 0.95, 0.93, 0.9, 0.85)}
PAPER3 = {  # top-1, κ_in, κ_out of ViT-B on ImageNet-1K
    "none": (81.0, 6.72, 6.74),
    "svd/0.9": (81.2, 6.64, 6.66),
    "svd/0.8": (81.2, 6.47, 6.66),
    "svd/0.7": (81.4, 6.15, 6.17),
    "svd/0.6": (81.4, 5.73, 5.71),
    "svd/0.5": (81.0, 5.29, 5.25),
    "dct/0.97": (81.1, 6.47, 6.49),
    "dct/0.95": (81.3, 6.42, 6.43),
    "dct/0.93": (81.2, 6.33, 6.35),
    "dct/0.9": (81.1, 6.25, 6.25),
    "dct/0.85": (81.0, 6.01, 6.02),
}


def kappa_at(site: str) -> Number:
    """Mean over blocks of log κ at a site after the last epoch; over those where it is finite."""
    return lambda run: known_mean((run["kappa"].get(site) or [[]])[-1])


KAPPA_IN, KAPPA_OUT = kappa_at("sab_in"), kappa_at("sab_sum")  # before and after the SAB, which has its skip


def judge_table3(runs: Sequence[Run]) -> Judgement:
    variants = [variant for variant in PAPER3 if any(run["variant"] == variant for run in runs)]
    rows: list[Row] = []
    best: dict[str, str] = {}
    for variant in variants:
        paper = PAPER3[variant]
        for words, number, i in (("top-1", top1, 0), ("κ_in", KAPPA_IN, 1), ("κ_out", KAPPA_OUT, 2)):
            values = over_seeds(runs, variant, number)
            rows.append(mean_row(f"{variant}, {words}", f"{paper[i]:g}", values))
        if variant != "none" and (values := differences(runs, variant, "none")):
            rows.append(row := difference_row(f"{variant}, gain", round(paper[0] - 81.0, 1), values))
            best[variant] = gain(row.interval)
    told = [_order(runs, variants, method) for method in SWEEP]
    gained = [variant for variant, verdict in best.items() if verdict == "reproduced"]
    told.append(f"a gain in top-1 is shown for {', '.join(gained) or 'no ε'}")
    return Judgement(rows=rows, verdict="; ".join(told) + ".")


def _order(runs: Sequence[Run], variants: Sequence[str], method: str) -> str:
    """Does κ_in fall with ε?"""
    names = [v for v in variants if v == "none" or v.startswith(f"{method}/")]
    found = [by_seed(runs, name, KAPPA_IN) for name in names]
    seeds = set(found[0]).intersection(*found) if len(found) >= 3 else set()
    if not seeds:
        return f"{method}: κ not decided"
    falls = all(a > b for a, b in pairwise(sum(values[seed] for seed in seeds) for values in found))
    told = "falls with every ε, reproduced" if falls else "does not fall with every ε, not reproduced"
    return f"{method}: κ_in {told}"


CLAIM = TrainingClaim(
    name="asa-table3",
    says=(
        "Always Skip Attention, Table 3: a smaller ε gives smaller condition numbers before and after the SABs, and "
        "the accuracy is best in between, at 0.7 and 0.6 (SVD) and 0.95 (DCT)."
    ),
    measures=(
        "Top-1 of the last epoch; κ_in and κ_out: mean over blocks and 16 validation pictures of log κ before the SAB "
        "and after it, skip included, at the end of training. κ is reproduced if κ_in, over the seeds that every ε "
        "has, falls from each to the next smaller one. " + RULE
    ),
    scaled_down=f"ViT-Tiny on Tiny-ImageNet, patch 8 (65 × 192 tokens), {EPOCHS} epochs, for ViT-B on ImageNet-1K.",
    experiments={
        "none": Experiment(recipe=VIT),
        **{
            f"{method}/{epsilon:g}": Experiment(recipe=VIT, changes=grayed(method, epsilon))
            for method, epsilons in SWEEP.items()
            for epsilon in epsilons
        },
    },
    quick=("none", "svd/0.7", "svd/0.5", "dct/0.95"),
    judge=judge_table3,
    sections=accuracy_sections,
    epochs=EPOCHS,
)
