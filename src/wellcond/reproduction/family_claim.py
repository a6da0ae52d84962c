"""asa-table4: DCT graying in other families ("Always Skip Attention", Table 4); the rule is that of graying_claim."""

from collections.abc import Sequence

from .claim import Judgement, Run
from .comparing import RULE, difference_row, differences, mean_row, over_seeds
from .experiments import Experiment, TrainingClaim
from .graying_claim import gain, grayed
from .training_page import accuracy_sections

EPOCHS = 12
FAMILIES = {"swin": ("Swin", 0.3), "cait": ("CaiT", 0.1), "pvt": ("PVT v2", 0.1)}


def judge_table4(runs: Sequence[Run]) -> Judgement:
    rows, told = [], []
    for family, (name, paper) in FAMILIES.items():
        for method in ("none", "dct"):
            if values := over_seeds(runs, f"{family}/{method}"):
                rows.append(mean_row(f"{name}, {'plain' if method == 'none' else 'DCT'}", "–", values))
        if values := differences(runs, f"{family}/dct", f"{family}/none"):
            rows.append(row := difference_row(f"{name}, gain", paper, values))
            told.append(f"{name}: {gain(row.interval)}")
    return Judgement(rows=rows, verdict=("; ".join(told) or "Not decided") + ".")


CLAIM = TrainingClaim(
    name="asa-table4",
    says=(
        "Always Skip Attention, Table 4: DCT graying lifts top-1 on ImageNet-1K, Swin-S by 0.3, CaiT-S24 by 0.1, "
        "PVT v2 b3 by 0.1."
    ),
    measures=(
        "Top-1 of the last epoch, ε = 0.95. A gain is reproduced if its whole 95 % interval lies above 0, not "
        "reproduced if it lies under 0, else not shown. " + RULE
    ),
    scaled_down=f"Small models of the families on Tiny-ImageNet, {EPOCHS} epochs.",
    experiments={
        f"{family}/{method}": Experiment(
            recipe=f"tiny-imagenet-{family}", changes={} if method == "none" else grayed(method)
        )
        for family in FAMILIES
        for method in ("none", "dct")
    },
    quick=("swin/none", "swin/dct", "cait/none", "cait/dct", "pvt/none", "pvt/dct"),
    judge=judge_table4,
    sections=accuracy_sections,
    epochs=EPOCHS,
)
