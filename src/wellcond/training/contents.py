"""What a run is trained and judged on, known by its content: a job that is started again may have copied it elsewhere.

The decoded cache is what training reads, and its meta.json has a checksum of every block; so images with the same
number, size, labels, names of classes and blocks give the same bits, wherever they lie. A fingerprint
(data/fingerprints.py) is known before anything is decoded, but of a folder it holds the times of the files, which a
copy changes.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wellcond.config import TrainConfig, changed_fields, to_json
from wellcond.data.cache import Cache
from wellcond.runs import Run
from wellcond.training.loading import config_of
from wellcond.training.supply import Contents, Supply

HALVES = {"train": "trained", "val": "judged"}  # of the data, and what is done on it
PLACES = frozenset(f"data.{half}" for half in HALVES)


def contents_of(train: Cache, val: Cache) -> Contents:
    """Short, and the same for the same images."""
    return {"train": _content(train), "val": _content(val)}


def _content(cache: Cache) -> dict[str, Any]:
    *pixels, labels = cache.meta.blocks
    return {
        "number": len(cache),
        "size": cache.meta.side,
        "labels": labels,
        "classes": _digest(cache.meta.classes),
        "pixels": _digest(pixels),
    }


def recorded(run: Run) -> dict[str, Any]:
    """The contents with which a run began; empty where it has not begun, or an earlier version began it."""
    return next(iter(run.starts()), {}).get("contents", {})


def moved(run: Run, config: TrainConfig) -> set[str]:
    """Which of PLACES are others than the run says."""
    return set(changed_fields(config_of(run), config)) & PLACES if run.exists() else set()


def check_moved(run: Run, config: TrainConfig, contents: Contents) -> None:
    """ValueError where the images of another place are not those with which the run began."""
    changed = moved(run, config)
    for half in HALVES:
        if f"data.{half}" in changed:
            _check_same(half, recorded(run), contents, run, config, "give a copy of those, or another --out")


def follow(run: Run, config: TrainConfig) -> None:
    """Write into config.json where the images are now: who judges the run looks for them there."""
    if moved(run, config):
        begun = config_of(run)
        here = replace(begun.data, train=config.data.train, val=config.data.val)
        run.rewrite(to_json(replace(begun, data=here)))


def seen(supply: Supply) -> dict[str, Any]:
    """What a checkpoint says of the images of its run."""
    return {"data": supply.fingerprint, "val_data": supply.val_fingerprint, "contents": dict(supply.contents)}


def check_seen(state: Mapping[str, Any], found: Mapping[str, Any], run: Run, config: TrainConfig) -> None:
    """ValueError where what a checkpoint has seen is not what is found: the same files, or else (a copy has other
    times) files of the same content."""
    for half, key in (("train", "data"), ("val", "val_data")):
        if state.get(key, found[key]) != found[key]:  # early checkpoints say nothing of the validation images
            remedy = "bring them back, or start anew in another --out"
            _check_same(half, state.get("contents", {}), found["contents"], run, config, remedy)


def _check_same(half: str, known: Contents, found: Contents, run: Run, config: TrainConfig, remedy: str) -> None:
    if told := difference(known.get(half, {}), found.get(half, {})):
        raise ValueError(
            f"data.{half}: the images of {getattr(config.data, half)!r} are not those that {str(run.path)!r} was "
            f"{HALVES[half]} on (not the same {told}); {remedy}"
        )


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first thing in which two contents differ; "" where they are the same, "contents" where one is unknown.

    >>> difference({"labels": "a", "pixels": "b"}, {"labels": "a", "pixels": "c"}), difference({}, {})
    ('pixels', 'contents')
    """
    if not old or not new:
        return "contents"
    return next((name for name in new if old.get(name) != new[name]), "")


def _digest(words: list[str]) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]
