"""asa-fig6: ConvMixer, whose tokens are mixed by a convolution, without its skip ("Always Skip Attention", Fig. 6).

Rule, written down before the runs: reproduced if the 95 % interval of the difference touches ±0.2 points
and is not wider than ±1; not decided if it touches and is wider; else not reproduced.
"""

from collections.abc import Sequence

from .claim import Judgement, Run
from .comparing import best, differences, interval_of, mean_row, over_seeds
from .experiments import Experiment, TrainingClaim
from .skip_claim import NAMES, sets_of
from .training_page import accuracy_sections

CLOSE, NARROW = 0.2, 1.0  # points
MIXERS = {"skip": {}, "no-skip": {"model.cut_attention_skips": True}}


def judge_mixers(runs: Sequence[Run]) -> Judgement:
    rows, told = [], []
    for data in sets_of(runs):
        for name in MIXERS:
            if values := over_seeds(runs, f"{data}/{name}"):
                words = "with its skip" if name == "skip" else "without"
                rows.append(mean_row(f"{NAMES[data]}, {words}", "–", values, **best(runs, f"{data}/{name}")))
        if values := differences(runs, f"{data}/no-skip", f"{data}/skip"):
            verdict = mixer_verdict(interval_of(values))
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


CLAIM = TrainingClaim(
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
