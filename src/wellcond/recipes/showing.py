"""`wellcond recipes`: a table of all; `wellcond recipes NAME`: the card and the whole config as JSON."""

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
    if config.name is None:
        if config.json:
            raise ValueError("json prints one config; name the recipe, too: wellcond recipes cifar10-vit-tiny --json")
        Console(highlight=False).print(table())
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
    for name, recipe in RECIPES.items():
        config = get(name)
        words = config.model.name.split("_")
        family = "_".join(word for word in words if not word.startswith(("patch", "window", "224")))
        shown.add_row(name, family, str(config.epochs), recipe.reproduces)
    return shown
