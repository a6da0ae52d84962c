"""asa-fig1b, asa-fig3-5: κ by site, by block and by epoch of trained models ("Always Skip Attention", Figs. 1b, 3–5).

ViT-Tiny at patch 4: 257 tokens of width 192, so that n ≥ d as in the paper. By epoch: what a run measures while it
trains, in float32, on 16 fixed validation pictures. At the end, what the verdicts are on: the trained weights in
float64 on the same number of pictures, for in float32 SA(X) is rank-deficient and its κ infinite.

Rules, written down before the runs:

- asa-fig1b is reproduced if log κ of SA(X), mean over blocks, lies above each of the other three by more than 1 (a
  factor e) with the whole 95 % interval over seeds.
- asa-fig3-5: the picture of Fig. 3 is reproduced for an attention if SA(X) lies above X + SA(X) by an interval above 0;
  of Figs. 4 and 5 for a method if κ after the SABs, mean over blocks, ends lower than without graying by an interval.

SA(X) is "attention alone" in tables and figures, X + SA(X) "attention + skip", as on every page.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..config import ReproduceConfig, TrainConfig
from ..probes.rows import SITE_WORDS
from .claim import Claim, Judgement, Row, Run
from .comparing import Number, difference_row, differences, mean_row, over_seeds
from .experiments import Experiment, TrainingClaim
from .graying_claim import P4_EPOCHS, fall, gain, grayed
from .layer_page import sections
from .statistics import known_mean

VIT = "tiny-imagenet-vit-tiny-p4"
LINEAR = {"model.attention": "linear", "model.k": 16.0}
CUT = {"model.cut_attention_skips": True}
ALONE, OTHERS = "sab_out", ("sab_sum", "ffn_out", "ffn_sum")  # SA(X); X + SA(X), MLP(X), X + MLP(X)
FAR = 1.0
GAP = "≈ 3"  # read off the figures: 6 against 3
NUM_IMAGES = 16


def measure(out: Path, config: TrainConfig, images: Any) -> dict[str, Any]:
    """Site → log κ by block of the trained model in float64; None where it is infinite on every picture.

    On the CPU: a true SVD of a few hundred small matrices is quicker there.
    """
    import torch

    from ..data.augment import evaluation
    from ..probes import probe
    from ..training import load

    raw = torch.from_numpy(images.val.images[:NUM_IMAGES].copy())
    pictures = evaluation(raw, config.data.image_size, config.data.mean, config.data.std).double()
    found: dict[str, list[float | None]] = {}
    for row in probe(load(out).double().cpu(), [pictures], quantities={"log_kappa"}, attention=False):
        found.setdefault(row.site, []).append(None if row.value is None else round(row.value, 3))
    return {"trained": found}


def trained(site: str) -> Number:
    """Mean over blocks of log κ at a site of the trained model; over those where it is finite."""
    return lambda run: known_mean(run["trained"][site])


def gap(upper: str, lower: str) -> Number:
    """log κ at one site less that at another, means over blocks; None where one is infinite everywhere."""

    def number(run: Run) -> float | None:
        values = trained(upper)(run), trained(lower)(run)
        return None if values[0] is None or values[1] is None else values[0] - values[1]

    return number


def judge_sums(runs: Sequence[Run]) -> Judgement:
    variant = "softmax/none"
    rows = []
    for site in (ALONE, *OTHERS):
        values = over_seeds(runs, variant, trained(site))
        rows.append(mean_row(f"log κ of {SITE_WORDS[site]}", "≈ 6" if site == ALONE else "≈ 3", values))
    shown = []
    for site in OTHERS:
        values = over_seeds(runs, variant, gap(ALONE, site))
        rows.append(row := _gap_row(f"{SITE_WORDS[ALONE]} less {SITE_WORDS[site]}", values, bar=FAR))
        shown.append(None if row.interval is None else row.interval[0] > FAR)
    verdict = "reproduced" if all(shown) else "not decided" if None in shown else "not reproduced"
    return Judgement(rows=rows, verdict=f"Attention alone far worse conditioned than the other three: {verdict}.")


def _gap_row(name: str, values: Sequence[float], *, bar: float) -> Row:
    """The verdict is the claim's own: the paper has a figure and no number to be as large as."""
    row = mean_row(name, GAP, values)
    if row.interval is None:
        return row
    low = row.interval[0]
    return replace(row, verdict="far above" if low > FAR else "above" if low > bar else "not shown")


FIG1B = TrainingClaim(
    name="asa-fig1b",
    says="Always Skip Attention, Fig. 1b: in a trained ViT-Tiny log κ of SA(X) is about 6, at the other sites about 3.",
    measures=(
        f"Mean over blocks and {NUM_IMAGES} validation pictures of log κ of the trained model, in float64. Reproduced "
        f"if attention alone lies above each of the other three by more than {FAR:g}, with the whole 95 % interval "
        "over seeds."
    ),
    scaled_down=f"{P4_EPOCHS} epochs; 16 pictures instead of a tenth of the validation set.",
    experiments={"softmax/none": Experiment(recipe=VIT)},
    quick=("softmax/none",),
    judge=judge_sums,
    sections=sections,
    epochs=P4_EPOCHS,
    after=measure,
    needs=("trained",),
)


def judge_layers(runs: Sequence[Run]) -> Judgement:
    rows, told = [], []
    after = trained("sab_sum")
    for variant in dict.fromkeys(run["variant"] for run in runs):
        for site in ("sab_in", "sab_out", "sab_sum"):
            values = over_seeds(runs, variant, trained(site))
            rows.append(mean_row(f"{variant}, {SITE_WORDS[site]}", "–", values))
    for attention in ("softmax", "linear"):
        if values := over_seeds(runs, f"{attention}/none", gap("sab_out", "sab_sum")):
            name = f"{attention}: {SITE_WORDS['sab_out']} less {SITE_WORDS['sab_sum']}"
            rows.append(row := _gap_row(name, values, bar=0.0))
            told.append(f"Fig. 3, {attention}: {gain(row.interval)}")
        for method in ("svd", "dct"):
            if values := differences(runs, f"{attention}/{method}", f"{attention}/none", after):
                name = f"{attention}: {SITE_WORDS['sab_sum']}, {method} less none"
                rows.append(row := difference_row(name, None, values))
                told.append(f"Figs. 4 and 5, {attention}, {method}: {fall(row.interval)}")
    return Judgement(rows=rows, verdict=("; ".join(told) or "Not decided") + ".")


def _layers() -> dict[str, Experiment]:
    found = {}
    for attention, changes in (("softmax", {}), ("linear", LINEAR)):
        found[f"{attention}/none"] = Experiment(recipe=VIT, changes=changes)
        found[f"{attention}/no-sab-skip"] = Experiment(recipe=VIT, changes={**changes, **CUT})
        for method in ("svd", "dct"):
            found[f"{attention}/{method}"] = Experiment(recipe=VIT, changes={**changes, **grayed(method)})
    return found


FIG3TO5 = TrainingClaim(
    name="asa-fig3-5",
    says=(
        "Always Skip Attention, Figs. 3, 4 and 5: over all blocks attention raises log κ from about 3 to about 6 and "
        "its skip brings it back, linear and softmax alike; during training and at its end graying lowers κ after the "
        "SABs."
    ),
    measures=(
        f"log κ by block and epoch on {NUM_IMAGES} validation pictures, mean over blocks at the end, in float64. "
        "Fig. 3: reproduced if attention alone lies above attention + skip by an interval above 0 (far above: above "
        f"{FAR:g}); Figs. 4 and 5: if κ of attention + skip ends lower with graying, by an interval under 0. "
        "Differences seed by seed, with Student's 95 % interval."
    ),
    scaled_down=f"{P4_EPOCHS} epochs; ViT-Tiny also for Fig. 5, which is of ViT-B; ε is 0.7 (SVD) and 0.95 (DCT).",
    experiments=_layers(),
    quick=("softmax/none", "softmax/no-sab-skip", "softmax/dct", "linear/none"),
    judge=judge_layers,
    sections=sections,
    epochs=P4_EPOCHS,
    after=measure,
    needs=("trained",),
)

CLAIMS = {claim.name: claim for claim in (FIG1B, FIG3TO5)}


def claim(options: ReproduceConfig) -> Claim:
    return CLAIMS[options.claim].claim(options)
