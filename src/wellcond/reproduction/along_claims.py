"""cts-fig2, cts-fig3: judges along pre-training, and at two thirds of it ("Cutting the Skip", Figs. 2 and 3).

A run is judged at every sixth of its pre-training, on the last layer of DINO's teacher; where its epochs do not divide
by six, at an interval near to that which meets two thirds, and at the end.

Rules, written down before the runs, for each model and optimizer, differences seed by seed with Student's 95 %
interval:

- cts-fig2 is reproduced if the mIoU of the dense probe on one layer, mean over all moments, is higher without skips
  than with them by a whole interval above 0; not reproduced if it lies under 0; else not shown. The same is said of
  four layers together.
- cts-fig3 is reproduced if CorLoc without skips, at the end, is higher than with skips, at the end, in the same sense;
  *already at two thirds* if it is so, too, at the moment nearest to two thirds of pre-training.
"""

from collections.abc import Sequence

from ..config import ReproduceConfig
from .claim import Claim, Judgement, Run
from .comparing import Number, differences, mean_row, over_seeds
from .dino_cells import PAPER, SCALED, SCALED_VOC, SKIP, ahead_row, along_of, claim_of, on_cells, pairs, told
from .dino_page import along_sections
from .statistics import known_mean

PROBES = {"segmentation miou": "one layer", "segmentation miou_multi_scale": "four layers"}
CORLOC = "discovery corloc"
PAPER_CORLOC = {SKIP: "49.4 (SOAP, VOC 2012)", PAPER: "63.2 (SOAP, VOC 2012)"}


def mean_along(what: str) -> Number:
    """Mean over all moments of pre-training."""
    return lambda run: known_mean(along_of(run).get(what, []))


def at(share: float, what: str) -> Number:
    """At the moment nearest to a share of pre-training, the earlier one of two."""

    def number(run: Run) -> float | None:
        epochs, values = along_of(run)["epoch"], along_of(run).get(what)
        if not values:
            return None
        return values[min(range(len(epochs)), key=lambda i: (abs(epochs[i] - share * epochs[-1]), i))]

    return number


def judge_fig2(runs: Sequence[Run]) -> Judgement:
    rows, verdicts = [], []
    for what, layers in PROBES.items():
        number = mean_along(what)
        for variant in dict.fromkeys(run["variant"] for run in runs):
            if values := over_seeds(runs, variant, number):
                curve = next(along_of(run) for run in runs if run["variant"] == variant and what in along_of(run))
                name = f"{told(variant)}, mIoU of {layers} along the way"
                rows.append(mean_row(name, "–", values, epochs=curve["epoch"], first_seed=curve[what]))
        for name, ours, base in pairs(runs):
            if values := differences(runs, ours, base, number):
                row = ahead_row(f"{name}, mIoU of {layers}, without skips less with them", "> 0", values)
                rows.append(row)
                verdicts.append(f"{name}, {layers}: {row.verdict}")
    return Judgement(rows=rows, verdict=_all(verdicts))


def judge_fig3(runs: Sequence[Run]) -> Judgement:
    rows, verdicts = [], []
    end, early = at(1, CORLOC), at(2 / 3, CORLOC)
    for variant in dict.fromkeys(run["variant"] for run in runs):
        skips, optimizer = variant.split("/")[1:]
        for words, number in (("at the end", end), ("at two thirds", early)):
            if values := over_seeds(runs, variant, number):
                stated = PAPER_CORLOC.get(skips, "–") if optimizer == "soap" and number is end else "–"
                rows.append(mean_row(f"{told(variant)}, CorLoc {words}", stated, values))
    for name, ours, base in pairs(runs):
        said = []
        for words, number in (("at the end", end), ("already at two thirds", early)):
            if values := differences(runs, ours, base, number, end):
                paper = "+13.8 (VOC 2012)" if f"/{PAPER}/soap" in ours and number is end else "> 0"
                row = ahead_row(f"{name}, CorLoc {words}, less with skips at the end", paper, values)
                rows.append(row)
                said.append(f"{words} {row.verdict}")
        verdicts += [f"{name}: {', '.join(said)}"] if said else []
    return Judgement(rows=rows, verdict=_all(verdicts))


def _all(verdicts: Sequence[str]) -> str:
    return "; ".join(verdicts) + "." if verdicts else "Not decided: there is nothing to compare yet."


FIG2 = on_cells(
    name="cts-fig2",
    says=(
        "Cutting the Skip, Fig. 2: dense linear probes of DINO's features, with and without skips, with AdamW and with "
        "SOAP, throughout pre-training; without skips they are better (at the end, VOC 2012, AdamW: 62.3 for 56.3)."
    ),
    measures=(
        "mIoU of a dense linear probe on the last layer of the teacher, and on four layers together, about every sixth "
        "of pre-training, and at the end; the mean over these. Reproduced where the whole 95 % interval of the "
        "difference, seed by seed, lies above 0."
    ),
    judge=judge_fig2,
    sections=along_sections,
)
FIG3 = on_cells(
    name="cts-fig3",
    says=(
        "Cutting the Skip, Fig. 3: TokenCut finds more objects with DINO's features without skips than with them (VOC "
        "2012, SOAP: CorLoc 63.2 for 49.4), already at 200 of 300 epochs."
    ),
    measures=(
        "CorLoc of TokenCut on the keys of the teacher's last attention, about every sixth of pre-training, at two "
        "thirds of it and at the end. Reproduced where the whole 95 % interval of the difference to the model with "
        "skips at its end, seed by seed, lies above 0; already at two thirds where it does at that moment, too."
    ),
    scaled_down=SCALED + SCALED_VOC + " No COCO20k.",
    judge=judge_fig3,
    sections=along_sections,
)


def claim(options: ReproduceConfig) -> Claim:
    return claim_of(FIG3 if options.claim == "cts-fig3" else FIG2, options, judged=False)
