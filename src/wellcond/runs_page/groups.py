"""Runs of one config but for the seed are a group, with a name (names.py), a colour and a dash."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wellcond import report
from wellcond.config import MAY_CHANGE, AlongConfig, TrainConfig
from wellcond.runs_page.names import names
from wellcond.runs_page.reading import Story

# One meaning, one colour, in every report: gray as it is, red attention, violet MLP, blue SVD, orange DCT.
ATTENTION, MLP = "#bd362d", "#6c5fe0"
OTHERS = ("#17786f", "#b8589e", "#7a8b2d", "#2b9cb8", "#a8703c", "#5f6b7a")
WIDTH = 56  # of a name in a legend; longer ones lose their middle
DASHES = ("solid", "dash", "dot", "dashdot")


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
        return report.plotly_text(self.name, WIDTH) + seeds


def group(stories: Sequence[Story]) -> list[Group]:
    """In the order of the runs."""
    together: dict[TrainConfig, list[Story]] = {}
    for story in stories:
        together.setdefault(_essence(story.config), []).append(story)
    named = names(list(together.values()), list(together))
    styles = _styles([members[0].config for members in together.values()])
    return [
        Group(name=name, colour=colour, dash=dash, stories=members)
        for name, (colour, dash), members in zip(named, styles, together.values(), strict=True)
    ]


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
