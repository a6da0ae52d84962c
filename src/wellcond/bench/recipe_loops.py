"""The loops that are measured: recipes with the batch of one GPU, and small ones that show they run."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import recipes
from ..config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Work:
    """A recipe with something changed, its pictures, and how long it is measured."""

    title: str
    recipe: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    count: int  # pictures
    side: int | None = None  # of the cache; None: as the pictures are
    steps: int  # of a stretch
    rounds: int
    streamed: bool = False
    short: bool = False  # attention of few tokens by kernels of our own, too
    grayed: bool = True
    num_error_images: int = 32


WORKS = {
    "vit-tiny-32": Work(
        title="ViT-Tiny/4, 32 px, batch 512", recipe="cifar10-vit-tiny", count=50_000,
        steps=100, rounds=10, short=True, grayed=False,
    ),
    "vit-tiny-64": Work(
        title="ViT-Tiny/8, 64 px, batch 1024", recipe="tiny-imagenet-vit-tiny", changes={"batch_size": 1024},
        count=20_000, steps=50, rounds=8,
    ),
    "vit-base-224": Work(
        title="ViT-B/16, 224 px, batch 256, from a uint8 cache of 256 px", recipe="imagenet-vit-b",
        changes={"batch_size": 256}, count=3_072, side=256, steps=20, rounds=5, streamed=True, num_error_images=8,
    ),
    "dino-64": Work(
        title="DINO, ViT-Tiny/8, 64 px, 2 + 8 crops, batch 512", recipe="tiny-imagenet-dino-vit-tiny",
        count=20_000, steps=20, rounds=8, grayed=False,
    ),
}  # fmt: skip
SMALL = (("embed_dim", 48), ("depth", 1), ("num_heads", 3))
SMALL_DINO = {"dino.out_dim": 64, "dino.hidden": 32, "dino.bottleneck": 16}
SHORT = {"steps": 2, "rounds": 2, "count": 24, "num_error_images": 4}


def work_of(part: str, *, quick: bool) -> Work:
    """What a part measures."""
    work = WORKS[part]
    if not quick:
        return work
    side = None if work.side is None else 72
    return replace(work, title=f"a very small ViT in place of {work.title}", side=side, **SHORT)


def config_of(work: Work, *, device: str, quick: bool) -> TrainConfig:
    """The recipe's own config, so that what is timed is what `wellcond train` runs; every stretch writes a row."""
    config = recipes.get(work.recipe)
    changes: dict[str, Any] = {**work.changes, "device": device, "log_every": min(config.log_every, work.steps)}
    if quick:
        changes |= {"batch_size": 8, "model.options": SMALL, "compile": False}
        changes |= {"model.image_size": 64, "data.image_size": 64} if work.side else {}
        changes |= SMALL_DINO if config.objective == "dino" else {}
    if device == "cpu":
        changes |= {"precision": "float32"}
    return recipes.get(work.recipe, **changes)
