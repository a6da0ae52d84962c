"""cts-pca: principal components of DINO's patch features as colours ("Cutting the Skip", Fig. 4, not cherry-picked).

The maps are those of the first pictures of the validation half of VOC animals, in the order of the file; nobody chose
them. The paper lets the reader see that they are cleaner without skips. What is seen is measured, too, by a number that
is ours: how well the first component alone, whichever sign, tells the patches of the animals from the others.

Rule, written down before the runs, for each model and optimizer: reproduced if the area under the ROC curve of the
first component, mean over the first pictures, is higher without skips than with them by a whole 95 % interval above 0,
seed by seed; not reproduced if it lies under 0; else not shown.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ..config import ReproduceConfig
from .claim import Claim, Judgement, Run
from .comparing import differences, mean_row, over_seeds
from .dino_cells import VOC, ahead_row, claim_of, find_sources, on_cells, pairs, told
from .dino_page import map_sections

NUMBERS = {"auc": "area under the curve of the first component", "explained": "variance in three components"}


def judge_maps(runs: Sequence[Run]) -> Judgement:
    rows, verdicts = [], []
    for what, words in NUMBERS.items():
        for variant in dict.fromkeys(run["variant"] for run in runs):
            if values := over_seeds(runs, variant, lambda run, what=what: run["maps"][what]):
                rows.append(mean_row(f"{told(variant)}, {words}, %", "–", values))
    for name, ours, base in pairs(runs):
        if values := differences(runs, ours, base, lambda run: run["maps"]["auc"]):
            rows.append(row := ahead_row(f"{name}, {NUMBERS['auc']}, without skips less with them", "> 0", values))
            verdicts.append(f"{name}: {row.verdict}")
    told_ = "; ".join(verdicts) or "Not decided: there is nothing to compare yet"
    return Judgement(rows=rows, verdict=f"{told_}. The maps are on the page, for the reader to see.")


PCA = on_cells(
    name="cts-pca",
    says="Cutting the Skip, Fig. 4: the representations that DINO learns without skips, seen without cherry-picking.",
    measures=(
        "The first three principal components of each picture's own patch features, last layer of the teacher, as red, "
        "green and blue, of the first pictures of the validation half. The number, which is ours: area under the ROC "
        "curve of the first component against the mask of the patches, whichever sign, in percent, mean over the first "
        "64 pictures. Reproduced where the whole 95 % interval of the difference, seed by seed, lies above 0."
    ),
    judge=judge_maps,
)


def claim(options: ReproduceConfig) -> Claim:
    source = find_sources(PCA.name, options).get(VOC)
    return claim_of(replace(PCA, sections=partial(map_sections, source=source, quick=options.quick)), options)
