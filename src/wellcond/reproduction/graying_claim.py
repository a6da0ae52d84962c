"""asa-table2: what Token Graying adds ("Always Skip Attention", Table 2).

Table 2 does not say its ε; ours are the best of Table 3, SVD 0.7 and DCT 0.95. The literal Algorithm 1 forgets to
multiply back by the largest singular value and so normalises every image; whether a gain comes from conditioning or
from contrast is asked by two control rows for each method: *literal* (rescale=False) and *contrast* (the norm of the
ungrayed tokens is kept).

The recipe was chosen before; its ungrayed model overfits and stays under the paper's 43.0. *softmax-strong* is
regularized as DeiT, with and without graying.

Rule, written down before the runs, of this claim and of asa-table3 and asa-table4: a gain is reproduced if
the whole 95 % interval of the difference to the ungrayed model, seed by seed, lies above 0; not reproduced if it lies
under 0; else not shown. It is there *at the same contrast* if the contrast-matched control gains, too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .claim import Judgement, Run
from .comparing import RULE, against, difference_row, differences, mean_row, over_seeds, top1
from .experiments import Experiment, TrainingClaim
from .training_page import accuracy_sections

EPSILON = {"svd": 0.7, "dct": 0.95}
VIT = "tiny-imagenet-vit-tiny"
EPOCHS, P4_EPOCHS, STRONG_EPOCHS = 60, 12, 100
CONTROLS: dict[str, bool | str] = {"literal": False, "contrast": "contrast"}


def grayed(method: str, epsilon: float | None = None, rescale: bool | str = True) -> dict[str, Any]:
    """Changes that gray a recipe's model."""
    changes = {"model.graying.method": method, "model.graying.epsilon": epsilon or EPSILON[method]}
    return changes if rescale is True else changes | {"model.graying.rescale": rescale}


ATTENTION = {"softmax": {}, "linear": {"model.attention": "linear", "model.k": 8.0}}  # k = √64 tokens
PAPER2 = {
    "linear/none": (43.0, 62.7),
    "linear/svd": (44.3, 68.8),
    "linear/dct": (44.2, 68.8),
    "softmax/none": (43.0, 67.3),
    "softmax/svd": (44.7, 69.7),
    "softmax/dct": (44.8, 69.7),
}
PAPER2 |= {
    f"softmax-{more}/{method}": PAPER2[f"softmax/{method}"]
    for more in ("p4", "strong")
    for method in ("none", "svd", "dct")
}


def _table2() -> dict[str, Experiment]:
    methods: dict[str, dict[str, Any]] = {"none": {}, "svd": grayed("svd"), "dct": grayed("dct")}
    found = {}
    for attention, changes in ATTENTION.items():
        for method, graying in methods.items():
            found[f"{attention}/{method}"] = Experiment(recipe=VIT, changes={**changes, **graying})
    for more, epochs in (("p4", P4_EPOCHS), ("strong", STRONG_EPOCHS)):
        for method, graying in methods.items():
            changes = {**graying, "epochs": epochs}
            found[f"softmax-{more}/{method}"] = Experiment(recipe=f"{VIT}-{more}", changes=changes)
    for method in ("svd", "dct"):
        for control, rescale in CONTROLS.items():
            found[f"softmax/{method}-{control}"] = Experiment(recipe=VIT, changes=grayed(method, rescale=rescale))
    return found


def top5(run: Run) -> float | None:
    return run["top5"]


def judge_table2(runs: Sequence[Run]) -> Judgement:
    variants = list(dict.fromkeys(run["variant"] for run in runs))
    rows = []
    for variant in variants:
        for words, number, i in (("top-1", top1, 0), ("top-5", top5, 1)):
            values = over_seeds(runs, variant, number)
            paper = f"{PAPER2[variant][i]:g}" if variant in PAPER2 else "–"
            rows.append(mean_row(f"{variant}, {words}", paper, values))
    gains = {}
    for variant in variants:
        base = f"{variant.partition('/')[0]}/none"
        if variant != base and (values := differences(runs, variant, base)):
            paper = PAPER2[variant][0] - PAPER2[base][0] if variant in PAPER2 else None
            rows.append(row := difference_row(f"{variant}, gain", None if paper is None else round(paper, 1), values))
            gains[variant] = gain(row.interval)
    return Judgement(rows=rows, verdict=_gains(gains))


def gain(interval: tuple[float, float] | None) -> str:
    """The rule of this file."""
    said = {"higher": "reproduced", "lower": "not reproduced"}
    return "one seed" if interval is None else said.get(against(None, interval), "not shown")


def fall(interval: tuple[float, float] | None) -> str:
    """The same of a number that is to become smaller."""
    return gain(None if interval is None else (-interval[1], -interval[0]))


def _gains(gains: Mapping[str, str]) -> str:
    told = [f"{variant} {verdict}" for variant, verdict in gains.items() if "-" not in variant.partition("/")[2]]
    for method in ("svd", "dct"):
        control = gains.get(f"softmax/{method}-contrast")
        if control is not None and gains.get(f"softmax/{method}") == "reproduced":
            by = "also at the same contrast" if control == "reproduced" else "but not shown at the same contrast"
            told.append(f"the gain of {method} is there {by}")
    return f"Gains: {'; '.join(told)}." if told else "Not decided: there is nothing to compare yet."


CLAIM = TrainingClaim(
    name="asa-table2",
    says=(
        "Always Skip Attention, Table 2: Token Graying lifts ViT-Tiny on Tiny-ImageNet, with softmax attention from "
        "43.0 to 44.7 (SVD) and 44.8 (DCT), with linear attention from 43.0 to 44.3 and 44.2."
    ),
    measures=(
        "Top-1 and top-5 of the last epoch; SVD with ε = 0.7, DCT with ε = 0.95. A gain is reproduced if its whole "
        "95 % interval lies above 0, not reproduced if it lies under 0, else not shown. Controls: literal (Algorithm 1 "
        "as it is printed) and contrast (the norm of the ungrayed tokens is kept). " + RULE
    ),
    scaled_down=(
        f"Patch 8 (64 tokens, k = 8) instead of 256 tokens and k = 16, {EPOCHS} epochs; softmax-p4 has the 256 tokens "
        f"and {P4_EPOCHS} epochs, the runs of asa-fig3-5; softmax-strong {STRONG_EPOCHS} epochs with mixup, cutmix, "
        "erasing, label smoothing and dropped paths."
    ),
    experiments=_table2(),
    quick=("softmax/none", "softmax/svd", "softmax/dct", "softmax/dct-contrast", "linear/none", "linear/dct"),
    judge=judge_table2,
    sections=accuracy_sections,
    epochs=EPOCHS,
)
