"""Which runs a claim has, takes over from elsewhere and still lacks: it can be gathered in portions, on many machines.

A run counts only among runs of the same settings on the same pictures; everything else is refused by name, for it may
have taken hours.
"""

import difflib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import results
from ..config import ReproduceConfig
from ..finite import finite
from .claim import Claim, Run

Key = tuple[str, int]  # variant, seed
Runs = dict[Key, Run]
REMEDY = "give those, another --out, or --again to measure all of them anew"
NEEDED = {"claim", "runs", "quick", "settings"}
OF_A_RUN = ("variant", "seed", "seconds", "commit", "hardware", "date")


def kept(path: Path, claim: Claim, config: ReproduceConfig, settings: dict[str, Any]) -> tuple[Runs, dict[str, Any]]:
    """The runs of the file that count, and where they come from. A quick run must not replace a real measurement.

    `settings` takes over those of variants that are no part of this portion: each may have its own epochs.
    """
    old = _read(path, claim)
    if old is None:
        return {}, {}
    if config.quick and not old["quick"]:
        raise ValueError(f"{str(path)!r} holds full runs: a quick run would replace them. Give another --out.")
    if old["quick"] and not config.quick:
        return {}, {}
    everything = config.again and not config.only
    if not everything:
        _check_settings(path, old, claim, config, settings, REMEDY)
    dropped = set(chosen(claim, config)) if config.again else set()
    found = {key: run for key, run in _by_key(old["runs"]).items() if not everything and key[0] not in dropped}
    if found:
        settings |= {variant: old["settings"][variant] for variant in _apart(claim, config, old)}
    return found, _origin(old)


def collected(claim: Claim, config: ReproduceConfig, settings: dict[str, Any]) -> tuple[Runs, dict[str, Any]]:
    """Finished runs of this portion from the folders of `collect`, the first that has one counts; and their origin."""
    found: Runs = {}
    origin: dict[str, Any] = {}
    for folder in config.collect:
        path = folder if folder.suffix == ".json" else folder / f"{claim.name}.json"
        other = _read(path, claim)
        if other is None:
            raise ValueError(f"there is no {str(path)!r} to collect from; name the folder of its results")
        if other["quick"] != config.quick:
            kinds = "quick runs", "full runs"
            raise ValueError(f"{str(path)!r} holds {kinds[config.quick]}, and {kinds[not config.quick]} were asked for")
        _check_settings(path, other, claim, config, settings, "collect runs of the same settings only")
        part = set(chosen(claim, config))
        found = {key: run for key, run in _by_key(other["runs"]).items() if key[0] in part} | found
        origin = origin or _origin(other)
    return found, origin


def shared(claim: Claim, config: ReproduceConfig, wanted: Iterable[Key]) -> tuple[Runs, dict[str, Any]]:
    """Runs of the same config that other claims in `out` hold; and the origin of the first, but for its command."""
    wanted = list(wanted)
    if claim.identity is None or config.again or not wanted:
        return {}, {}
    known: dict[tuple[str, int], Run] = {}
    origins: dict[str, dict[str, Any]] = {}
    for path in sorted(config.out.glob("*.json")):
        try:
            other = json.loads(path.read_text())
        except (ValueError, OSError):  # somebody else's
            continue
        if (
            isinstance(other, dict)
            and set(other) >= NEEDED
            and other["claim"] != claim.name
            and not _missing(other, OF_A_RUN)
        ):
            origins[other["claim"]] = _origin(other)
            for run in other["runs"]:
                if {"config", *claim.holds, *claim.needs} <= set(run):
                    known.setdefault((run["config"], run["seed"]), {**run, "taken_from": other["claim"]})
    identities = {variant: claim.identity(variant) for variant, _ in wanted}
    found = {
        (variant, seed): {**known[identities[variant], seed], "variant": variant}
        for variant, seed in wanted
        if (identities[variant], seed) in known
    }
    if not found:
        return {}, {}
    first = next(iter(found.values()))
    own = {name: first[name] for name in ("commit", "hardware", "date")}
    return found, origins[first["taken_from"]] | own | {"command": ""}


def chosen(claim: Claim, config: ReproduceConfig) -> tuple[str, ...]:
    """The variants of this portion: all, or those that a word of `only` names, whole or by some parts in a row."""
    variants = claim.quick_variants if config.quick else claim.variants
    if not config.only:
        return variants
    parts = {variant: _parts(variant) for variant in variants}
    for word in config.only:
        if not any(word in of_variant for of_variant in parts.values()):
            near = difflib.get_close_matches(word, sorted(set().union(*parts.values())), n=2, cutoff=0.5)
            there = f"there are {', '.join(variants)}." if variants else "none has its pictures here."
            hint = f"did you mean {' or '.join(near)}?" if near else there
            hint = f"{hint} {claim.left_out}".rstrip()
            raise ValueError(f"only is {word!r}, which {claim.name} has no variant of; {hint}")
    return tuple(variant for variant in variants if parts[variant] & set(config.only))


def _parts(variant: str) -> set[str]:
    """Its name and what it is made of.

    >>> sorted(_parts("cifar10/skip/soap"))
    ['cifar10', 'cifar10/skip', 'cifar10/skip/soap', 'skip', 'skip/soap', 'soap']
    """
    gaps = list(re.finditer(r"/|, ", variant))
    begins, ends = [0, *(gap.end() for gap in gaps)], [*(gap.start() for gap in gaps), len(variant)]
    return {variant[begin:end] for begin in begins for end in ends if begin < end}


def check_pictures(runs: Iterable[Run]) -> None:
    """ValueError where runs on one set saw different pictures."""
    first: dict[str, Run] = {}
    for run in runs:
        if "data" not in run:
            continue
        other = first.setdefault(run["dataset"], run)
        if run["data"] != other["data"]:
            told = " and ".join(f"{r['variant']}, seed {r['seed']}: {_pictures(r['data'])}" for r in (other, run))
            raise ValueError(f"runs on {run['dataset']} saw different pictures ({told}); give all of them the same set")


class Allowance:
    """Minutes of this portion, and how long a run takes as far as is known."""

    def __init__(self, minutes: float | None, known: Mapping[Key, Run]) -> None:
        self.minutes, self.begin = minutes, time.monotonic()
        self.seconds = {run["variant"]: run["seconds"] for run in known.values()}
        self.last = next(reversed(self.seconds.values()), 0.0)

    def allows(self, variant: str) -> bool:
        if self.minutes is None:
            return True
        return time.monotonic() - self.begin + self.seconds.get(variant, self.last) <= 60 * self.minutes

    def took(self, variant: str, seconds: float) -> None:
        self.seconds[variant] = self.last = seconds


def difference(old: Any, new: Any, name: str = "") -> str:
    """The first thing in which two settings differ, in words; "" where there is none.

    >>> difference({"a": {"epochs": 3}}, {"a": {"epochs": 5}})
    'a epochs 3, not 5'
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if found := difference(old.get(key), new.get(key), f"{name} {key}".strip()):
                return found
        return ""
    return "" if old == new else f"{name} {old}, not {new}"


def _read(path: Path, claim: Claim) -> dict[str, Any] | None:
    """A file of results; ValueError where a part of it is missing, as after two were merged by hand."""
    found = results.read(path, NEEDED, "claim")
    # runs of another claim hold other things: that it is another one is said later, and says more
    fields = OF_A_RUN if found is None or found["claim"] != claim.name else (*OF_A_RUN, *claim.holds)
    if found is not None and (missing := _missing(found, fields)):
        raise ValueError(f"{str(path)!r} is damaged: {missing} missing; restore it")
    return found


def _missing(content: Mapping[str, Any], fields: Sequence[str]) -> str:
    """The first thing that the runs or the settings of a file lack, in words; "" where it is nothing."""
    if not isinstance(content["settings"], dict):
        return "its settings are"
    runs = content["runs"]
    if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
        return "its runs are"
    lacking = ((number, name) for number, run in enumerate(runs, 1) for name in fields if name not in run)
    return next((f"{name} of run {number} of {len(runs)} is" for number, name in lacking), "")


def _apart(claim: Claim, config: ReproduceConfig, content: Mapping[str, Any]) -> set[str]:
    """Variants that a file holds runs of and that are no part of this portion, of a claim whose variants train."""
    held = {run["variant"] for run in content["runs"]} & set(content["settings"])
    return held - set(chosen(claim, config)) if claim.identity is not None else set()


def _check_settings(
    path: Path, old: dict[str, Any], claim: Claim, config: ReproduceConfig, settings: dict[str, Any], remedy: str
) -> None:
    if old["claim"] != claim.name:
        raise ValueError(f"{str(path)!r} holds runs of {old['claim']}, not of {claim.name}")
    before, now = old["settings"], finite(settings)
    if claim.identity is not None:  # by variant: a claim may get more of them
        held = {run["variant"] for run in old["runs"]} & set(chosen(claim, config))
        before, now = ({variant: of.get(variant, {}) for variant in sorted(held)} for of in (before, now))
    if differs := difference(before, now):
        raise ValueError(f"{str(path)!r} holds runs of other settings ({differs}); {remedy}")


def _by_key(runs: Sequence[Run]) -> Runs:
    return {(run["variant"], run["seed"]): run for run in runs}


def _origin(content: Mapping[str, Any]) -> dict[str, Any]:
    names = ("command", "commit", "hardware", "versions", "date", "device")
    return {name: content[name] for name in names if name in content}


def _pictures(data: Mapping[str, Any]) -> str:
    return f"{data['train']} + {data['val']} (labels {data['labels']})"
