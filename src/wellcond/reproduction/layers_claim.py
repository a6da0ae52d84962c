"""cts-depth: DINO's features by layer ("Cutting the Skip": nine layers without skips against twelve with them).

Rule, written down before the runs, for each model and optimizer and for mIoU of the dense probe and CorLoc on VOC:
reproduced if the layer at three quarters of the depth without skips lies above the last layer with skips by a whole
95 % interval above 0, seed by seed; not reproduced if it lies under 0; else not shown. Where the best layer is, is told
beside it.
"""

import math
from collections.abc import Sequence

from ..config import ReproduceConfig
from .claim import Claim, Judgement, Run
from .comparing import Number, differences, mean_row, over_seeds
from .dense_claim import ASKED, Asked, reached
from .dino_cells import ahead_row, claim_of, on_cells, pairs, told
from .dino_page import curve, layer_sections

DECISIVE = (ASKED[0], ASKED[2])


def at_depth(asked: Asked, share: float) -> Number:
    """At the layer that ends a share of the depth: the ninth of twelve for ¾."""

    def number(run: Run) -> float | None:
        values = curve(run, asked.data, asked.judge, asked.name)
        return values[math.ceil(len(values) * share) - 1] if values else None

    return number


def best_layer(asked: Asked) -> Number:
    """Counted from 1."""

    def number(run: Run) -> float | None:
        values = curve(run, asked.data, asked.judge, asked.name)
        return 1.0 + max(range(len(values)), key=lambda i: values[i]) if values else None

    return number


def judge_layers(runs: Sequence[Run]) -> Judgement:
    rows, verdicts = [], []
    for asked in DECISIVE:
        for variant in dict.fromkeys(run["variant"] for run in runs):
            for words, number in (
                ("¾ of the depth", at_depth(asked, 0.75)),
                ("all of it", reached(asked)),
                ("best layer", best_layer(asked)),
            ):
                if values := over_seeds(runs, variant, number):
                    rows.append(mean_row(f"{asked.words}: {told(variant)}, {words}", "–", values))
        for name, ours, base in pairs(runs):
            if values := differences(runs, ours, base, at_depth(asked, 0.75), reached(asked)):
                words = f"{asked.words}: {name}, ¾ without skips less all with them"
                rows.append(row := ahead_row(words, "> 0", values))
                verdicts.append(f"{asked.words}, {name}: {row.verdict}")
    return Judgement(rows=rows, verdict="; ".join(verdicts or ["Not decided: there is nothing to compare yet"]) + ".")


DEPTH = on_cells(
    name="cts-depth",
    says="Cutting the Skip: nine layers of a skipless DINO ViT-S give better dense features than twelve with skips.",
    measures=(
        "Every judge of cts-dense at every layer, its tokens through the final norm. Reproduced where the layer at "
        "three quarters of the depth without skips lies above the last layer with skips by the whole 95 % interval, "
        "seed by seed."
    ),
    judge=judge_layers,
    sections=layer_sections,
)


def claim(options: ReproduceConfig) -> Claim:
    return claim_of(DEPTH, options)
