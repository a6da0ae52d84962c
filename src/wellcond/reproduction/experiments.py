"""A claim that trains: variants are recipes with something changed, runs are run directories.

All variants of a claim share one set of hyper-parameters, the recipe's, which was chosen on the model with all skips
and without graying. Nothing is tuned for a variant.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import recipes
from ..config import MAY_CHANGE, ReproduceConfig, TrainConfig, from_json, to_json
from ..report import Section
from . import pictures
from .claim import Claim, Judgement, Run

if TYPE_CHECKING:
    from ..training.feeding import Images

# How a run is looked at, not what it is: runs that differ in these alone are the same.
ASIDE = MAY_CHANGE | {"recipe", "seed", "data.train", "data.val"}
ASIDE |= {"along", "log_every", "evaluate_every", "monitor_every"}
LOG_EVERY = 10  # steps: every epoch of a small set has rows of its own


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One variant: a recipe, and what is changed in it by dotted name."""

    recipe: str
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainingClaim:
    """What a `Claim` says, and the experiments it is judged by; `epochs` None is the recipe's."""

    name: str
    says: str
    measures: str
    scaled_down: str
    experiments: Mapping[str, Experiment]
    quick: Sequence[str]
    judge: Callable[[Sequence[Run]], Judgement]
    sections: Callable[[dict[str, Any]], list[Section]] | None = None
    epochs: int | None = None
    after: Callable[[Path, TrainConfig, "Images"], dict[str, Any]] | None = None
    """What is measured on the trained model, too; `needs` names what it adds to a run. It may say its `seconds` itself,
    where an earlier portion had measured a part of it."""
    needs: tuple[str, ...] = ()
    after_diverged: bool = True
    """Also where the run diverged: its last checkpoint."""

    def claim(self, options: ReproduceConfig) -> Claim:
        """The claim with the user's options; variants whose pictures are not there are left out."""
        sources = self._sources(options)
        present = [name for name in self.experiments if options.collect or sources.get(self.dataset(name)) is not None]
        if not present and not (options.out / f"{self.name}.json").exists():
            raise ValueError(f"{self.name} needs {' or '.join(sources)}; give --data FOLDER or --data NAME=PATH")
        missing = [name for name, source in sources.items() if source is None and not options.collect]

        from .training_runs import RECORDED, Runner, resolve, tell  # needs torch

        device = resolve(options.device, options.quick)
        runner = Runner(self, options, {name: source for name, source in sources.items() if source}, device)
        return Claim(
            name=self.name,
            says=self.says,
            measures=self.measures,
            scaled_down=self.scaled_down,
            variants=tuple(present),
            quick_variants=tuple(name for name in self.quick if name in present),
            settings=lambda quick: self.settings(options),
            measure=runner.measure,
            judge=self.judge,
            sections=self.sections,
            device=device,
            order=tuple(self.experiments),
            left_out=f"Left out, for the pictures are not given: {', '.join(missing)}." if missing else "",
            admit=runner.admit,
            identity=lambda variant: identity(self.config(variant, options)),
            holds=RECORDED,
            needs=self.needs,
            tell=tell,
        )

    def dataset(self, variant: str) -> str:
        """The set that a variant is trained on: what its recipe names."""
        return _base(self.experiments[variant].recipe).data.train

    def config(self, variant: str, options: ReproduceConfig, **own: Any) -> TrainConfig:
        """The whole config of a run; `own` are its seed, sources and device."""
        experiment = self.experiments[variant]
        changes: dict[str, Any] = {"keep": 1, "log_every": LOG_EVERY, **experiment.changes}
        if options.quick:
            changes |= small(experiment.recipe)
            if options.data and changes["model.num_classes"]:
                changes["model.num_classes"] = _base(experiment.recipe).model.num_classes  # those of the pictures
        if epochs := options.epochs or (None if options.quick else self.epochs):
            changes["epochs"] = experiment.changes.get("epochs", epochs)
        return recipes.get(experiment.recipe, **changes, **own)

    def settings(self, options: ReproduceConfig) -> dict[str, Any]:
        """Everything that decides a run but its seed, by variant."""
        return {variant: essence(self.config(variant, options)) for variant in self.experiments}

    def _sources(self, options: ReproduceConfig) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for variant in self.quick if options.quick else self.experiments:
            size = self.config(variant, options).data.image_size
            name = self.dataset(variant)
            if name not in found:
                found[name] = pictures.find(name, options.data, image_size=size, quick=options.quick)
        return found


def essence(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name → value of the fields that decide a run and are not their defaults, as JSON takes them.

    A field that a later version adds, with a default that changes nothing, changes nothing here. Epochs and the like
    come first: where two differ, it is those that a user gave.
    """
    found: dict[str, Any] = {}
    for entry in sorted(dataclasses.fields(config), key=lambda e: dataclasses.is_dataclass(getattr(config, e.name))):
        name, value = prefix + entry.name, getattr(config, entry.name)
        if name in ASIDE:
            continue
        if dataclasses.is_dataclass(value):
            found |= essence(value, f"{name}.")
        elif value != entry.default or type(value) is not type(entry.default):
            found[name] = json.loads(json.dumps(value))
    return found


def identity(config: TrainConfig) -> str:
    """Twelve digits that two configs share if their runs are the same but for the seed."""
    read = from_json(to_json(config), TrainConfig)  # 5 epochs of warm-up become 5.0
    return hashlib.sha256(json.dumps(essence(read), sort_keys=True).encode()).hexdigest()[:12]


@cache
def _base(recipe: str) -> TrainConfig:
    return recipes.get(recipe)


def small(recipe: str) -> dict[str, Any]:
    """The quick version: a model and pictures so small that a run takes a second."""
    base = _base(recipe)
    name = base.model.name
    changes: dict[str, Any] = {
        "epochs": 2,
        "batch_size": 16,
        "compile": False,
        "graph": "off",
        "precision": "float32",
        "log_every": 1,
        "checkpoint_every": 2,
        "monitor_every": 1,
        "monitor_images": 4,
        "data.augment.padding": 2,
        "data.image_size": 16,
        "model.image_size": 16,
        "model.num_classes": 10,
        "model.drop_path": 0.0,
    } | _small_objective(base)
    if name.startswith(("vit", "cait")):
        options = ("embed_dim", 12), ("depth", 2), ("num_heads", 3)
        return changes | {"model.patch_size": 4, "model.options": options}
    if name.startswith("convmixer"):
        return changes | {"model.options": (("dim", 12), ("depth", 2))}
    changes |= {"data.image_size": 32, "model.image_size": 32}
    if name.startswith("swin"):
        return changes | {"model.options": (("embed_dim", 24), ("window_size", 4))}
    return changes | {"model.name": "pvt_v2_b0"}


def _small_objective(base: TrainConfig) -> dict[str, Any]:
    if base.objective == "mae":
        return {"model.num_classes": 0, "mae.decoder_depth": 1, "mae.decoder_width": 12, "mae.decoder_heads": 3}
    if base.objective == "dino":  # whose crops are no augmentation
        small = {"dino.out_dim": 16, "dino.hidden": 16, "dino.bottleneck": 8, "dino.local_size": 8}
        return {"model.num_classes": 0, "data.augment.padding": base.data.augment.padding, **small}
    return {}
