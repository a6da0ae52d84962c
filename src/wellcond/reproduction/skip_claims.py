"""asa-fig1c, asa-fig2, asa-fig6: what is lost without a skip ("Always Skip Attention", Figs. 1c, 2 and 6).

Rules, written down before anything was measured:

- asa-fig1c is reproduced on a set if the accuracy without the SAB skip lies under that with all skips and under that
  without the FFN skip, both with a whole 95 % interval of the difference; not reproduced if one interval lies above 0;
  else not shown. Beside it each difference is compared with the paper's number.
- asa-fig2: training *fails* in a run if its loss stays without finite values, or ends above 0.9 ln K (K classes; ln K
  is guessing), or ends 0.1 ln K above its own minimum. It is reproduced if every run without the SAB skip fails and no
  other does; "learns less" if none fails, but the loss without the SAB skip ends above the others' by an interval.
- asa-fig6 is reproduced if the interval of the difference touches ±0.2 points and is not wider than ±1; not decided if
  it is wider and touches; else not reproduced.
"""

import math
from collections.abc import Sequence

from ..config import ReproduceConfig
from .claim import Claim, Judgement, Row, Run
from .comparing import RULE, against, by_seed, difference_row, differences, mean_row
from .experiments import Experiment, TrainingClaim
from .training_page import accuracy_sections, loss_sections

SKIPS = {
    "all-skips": {},
    "no-ffn-skip": {"model.cut_mlp_skips": True},
    "no-sab-skip": {"model.cut_attention_skips": True},
}
WORDS = {"all-skips": "all skips", "no-ffn-skip": "no FFN skip", "no-sab-skip": "no SAB skip"}
NAMES = {"cifar10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST", "tiny-imagenet": "Tiny-ImageNet"}
CLASSES = {"cifar10": 10, "fashion-mnist": 10, "tiny-imagenet": 200}
PAPER = {("cifar10", "no-ffn-skip"): -2.0, ("cifar10", "no-sab-skip"): -22.0}
CLOSE, NARROW = 0.2, 1.0  # points, of asa-fig6
GUESSING, RISE = 0.9, 0.1  # of ln K, of asa-fig2


def _vits(sets: Sequence[str]) -> dict[str, Experiment]:
    return {
        f"{data}/{skips}": Experiment(recipe=f"{data}-vit-tiny", changes=changes)
        for data in sets
        for skips, changes in SKIPS.items()
    }


def sets_of(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run["variant"].partition("/")[0] for run in runs))


# ---- asa-fig1c


def judge_skips(runs: Sequence[Run]) -> Judgement:
    rows: list[Row] = []
    told = []
    for data in sets_of(runs):
        full, no_ffn, no_sab = (f"{data}/{skips}" for skips in SKIPS)
        for skips in SKIPS:
            if values := list(by_seed(runs, f"{data}/{skips}").values()):
                rows.append(mean_row(f"{NAMES[data]}, {WORDS[skips]}", "–", values, **_best(runs, f"{data}/{skips}")))
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
    intervals = [mean_row("", "", values).interval for values in (lost, beyond)]
    if None in intervals:
        return "too few seeds"
    said = {against(None, interval) for interval in intervals}
    if said == {"lower"}:
        return "reproduced, the SAB skip is the one that matters"
    return "not reproduced" if "higher" in said else "not shown"


def _best(runs: Sequence[Run], variant: str) -> dict[str, object]:
    of_variant = [run for run in runs if run["variant"] == variant]
    return {
        "best": [run["best_top1"] for run in of_variant],
        "top5": [run["top5"] for run in of_variant],
        "num_diverged": sum(run["diverged"] is not None for run in of_variant),
    }


FIG1C = TrainingClaim(
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
    scaled_down="Patch 4 at 32 px (64 tokens); Fashion-MNIST and Tiny-ImageNet instead of CIFAR-100.",
    experiments=_vits(("cifar10", "fashion-mnist", "tiny-imagenet")),
    quick=("cifar10/all-skips", "cifar10/no-ffn-skip", "cifar10/no-sab-skip"),
    judge=judge_skips,
    sections=accuracy_sections,
)


# ---- asa-fig2


def fails(run: Run) -> str:
    """Why training failed in this run, or "" where it did not."""
    chance = math.log(CLASSES[run["variant"].partition("/")[0]])
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
        values = list(by_seed(runs, variant, last_loss).values())
        rows.append(mean_row(f"{NAMES[data]}, {WORDS[skips]}, last training loss", paper, values, told))
    cut = [f for variant, of in failed.items() if variant.endswith("no-sab-skip") for f in of]
    others = [f for variant, of in failed.items() if not variant.endswith("no-sab-skip") for f in of]
    if not cut or not others:
        verdict = "Not decided: both kinds of runs are needed."
    elif all(cut) and not any(others):
        verdict = "Reproduced: training fails without the SAB skip, and only there."
    else:
        worse = differences(runs, "tiny-imagenet/no-sab-skip", "tiny-imagenet/all-skips", last_loss)
        higher = against(None, mean_row("", "", worse).interval) == "higher"
        words = "it learns less, its loss ends higher" if higher else "its loss does not end higher for sure"
        verdict = f"Not reproduced: without the SAB skip training fails in {sum(cut)} of {len(cut)} runs; {words}."
    return Judgement(rows=rows, verdict=verdict)


FIG2 = TrainingClaim(
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
    experiments=_vits(("tiny-imagenet",)),
    quick=tuple(_vits(("tiny-imagenet",))),
    judge=judge_losses,
    sections=loss_sections,
)


# ---- asa-fig6

MIXERS = {"skip": {}, "no-skip": {"model.cut_attention_skips": True}}


def judge_mixers(runs: Sequence[Run]) -> Judgement:
    rows, told = [], []
    for data in sets_of(runs):
        for name in MIXERS:
            if values := list(by_seed(runs, f"{data}/{name}").values()):
                words = "with its skip" if name == "skip" else "without"
                rows.append(mean_row(f"{NAMES[data]}, {words}", "–", values, **_best(runs, f"{data}/{name}")))
        if values := differences(runs, f"{data}/no-skip", f"{data}/skip"):
            row = mean_row("", "", values)
            verdict = mixer_verdict(row.interval)
            rows.append(mean_row(f"{NAMES[data]}, difference", f"within ±{CLOSE:g}", values, verdict))
            told.append(f"{NAMES[data]}: {verdict}")
    return Judgement(rows=rows, verdict=("; ".join(told) or "Not decided") + ".")


def mixer_verdict(interval: tuple[float, float] | None) -> str:
    """
    >>> [mixer_verdict(interval) for interval in ((-0.5, 0.1), (-3.0, 2.0), (0.3, 0.6), None)]
    ['reproduced', 'not decided', 'not reproduced', 'one seed']
    """
    if interval is None:
        return "one seed"
    low, high = interval
    if low > CLOSE or high < -CLOSE:
        return "not reproduced"
    return "reproduced" if high - low <= 2 * NARROW else "not decided"


FIG6 = TrainingClaim(
    name="asa-fig6",
    says="Always Skip Attention, Fig. 6: ConvMixer-Tiny trains as well without its skip, within 0.2 points.",
    measures=(
        "Top-1 of the last epoch, with the skip around the depthwise convolution and without; one set of "
        "hyper-parameters. The difference is taken seed by seed, with Student's 95 % interval. Reproduced if the "
        f"interval touches ±{CLOSE:g} and is not wider than ±{NARROW:g}, not decided if it is wider, else not "
        "reproduced."
    ),
    scaled_down="ConvMixer-Tiny is not defined in the paper: width 256, depth 8, kernel 5. CIFAR-10 and Tiny-ImageNet.",
    experiments={
        f"{data}/{name}": Experiment(recipe=f"{data}-convmixer-tiny", changes=changes)
        for data in ("cifar10", "tiny-imagenet")
        for name, changes in MIXERS.items()
    },
    quick=("cifar10/skip", "cifar10/no-skip"),
    judge=judge_mixers,
    sections=accuracy_sections,
)

CLAIMS = {claim.name: claim for claim in (FIG1C, FIG2, FIG6)}


def claim(options: ReproduceConfig) -> Claim:
    return CLAIMS[options.claim].claim(options)
