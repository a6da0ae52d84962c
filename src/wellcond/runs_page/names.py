"""What a page calls a run: its folder, and what sets it apart from the others there, in the words of `wellcond train`.

Of the fields that differ only those are said that somebody typed: what a recipe brings along has the recipe's name, and
what follows from another option (a shorter warm-up from fewer epochs) is in the table.

>>> words({"model.cut_attention_skips": True, "optim.lr": 0.001, "model.graying.method": "none"})
['cut attention', 'optim.lr 0.001']
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from wellcond.config import TrainConfig
from wellcond.runs_page.reading import Story

MOST = 3  # differences that a name says
SKIPS, DATA = ("model.cut_attention_skips", "model.cut_mlp_skips"), ("data.train", "data.val")
GRAYING = "model.graying."
CUT = {(True, True): "cut both", (True, False): "cut attention", (False, True): "cut mlp"}
AS_EVER = ("None", "False", "none", "default", "gelu")  # go without saying


def names(groups: Sequence[Sequence[Story]], essences: Sequence[TrainConfig]) -> list[str]:
    """Of groups of runs that differ in their seed; `essences` are their configs without it."""
    apart = _apart([story for members in groups for story in members], essences)
    several = len({config.recipe for config in essences}) > 1
    found = []
    for members, config in zip(groups, essences, strict=True):
        name = members[0].title or folder([story.name for story in members])
        recipe = [config.recipe] if several and config.recipe not in name else []
        values = flatten(config)
        said = [] if members[0].title else [*recipe, *words({field: values[field] for field in apart})]
        said = said[:MOST] + ([f"{len(said) - MOST} more"] if len(said) > MOST else [])
        found.append(f"{name}: {', '.join(said)}" if said else name)
    return [
        name if found.count(name) == 1 else f"{members[0].path.resolve().parent.name}/{name}"
        for name, members in zip(found, groups, strict=True)
    ]


def folder(names: Sequence[str]) -> str:
    """The folders of several seeds as one, without the seed at their end.

    >>> folder(["vit-seed0", "vit-seed11"]), folder(["one", "two"]), folder(["vit-seed0"])
    ('vit', 'one …', 'vit-seed0')
    """
    if len(names) == 1:
        return names[0]
    bare = {re.sub(r"[-_. ]?(seed)?[-_. ]?\d+$", "", name) for name in names}
    return bare.pop() if len(bare) == 1 and all(bare) else f"{names[0]} …"


def words(values: Mapping[str, Any]) -> list[str]:
    """Fields and their values as they are typed; a switch that is off, and what is as ever, go without saying."""
    left = dict(values)
    skips = bool(left.pop(SKIPS[0], False)), bool(left.pop(SKIPS[1], False))
    said = [CUT[skips]] if skips in CUT else []
    if left.get(GRAYING + "method") == "none":
        left = {name: value for name, value in left.items() if not name.startswith(GRAYING)}
    if len(both := [left[name] for name in DATA if name in left]) == 2 and both[0] == both[1]:
        left = {"data": both[0]} | {name: value for name, value in left.items() if name not in DATA}
    for name, value in left.items():
        if str(value) not in AS_EVER:
            option = name.removeprefix("model.")
            said.append(option if value is True else f"{option} {_typed(value)}")
    return said


def _typed(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_typed, value))
    return f"{value:g}" if isinstance(value, float) else str(value).rstrip("/").rpartition("/")[2]


def _apart(stories: Sequence[Story], essences: Sequence[TrainConfig]) -> list[str]:
    """The fields that differ and were typed; where no command tells, those that differ between runs of one recipe."""
    found = [name for name in differing(essences) if name != "recipe"]
    asked = [options(story) for story in stories]
    if None in asked:
        families = [[c for c in essences if c.recipe == recipe] for recipe in {c.recipe for c in essences}]
        asked = [set(differing(family)) for family in families]
    return [name for name in found if any(name in fields for fields in asked if fields)]


def options(story: Story) -> set[str] | None:
    """Fields that the commands of a run name; None where it was not started by `wellcond train`."""
    found: set[str] = set()
    for start in story.starts:
        try:
            given = shlex.split(str(start.get("command")))
        except ValueError:
            return None
        if "train" not in given:
            return None
        for word in (word[2:].partition("=")[0].replace("-", "_") for word in given if word.startswith("--")):
            found |= set(DATA) if word == "data" else {f".{word}".replace(".no_", ".")[1:]}
    return found if story.starts else None


def differing(configs: Sequence[TrainConfig]) -> list[str]:
    """Dotted names of the fields in which any two differ, in the order of declaration."""
    flat = [flatten(config) for config in configs]
    return [name for name in flat[0] if any(other[name] != flat[0][name] for other in flat)] if flat else []


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name → value of every field."""
    found: dict[str, Any] = {}
    for entry in dataclasses.fields(config):
        value, name = getattr(config, entry.name), prefix + entry.name
        found |= flatten(value, name + ".") if dataclasses.is_dataclass(value) else {name: value}
    return found
