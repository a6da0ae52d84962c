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
from wellcond.training.supply import Contents

HALVES = {"train": "trained", "val": "judged"}  # of the data, and what is done on it
PLACES = frozenset(f"data.{half}" for half in HALVES)


def contents_of(cache: Cache) -> dict[str, Any]:
    """Short, and the same for the same images."""
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
    known, changed = recorded(run), moved(run, config)
    for half, done in HALVES.items():
        told = difference(known.get(half, {}), contents.get(half, {}))
        if f"data.{half}" in changed and told:
            raise ValueError(
                f"data.{half}: the images of {getattr(config.data, half)!r} are not those that {str(run.path)!r} was "
                f"{done} on (not the same {told}); give a copy of those, or another --out"
            )


def follow(run: Run, config: TrainConfig) -> None:
    """Write into config.json where the images are now: who judges the run looks for them there."""
    if moved(run, config):
        begun = config_of(run)
        here = replace(begun.data, train=config.data.train, val=config.data.val)
        run.rewrite(to_json(replace(begun, data=here)))


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The first thing in which two contents differ; "" where they are the same. Of what is unknown nothing is shown.

    >>> difference({"labels": "a", "pixels": "b"}, {"labels": "a", "pixels": "c"}), difference({}, {})
    ('pixels', 'contents')
    """
    if not old or not new:
        return "contents"
    return next((name for name in new if old.get(name) != new[name]), "")


def _digest(words: list[str]) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]
