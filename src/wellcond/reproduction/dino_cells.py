"""DINO with and without skips ("Cutting the Skip", Figs. 2 to 4 and its dense probes), on Tiny-ImageNet.

{vit-tiny, vit-s} × {skip, skipless-init, skipless-ours} × {adamw, soap}. The third has the smaller α that helps with
labels (cts-beyond); no verdict on the paper hangs on it. All cells share everything but the skips, the weights they
begin with, the optimizer and its betas; learning rate, weight decay and schedule are the recipe's, which are those of
DINO's authors for AdamW with skips. Nothing is looked for, for any cell.

Runs are judged along the way, and after training by everything that any of these claims asks (dino_judged), so a run
of one claim is a run of all of them; only Figs. 2 and 3 ask no more than what was said along the way.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..config import ReproduceConfig
from . import pictures, skipless_cells
from .claim import Claim, Row, Run
from .comparing import against, mean_row
from .experiments import Experiment, TrainingClaim
from .pictures import PETS, VOC
from .skipless_cells import CUT, LESS_NOISE, OPTIMIZERS, WORDS

EPOCHS, PARTS = 24, 6
TINY = "tiny-imagenet"
MODELS = {"vit-tiny": "ViT-Tiny", "vit-s": "ViT-S"}
SKIP, PAPER, OURS = "skip", "skipless-init", "skipless-ours"
SKIPS = {skips: skipless_cells.MODELS[skips] for skips in (SKIP, PAPER, OURS)}
INIT = {"model.init.method": "skipless", "model.init.alpha": (1.8,), "model.init.beta": (1.0,), "model.init.c": (3.0,)}
ALONG = ("along",)
NEEDS = (*ALONG, "judged", "maps")
SIDE, SMALL = 160, 32  # of VOC pictures, the shorter one: 20 patches; of the quick version
WHERE = ("bbox_source=voc2012",)
AT_ONCE = 1024  # pictures that a judge reads together: small models are bound by launches
SCALED = (
    f"ViT-Tiny and ViT-S with patches of 8 on Tiny-ImageNet at 64 px, {EPOCHS} epochs, for ViT-S/16 on ImageNet-1K at "
    "224 px, 300 epochs; 4096 prototypes for 65536, small crops of 32 px for 96; learning rates not looked for. "
)
SCALED_VOC = (
    f"The VOC 2012 pictures that show animals and have official boxes, at {SIDE} px, for all of VOC 2012: their "
    "numbers compare with each other and not with published ones."
)


def cells() -> dict[str, Experiment]:
    found = {}
    for model in MODELS:
        for skips in SKIPS:
            for optimizer, changes in OPTIMIZERS.items():
                cut = {} if skips == SKIP else {**CUT, **INIT}
                smaller = LESS_NOISE if skips == OURS else {}
                own = {"monitor_every": 0, **changes, **cut, **smaller}
                found[f"{model}/{skips}/{optimizer}"] = Experiment(recipe=f"{TINY}-dino-{model}", changes=own)
    return found


QUICK = tuple(f"vit-tiny/{skips}/{optimizer}" for skips in (SKIP, PAPER) for optimizer in OPTIMIZERS)


def on_cells(scaled_down: str = SCALED + SCALED_VOC, **said: Any) -> TrainingClaim:
    """A claim on all cells; `said` is its name, what it says and how it is judged."""
    return TrainingClaim(scaled_down=scaled_down, experiments=cells(), quick=QUICK, epochs=EPOCHS, **said)


def claim_of(base: TrainingClaim, options: ReproduceConfig, *, judged: bool = True) -> Claim:
    """The claim, judged along the way and, where it asks for that, after training, on the sets that the user gives."""
    from .dino_judged import judge_all

    sources = find_sources(base.name, options, (TINY, VOC, PETS) if judged else (TINY, VOC))
    asked = along(sources, options)
    experiments = {name: replace(e, changes={**e.changes, **asked}) for name, e in base.experiments.items()}
    after = partial(judge_all, sources=sources, quick=options.quick) if judged else None
    return replace(base, experiments=experiments, after=after, needs=NEEDS if judged else ALONG).claim(options)


def find_sources(name: str, options: ReproduceConfig, sets: Sequence[str] = (TINY, VOC, PETS)) -> dict[str, str]:
    """Set → source of those that are looked at; ValueError where one is missing that a run would need."""
    if options.collect:
        return {}
    size = {"image_size": 16 if options.quick else 64, "quick": options.quick}
    found = {of: pictures.find(of, options.data, **size) for of in sets}
    missing = [of for of, source in found.items() if source is None]
    if missing and found[TINY] is not None:
        raise ValueError(f"{name} also looks at {' and '.join(missing)}; give --data {missing[0]}=PATH")
    return {of: source for of, source in found.items() if source is not None}


def along(sources: dict[str, str], options: ReproduceConfig) -> dict[str, Any]:
    """Changes of a config: which judges, when."""
    if VOC not in sources:
        return {}
    voc = sources[VOC]
    found: dict[str, Any] = {"along.judges": ("knn", "linear", f"segmentation={voc}", f"discovery={voc}")}
    if not stands_in(voc):
        found |= {"along.where": WHERE, "along.size": SMALL if options.quick else SIDE}
    if options.quick:
        return found | {"along.every": 1, "along.probe_epochs": 1, "along.segmentation_epochs": 1}
    return found | {"along.every": interval(options.epochs or EPOCHS), "along.batch_size": AT_ONCE}


def interval(epochs: int) -> int:
    """Epochs between two moments: a sixth of all, or what is nearest to it and meets two thirds to the epoch.

    >>> [interval(epochs) for epochs in (3, 20, 30, 100)]
    [1, 2, 5, 22]
    """
    early = [moment for moment in (2 * epochs // 3, -(-2 * epochs // 3)) if moment]
    fitting = [every for every in range(1, epochs + 1) if any(moment % every == 0 for moment in early)]
    return min(fitting, key=lambda every: max(PARTS * every / epochs, epochs / (PARTS * every)))


def stands_in(source: str) -> bool:
    """For pictures that are not there: procedural ones, which have other fields and classes."""
    return source.startswith("procedural")


# what the claims say of runs


def told(variant: str) -> str:
    """
    >>> told("vit-s/skipless-init/soap")
    'ViT-S, skipless, initialized, SOAP'
    """
    model, skips, optimizer = variant.split("/")
    return f"{MODELS[model]}, {SKIPS[skips]}, {WORDS[optimizer]}"


def along_of(run: Run) -> dict[str, list[Any]]:
    """What judges said along pre-training, by name, beside its epochs; none of either where the run diverged before."""
    return run.get("along", {"epoch": []})


def pairs(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """(name, skipless variant, the same with skips) of every model and optimizer of which there are runs."""
    there = {run["variant"] for run in runs}
    found = []
    for model, name in MODELS.items():
        for skips, more in ((PAPER, ""), (OURS, ", α = 0.5")):
            for optimizer, word in WORDS.items():
                ours, base = f"{model}/{skips}/{optimizer}", f"{model}/{SKIP}/{optimizer}"
                if there & {ours, base}:
                    found.append((f"{name}, {word}{more}", ours, base))
    return found


def ahead_row(name: str, paper: str, values: Sequence[float]) -> Row:
    """reproduced where the whole 95 % interval lies above 0, not reproduced under 0, else not shown."""
    row = mean_row(name, paper, values)
    said = {"higher": "reproduced", "lower": "not reproduced", "one seed": "one seed"}
    return replace(row, verdict=said.get(against(None, row.interval), "not shown"))
