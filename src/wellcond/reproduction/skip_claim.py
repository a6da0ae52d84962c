"""asa-fig1c: what is lost without a skip ("Always Skip Attention", Fig. 1c).

Rule, written down before the runs: reproduced on a set if the accuracy without the SAB skip lies under
that with all skips and under that without the FFN skip, both with the whole 95 % interval of the difference; not
reproduced if one of these intervals lies above 0; else not shown. Beside it each difference is compared with the
paper's number.
"""

from collections.abc import Sequence

from .claim import Judgement, Row, Run
from .comparing import RULE, against, best, difference_row, differences, interval_of, mean_row, over_seeds
from .experiments import Experiment, TrainingClaim
from .training_page import accuracy_sections

SKIPS = {
    "all-skips": {},
    "no-ffn-skip": {"model.cut_mlp_skips": True},
    "no-sab-skip": {"model.cut_attention_skips": True},
}
WORDS = {"all-skips": "all skips", "no-ffn-skip": "no FFN skip", "no-sab-skip": "no SAB skip"}
NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashion-mnist": "Fashion-MNIST",
    "tiny-imagenet": "Tiny-ImageNet",
}
PAPER = {("cifar10", "no-ffn-skip"): -2.0, ("cifar10", "no-sab-skip"): -22.0}


def vits(sets: Sequence[str]) -> dict[str, Experiment]:
    return {
        f"{data}/{skips}": Experiment(recipe=f"{data}-vit-tiny", changes=changes)
        for data in sets
        for skips, changes in SKIPS.items()
    }


def sets_of(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run["variant"].partition("/")[0] for run in runs))


def judge_skips(runs: Sequence[Run]) -> Judgement:
    rows: list[Row] = []
    told = []
    for data in sets_of(runs):
        full, no_ffn, no_sab = (f"{data}/{skips}" for skips in SKIPS)
        for skips in SKIPS:
            if values := over_seeds(runs, f"{data}/{skips}"):
                rows.append(mean_row(f"{NAMES[data]}, {WORDS[skips]}", "–", values, **best(runs, f"{data}/{skips}")))
        for skips in ("no-ffn-skip", "no-sab-skip"):
            if values := differences(runs, f"{data}/{skips}", full):
                name = f"{NAMES[data]}, {WORDS[skips]}, difference"
                rows.append(difference_row(name, PAPER.get((data, skips)), values))
        told.append(
            f"{NAMES[data]}: {_skips_verdict(differences(runs, no_sab, full), differences(runs, no_sab, no_ffn))}"
        )
    return Judgement(rows=rows, verdict="; ".join(told) + ".")


def _skips_verdict(lost: Sequence[float], beyond: Sequence[float]) -> str:
    """Of the differences to all skips and to no FFN skip."""
    intervals = [interval_of(values) for values in (lost, beyond)]
    if None in intervals:
        return "too few seeds"
    said = {against(None, interval) for interval in intervals}
    if said == {"lower"}:
        return "reproduced, the SAB skip is the one that matters"
    return "not reproduced" if "higher" in said else "not shown that the SAB skip matters more than the FFN skip"


CLAIM = TrainingClaim(
    name="asa-fig1c",
    says=(
        "Always Skip Attention, Fig. 1c: ViT-Tiny on CIFAR-10 loses about 2 points of top-1 without the FFN skips and "
        "about 22 without the skips around attention; on larger sets it fails."
    ),
    measures=(
        "Top-1 of the last epoch on the validation set, one set of hyper-parameters, chosen with all skips. "
        "Reproduced on a set where no SAB skip lies under all skips and under no FFN skip with the whole interval. "
        + RULE
    ),
    scaled_down="Patch 4 at 32 px (64 tokens), patch 8 at 64 px; Fashion-MNIST is not in the paper.",
    experiments=vits(tuple(NAMES)),
    quick=("cifar10/all-skips", "cifar10/no-ffn-skip", "cifar10/no-sab-skip"),
    judge=judge_skips,
    sections=accuracy_sections,
)
