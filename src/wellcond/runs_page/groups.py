"""Runs of one config but for the seed are a group; its name says what sets it apart from the other groups.

>>> from wellcond.runs_page.groups import words
>>> words({"model.cut_attention_skips": True, "optim.lr": 0.001})
['no attention skip', 'optim.lr 0.001']
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wellcond import report
from wellcond.config import MAY_CHANGE, AlongConfig, TrainConfig
from wellcond.runs_page.reading import Story

# One meaning, one colour, in every report: gray as it is, red attention, violet MLP, blue SVD, orange DCT.
ATTENTION, MLP = "#bd362d", "#6c5fe0"
OTHERS = ("#17786f", "#b8589e", "#7a8b2d", "#2b9cb8", "#a8703c", "#5f6b7a")
DASHES = ("solid", "dash", "dot", "dashdot")
SKIPS, GRAYING = ("model.cut_attention_skips", "model.cut_mlp_skips"), "model.graying."
BEGINNING = {"model.init.method": "{} init", "model.activation": "{}"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Runs that differ in their seed only."""

    name: str
    colour: str
    dash: str
    stories: Sequence[Story]

    @property
    def config(self) -> TrainConfig:
        return self.stories[0].config

    @property
    def title(self) -> str:
        """The name with how many seeds it has, as a chart shows it."""
        seeds = f" ({len(self.stories)} seeds)" if len(self.stories) > 1 else ""
        return report.plotly_text(self.name, 44) + seeds


def group(stories: Sequence[Story]) -> list[Group]:
    """In the order of the runs."""
    together: dict[TrainConfig, list[Story]] = {}
    for story in stories:
        together.setdefault(_essence(story.config), []).append(story)
    apart = differing(list(together))
    names = _names(list(together.values()), apart)
    styles = _styles([members[0].config for members in together.values()])
    return [
        Group(name=name, colour=colour, dash=dash, stories=members)
        for name, (colour, dash), members in zip(names, styles, together.values(), strict=True)
    ]


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


def words(values: Mapping[str, Any]) -> list[str]:
    """Fields and their values as a person says them; skips that are there, no graying, timm's own go without saying."""
    said: list[str] = []
    attention, mlp = (values.get(name, False) for name in SKIPS)
    if attention or mlp:
        said.append("no skips" if attention and mlp else "no attention skip" if attention else "no MLP skip")
    method = values.get(GRAYING + "method", "none")
    if method != "none":
        epsilon = values.get(GRAYING + "epsilon")
        said.append(method.upper() + ("" if epsilon is None else f" {epsilon:g}"))
    for name, value in values.items():
        if name in SKIPS or name in (GRAYING + "method", GRAYING + "epsilon"):
            continue
        if name in BEGINNING:
            said += [BEGINNING[name].format(value)] if value not in ("default", "gelu") else []
            continue
        if name.startswith(GRAYING) and method == "none":
            continue  # says nothing where nothing is grayed
        said.append(f"{name.removeprefix('model.')} {value}")
    return said


def _names(groups: Sequence[Sequence[Story]], apart: Sequence[str]) -> list[str]:
    """What sets each group apart; where that says nothing the kept skips, and at last the folder."""
    plain = "all skips" if any(name in SKIPS for name in apart) else "not grayed"
    found = []
    for members in groups:
        values = flatten(members[0].config)
        # with the method goes its ε, even where all have the same
        strength = {GRAYING + "epsilon"} if GRAYING + "method" in apart else set()
        said = words({name: value for name, value in values.items() if name in {*apart} | strength})
        found.append(members[0].config.recipe if len(groups) == 1 else ", ".join(said) or plain)
    return [name if found.count(name) == 1 else f"{name}, {groups[i][0].name}" for i, name in enumerate(found)]


def _essence(config: TrainConfig) -> TrainConfig:
    """The config without its seed and what does not decide the result."""
    top = {f.name: f.default for f in dataclasses.fields(TrainConfig) if f.name in MAY_CHANGE | {"seed"}}
    for name in ("data", "optim"):
        part = getattr(config, name)
        top[name] = replace(
            part, **{f.name: f.default for f in dataclasses.fields(part) if f"{name}.{f.name}" in MAY_CHANGE}
        )
    return replace(config, along=AlongConfig(), **top)


def _styles(configs: Sequence[TrainConfig]) -> list[tuple[str, str]]:
    """A colour by what is changed, each pair of colour and dash once."""
    spare = [(colour, dash) for dash in DASHES for colour in OTHERS]
    found: list[tuple[str, str]] = []
    for config in configs:
        wished = [(_colour(config), dash) for dash in DASHES]
        free = [style for style in (*wished[:1], *spare, *wished) if style not in found]
        found.append(free[0] if free else wished[0])
    return found


def _colour(config: TrainConfig) -> str:
    model = config.model
    if model.cut_attention_skips:
        return ATTENTION
    if model.cut_mlp_skips:
        return MLP
    return {"none": report.BEFORE, "svd": report.SVD, "dct": report.DCT}[model.graying.method]
