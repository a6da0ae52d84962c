"""For mkdocs: fills what a page leaves open as `<!-- generated: NAME -->` from the code, tests/ and results/.

    recipes   every recipe and its card         floors   the house, as tests/test_house.py checks it
    api       the public names, by room         misses   what results/ holds against us

A page that would fetch anything from elsewhere is a warning, which the strict build makes an error.
"""

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import wellcond
from wellcond.recipes import RECIPES, card, get
from wellcond.results import markdown

ROOT = Path(__file__).parents[1]
ROOMS = ROOT / "src" / "wellcond"
_MARK = re.compile(r"<!-- generated: (\w+) -->")
_AGAINST = re.compile("[Nn]ot (reproduced|shown|decided)|shown for no|reversed|the other way|rank-deficient")
_FETCHED = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)""")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return filled(markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    for address in fetched(output):
        logging.getLogger("mkdocs.hooks").warning(f"{page.file.src_uri} fetches {address}; the site must work offline")
    return output


def filled(markdown: str) -> str:
    return _MARK.sub(lambda mark: PARTS[mark[1]](), markdown)


def fetched(html: str) -> list[str]:
    """
    >>> fetched('<script src="a.js"></script><link rel=x href="https://fonts.example/x">')
    ['https://fonts.example/x']
    """
    return _FETCHED.findall(html)


def recipes() -> str:
    rows = [("recipe", "model", "epochs", "reproduces")]
    for name, recipe in RECIPES.items():
        config = get(name)
        rows.append((f"[{name}](#{name})", f"`{config.model.name}`", str(config.epochs), recipe.reproduces))
    cards = []
    for name in RECIPES:
        first, _, rest = card(name).partition("\n")
        cards.append(f"## {name}\n\n{first}\n\n```text\n{rest.strip()}\n```\n")
    return "\n".join([_table(rows), *cards])


def floors() -> str:
    rows = [("floor", "room", "what it is")]
    for floor, rooms in house().items():
        rows += [(str(floor), f"`{room}`", _purpose(room)) for room in sorted(rooms)]
    return _table(rows)


def house() -> dict[int, set[str]]:
    """FLOORS of tests/test_house.py, read without importing the test."""
    for node in ast.parse((ROOT / "tests" / "test_house.py").read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name) and target.id == "FLOORS":
            return ast.literal_eval(node.value)
    raise ValueError("tests/test_house.py has no FLOORS; the page of the house is made from them")


def _purpose(room: str) -> str:
    """The first sentence of a room's docstring."""
    path = next(p for p in (ROOMS / room / "__init__.py", ROOMS / f"{room}.py") if p.exists())
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0]
    first = re.sub(r"\s*Floor \d+[^.]*\.", "", " ".join(first.split()))
    return re.split(r"(?<=[a-zκ`)])\. ", first)[0].rstrip(".")


def api() -> str:
    """The public names under their rooms, in the order of wellcond/__init__.py."""
    by_room: dict[str, list[str]] = {}
    for name, room in wellcond._ROOM_OF.items():
        by_room.setdefault(room, []).append(name)
    parts = []
    for room, names in by_room.items():
        parts.append(f"## {room}\n\n{_purpose(room)}.\n")
        parts += [f"::: wellcond.{name}\n" for name in names]
    return "\n".join(parts)


def misses() -> str:
    rows = [("date", "what", "found")]
    for path in sorted((ROOT / "results").glob("*.json")):
        found = json.loads(path.read_text())
        day = str(found["date"])[:10]
        place = f"results.md#{path.stem.removeprefix('bench-')}"
        rows += [(day, f"[{path.stem}]({place})", miss) for miss in _misses(found)]
    rows[1:] = sorted(rows[1:], reverse=True)
    return _table(rows)


def _misses(found: dict[str, Any]) -> Iterator[str]:
    for bar in found.get("bars", []):
        if bar["met"] is False:
            sense = {"at most": "≤", "at least": "≥"}[bar["sense"]]
            yield f"{bar['name']}: {bar['value']:.4g}, the bar is {sense} {bar['limit']:g}"
    rows = [row for row in found.get("rows", []) if _AGAINST.search(str(row.get("verdict")))]
    for row in rows:
        number = "" if row.get("value") is None else f"{row['value']:.3g}, "
        yield f"{row['name']}: {number}{row['verdict']}"
    if not rows and _AGAINST.search(str(found.get("verdict"))):
        yield found["verdict"]


def _table(rows: list[tuple[str, ...]]) -> str:
    return markdown(rows[0], rows[1:]) + "\n"


PARTS = {"recipes": recipes, "floors": floors, "api": api, "misses": misses}
