"""cts-dense: what DINO learns with and without skips ("Cutting the Skip", its dense probes and object discovery).

Rule, written down before the runs, for each model: dense features without skips are better (reproduced) if in both of
the paper's headline cells the whole 95 % interval of the difference, seed by seed, lies above 0: mIoU of one layer
with AdamW, and CorLoc on VOC with SOAP; not reproduced if both lie under 0; else what each says is told. Every other
number is judged by itself in the same sense, and is not part of the verdict.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..config import ReproduceConfig
from .claim import Claim, Judgement, Run
from .comparing import Number, differences, mean_row, over_seeds
from .dino_cells import MODELS, PAPER, PETS, SKIP, TINY, VOC, ahead_row, claim_of, on_cells, pairs, told
from .dino_page import layer_sections
from .skipless_cells import WORDS


class Asked(NamedTuple):
    """A number of a judged run, and what the paper has for it: optimizer → with skips, without."""

    words: str
    data: str
    judge: str
    name: str
    paper: dict[str, tuple[float, float]] = {}  # noqa: RUF012  # never changed


ASKED = (
    Asked("VOC animals, mIoU of one layer", VOC, "segmentation", "miou", {"adamw": (56.3, 62.3)}),
    Asked("VOC animals, mIoU of four layers", VOC, "segmentation", "miou_multi_scale", {"adamw": (61.6, 65.4)}),
    Asked("VOC animals, CorLoc", VOC, "discovery", "corloc", {"soap": (49.4, 63.2)}),
    Asked("Tiny-ImageNet, CorLoc", TINY, "discovery", "corloc"),
    Asked("Oxford pets, foreground IoU", PETS, "discovery", "foreground_iou"),
    Asked("Tiny-ImageNet, k-NN top-1", TINY, "knn", "top1"),
    Asked("Tiny-ImageNet, linear probe top-1", TINY, "linear", "top1"),
)
HEADLINES = ((ASKED[0], "adamw"), (ASKED[2], "soap"))


def reached(asked: Asked) -> Number:
    """Of the last layer."""
    return lambda run: run["judged"].get(asked.data, {}).get(asked.judge, {}).get(asked.name)


def judge_dense(runs: Sequence[Run]) -> Judgement:
    rows = []
    said: dict[tuple[str, str, str], str] = {}
    for asked in ASKED:
        number = reached(asked)
        for variant in dict.fromkeys(run["variant"] for run in runs):
            if values := over_seeds(runs, variant, number):
                rows.append(mean_row(f"{asked.words}: {told(variant)}", _stated(asked, variant), values))
        for name, ours, base in pairs(runs):
            if values := differences(runs, ours, base, number):
                model, skips, optimizer = ours.split("/")
                stated = asked.paper.get(optimizer) if skips == PAPER else None
                paper = f"{stated[1] - stated[0]:+.1f} (VOC 2012)" if stated else "–"
                rows.append(row := ahead_row(f"{asked.words}: {name}, without skips less with them", paper, values))
                if skips == PAPER:
                    said[model, asked.words, optimizer] = row.verdict
    verdicts = [f"{MODELS[model]}: {_verdict(model, said)}" for model in MODELS if any(key[0] == model for key in said)]
    return Judgement(rows=rows, verdict=". ".join(verdicts or ["Not decided: there is nothing to compare yet"]) + ".")


def _stated(asked: Asked, variant: str) -> str:
    _, skips, optimizer = variant.split("/")
    numbers = dict(zip((SKIP, PAPER), asked.paper.get(optimizer, ()), strict=False))
    return f"{numbers[skips]:g} (VOC 2012)" if skips in numbers else "–"


def _verdict(model: str, said: dict[tuple[str, str, str], str]) -> str:
    """The rule of this file."""
    found = [said.get((model, asked.words, optimizer), "not measured") for asked, optimizer in HEADLINES]
    if len(set(found)) == 1 and found[0] in ("reproduced", "not reproduced"):
        return f"better dense features without skips {found[0]}"
    told = zip(HEADLINES, found, strict=True)
    return "; ".join(f"{asked.words}, {WORDS[optimizer]} {verdict}" for (asked, optimizer), verdict in told)


DENSE = on_cells(
    name="cts-dense",
    says=(
        "Cutting the Skip: DINO's dense features are better without skips: VOC 2012, one layer 62.3 for 56.3 and four "
        "layers 65.4 for 61.6 mIoU with AdamW; CorLoc of TokenCut 63.2 for 49.4 with SOAP."
    ),
    measures=(
        "The trained teacher, frozen, last layer. Dense probe: batch norm and one linear layer on patch tokens; CorLoc "
        "and foreground IoU by TokenCut on keys; k-NN with k = 20; linear probe, its rate chosen on the training half. "
        "Reproduced for a model where the whole 95 % interval of the difference, seed by seed, lies above 0 for mIoU "
        "of one layer with AdamW and for CorLoc on VOC with SOAP."
    ),
    judge=judge_dense,
    sections=layer_sections,
)


def claim(options: ReproduceConfig) -> Claim:
    return claim_of(DENSE, options)
