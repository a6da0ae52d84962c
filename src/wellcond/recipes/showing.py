"""`wellcond recipes`: a table of all; `wellcond recipes NAME`: the card and the whole config as JSON."""

import json
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from .. import parsing
from ..config import RecipesConfig, to_json
from . import RECIPES, card, get


def parse(arguments: list[str]) -> RecipesConfig | None:
    """The name comes without an option: `wellcond recipes cifar10-vit-tiny`."""
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--name", *arguments]
    return parsing.parse(RecipesConfig, "recipes", arguments)


def run(config: RecipesConfig) -> None:
    if config.name is None and config.json:
        print(json.dumps(rows(), indent=1))
    elif config.name is None:
        Console(highlight=False).print(table())
        print("Fig., Table: in Always Skip Attention; CTS: in Cutting the Skip; cts-…: a claim")
        print("wellcond recipes NAME shows a card and its config, wellcond train NAME trains it")
    else:
        text = to_json(get(config.name))
        if not config.json:
            print(f"{config.name}: {card(config.name)}\n")
        print(text, end="")


def table() -> Table:
    """A name begins with its set of pictures."""
    shown = Table("name", "model", "epochs", "reproduces", box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for column in shown.columns[:3]:
        column.no_wrap = True
    for row in rows():
        words = row["model"].split("_")
        family = "_".join(word for word in words if not word.startswith(("patch", "window", "224")))
        shown.add_row(row["name"], family, str(row["epochs"]), row["reproduces"])
    return shown


def rows() -> list[dict[str, Any]]:
    """What the table is made of, for machines."""
    configs = {name: get(name) for name in RECIPES}
    return [
        {
            "name": name,
            "model": config.model.name,
            "objective": config.objective,
            "data": config.data.train,
            "epochs": config.epochs,
            "reproduces": RECIPES[name].reproduces,
        }
        for name, config in configs.items()
    ]
