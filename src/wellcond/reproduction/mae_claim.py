"""asa-table5: MAE with and without Token Graying, fine-tuned ("Always Skip Attention", Table 5), at ViT-Tiny's size.

A run is a pre-training and its fine-tuning, one after the other: one call yields the whole run. A pre-training that
diverges is not fine-tuned, and counts as diverged; its seed has no accuracy. What was grayed in pre-training is grayed
in fine-tuning and in evaluation. Graying mixes patches, so where the whole picture is grayed before it is masked,
visible patches know a little of hidden ones; *visible* grays the visible patches by themselves, in pre-training alone:
a fine-tuned model sees all.

Rule, written down before the runs, that of asa-table2: a gain is reproduced if the whole 95 % interval of the
difference in top-1 to the ungrayed model, seed by seed, lies above 0; not reproduced if under 0; else not shown.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from .. import recipes
from ..config import ReproduceConfig, TrainConfig
from .claim import Claim, Judgement, Run
from .comparing import RULE, difference_row, differences, mean_row, over_seeds, top1
from .experiments import Experiment, TrainingClaim, essence, small
from .graying_claim import gain, grayed, top5
from .training_page import accuracy_sections, loss_sections

PRETRAINED, TUNED = "tiny-imagenet-mae-vit-tiny", "tiny-imagenet-vit-tiny-finetune"
EPOCHS, TUNED_EPOCHS = 100, 30
PAPER = {"none": (83.0, 96.4), "dct": (83.2, 96.6)}
WORDS = {"none": "not grayed", "dct": "DCT, before masking", "dct-visible": "DCT, visible patches"}
VARIANTS = {
    "none": Experiment(recipe=PRETRAINED),
    "dct": Experiment(recipe=PRETRAINED, changes=grayed("dct")),
    "dct-visible": Experiment(recipe=PRETRAINED, changes={**grayed("dct"), "mae.visible": True}),
}
# of a run: those of fine-tuning, and the seconds that it took in all its starts
FOUND = ("top1", "top5", "best_top1", "best_epoch", "accuracy", "diverged", "seconds")


def tuned_config(before: TrainConfig, quick: bool, **own: Any) -> TrainConfig:
    """The config of the fine-tuning of a run: its graying, else the recipe's."""
    changes: dict[str, Any] = {"model.graying": before.model.graying, "epochs": TUNED_EPOCHS, "monitor_every": 0}
    changes |= {"evaluate_every": 5, "keep": 1}
    if quick:
        options = recipes.get(TUNED).model.options
        changes |= small(TUNED)
        changes["model.options"] = (*changes["model.options"], *options)
    return recipes.get(TUNED, **changes, **own)


def tune(out: Path, config: TrainConfig, images: Any, *, quick: bool) -> dict[str, Any]:
    """Fine-tune the run `out`, beside it; its accuracies stand for the whole."""
    import torch

    from ..runs import Run as Directory
    from ..training import Diverged, train
    from ..training.feeding import ImageSupply
    from .training_runs import record

    torch._dynamo.reset()  # of another model than the runs before and after it
    data = {"data.train": config.data.train, "data.val": config.data.val}
    own = {"seed": config.seed, "device": config.device, "pretrained": str(out), **data}
    tuned, diverged = out.with_name(f"{out.name}-tuned"), None
    try:
        train(
            tuned_config(config, quick, **own),
            tuned,
            open_supply=lambda config, processes: ImageSupply(config, processes, images=images),
        )
    except Diverged:
        diverged = max((row["step"] for row in Directory(tuned).rows()), default=0)
    found = record(Directory(tuned), diverged)
    return {name: found[name] for name in FOUND} | {"tuned_loss": found["loss"]}


def judge_table5(runs: Sequence[Run]) -> Judgement:
    rows, verdicts = [], []
    for variant, words in WORDS.items():
        for name, number, i in (("top-1", top1, 0), ("top-5", top5, 1)):
            if values := over_seeds(runs, variant, number):
                paper = f"{PAPER[variant][i]:g}" if variant in PAPER else "–"
                rows.append(mean_row(f"{words}, {name}", paper, values))
        if values := over_seeds(runs, variant, lambda run: run.get("val_loss")):
            rows.append(mean_row(f"{words}, validation loss of pre-training", "–", values))
    for variant in list(WORDS)[1:]:
        for name, number, i in (("top-1", top1, 0), ("top-5", top5, 1)):
            if values := differences(runs, variant, "none", number):
                paper = round(PAPER[variant][i] - PAPER["none"][i], 1) if variant in PAPER else None
                rows.append(row := difference_row(f"{WORDS[variant]}, gain in {name}", paper, values))
                verdicts += [f"{WORDS[variant]} {gain(row.interval)}"] if number is top1 else []
    told = f"Gains: {'; '.join(verdicts)}." if verdicts else "Not decided: there is nothing to compare yet."
    return Judgement(rows=rows, verdict=told + _failed(runs))


def _failed(runs: Sequence[Run]) -> str:
    """Which variants lost seeds: a mean over the others says less."""
    count = Counter(run["variant"] for run in runs if run.get("diverged") is not None)
    told = (f"{WORDS[variant]} in {number}" for variant, number in count.items())
    return f" Runs that diverged: {', '.join(told)}." if count else ""


TABLE5 = TrainingClaim(
    name="asa-table5",
    says=(
        "Always Skip Attention, Table 5: a ViT-B that MAE pre-trains with DCT graying reaches 83.2/96.6 after "
        "fine-tuning on ImageNet-1K, without 83.0/96.4."
    ),
    measures=(
        "Top-1 and top-5 of the last epoch of fine-tuning. DCT with ε = 0.95, of the whole picture before masking, or "
        "of the visible patches alone; what is painted is never grayed. A gain is reproduced if its whole 95 % "
        "interval lies above 0, not reproduced if it lies under 0, else not shown. " + RULE
    ),
    scaled_down=(
        f"ViT-Tiny with patches of 8 on Tiny-ImageNet at 64 px, {EPOCHS} epochs, for ViT-B/16 on ImageNet-1K at 224 "
        f"px, 400 epochs; fine-tuned for {TUNED_EPOCHS} epochs, not 100; a decoder of 4 × 192 for 8 × 512."
    ),
    experiments=VARIANTS,
    quick=tuple(VARIANTS),
    judge=judge_table5,
    sections=lambda content: accuracy_sections(content) + loss_sections(content),
    epochs=EPOCHS,
    needs=("tuned_loss",),
    after_diverged=False,
)


def claim(options: ReproduceConfig) -> Claim:
    made = replace(TABLE5, after=partial(tune, quick=options.quick)).claim(options)

    def settings(quick: bool) -> dict[str, Any]:
        """Those of the fine-tuning decide a run, too."""
        found = made.settings(quick)
        for variant, of_variant in found.items():
            tuned = essence(tuned_config(TABLE5.config(variant, options), quick))
            of_variant["tuned"] = {name: value for name, value in tuned.items() if name != "pretrained"}
        return found

    return replace(made, settings=settings)
