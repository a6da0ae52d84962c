"""README and the site: their Python runs, their commands parse as they are written, what is generated is whole."""

import doctest
import re

import pytest
import test_house
from docs_cases import PAGES, ROOT, blocks, commands, mentioned, ours, program, script
from typed_cases import RECORDS

from wellcond import cli
from wellcond.bench import command as bench
from wellcond.recipes import RECIPES, card

COMMANDS = [(page, words) for page in PAGES for words in commands(page)]
RECORDED = [words for words in mentioned(ROOT / "docs" / RECORDS) if program(words) != "make"]
generated = script("docs/generated.py")


def named(page):
    return page.name


def those(*programs):
    found = [(page, words) for page, words in COMMANDS if program(words) in programs]
    return [pytest.param(words, id=f"{page.name}: {' '.join(words)}") for page, words in found]


@pytest.mark.parametrize("page", [page for page in PAGES[2:] if blocks(page, "python")], ids=named)
def test_python_on_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)


@pytest.mark.parametrize("words", those("wellcond", "torchrun"))
def test_a_command_parses(words):
    assert cli.parse(*ours(words)) is not None


def test_a_wrong_command_would_be_found():
    with pytest.raises(cli.Mistake, match="epsilon"):
        cli.parse("gray", "photo.jpg", "--epsilonn", "0.5")
    with pytest.raises(cli.Mistake, match="recipes"):
        cli.parse("recipe")


@pytest.mark.parametrize("name", RECIPES)
def test_the_command_of_a_card_parses(name):
    command = re.search(r"^command +(.*?)(?: {2,}.*)?$", card(name), re.MULTILINE)
    assert command is not None
    assert cli.parse(*ours(command[1].split())).config.recipe == name


@pytest.mark.parametrize("words", those("make"))
def test_make_has_that_target(words):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(words[1:]) <= set(targets)


@pytest.mark.parametrize("words", RECORDED, ids=" ".join)
def test_a_command_of_the_records_still_parses(words):
    if program(words) == "python":
        name = words[2].removeprefix("wellcond.bench.")
        assert bench.parse(name, words[3:], [], "variants")[0].what == name
    else:
        assert cli.parse(*ours(words)) is not None


def test_generated_parts_are_whole():
    recipes = generated.recipes()
    assert all(f"\n## {name}\n" in recipes for name in RECIPES)
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", generated.floors(), re.MULTILINE)
    assert [(int(floor), room) for floor, room, _ in rows] == [
        (floor, room) for floor, rooms in test_house.FLOORS.items() for room in sorted(rooms)
    ]
    names = re.findall(r"^::: wellcond\.(\w+)$", generated.api(), re.MULTILINE)
    assert sorted(names) == sorted(test_house.PUBLIC - {"__version__"})
    for page in PAGES:
        assert "<!-- generated:" not in generated.filled(page.read_text())


def test_a_bar_in_a_cell_makes_no_new_cell():
    assert generated._table([("what", "found"), ("κ", "|a| is\nlarge")]).splitlines()[2] == r"| κ | \|a\| is large |"


def test_misses_are_told_and_nothing_else():
    bars = [{"name": name, "met": met, "sense": "at most", "limit": 1.3, "value": 1.307} for name, met in
            (("late", False), ("kept", True), ("unmeasured", None))]  # fmt: skip
    rows = [{"name": "a", "value": -3.02, "verdict": "not reproduced"}, {"name": "b", "verdict": "reproduced"}]
    assert list(generated._misses({"bars": bars, "rows": rows, "verdict": "not reproduced"})) == [
        "late: 1.307, the bar is ≤ 1.3",
        "a: -3.02, not reproduced",
    ]
    assert list(generated._misses({"verdict": "CIFAR-10: not shown."})) == ["CIFAR-10: not shown."]
    assert list(generated._misses({"verdict": "Not reproduced: it trains."})) == ["Not reproduced: it trains."]
    failing = {"name": "no SAB skip", "paper": "fails", "value": 5.3, "verdict": "fails in 1 of 1"}
    assert list(generated._misses({"rows": [failing], "verdict": "Reproduced: training fails."})) == []  # as it should


@pytest.mark.parametrize("path", ["docs/generated.py", "docs/doctests.py"])
def test_doctests_of_the_hooks(path):
    found = doctest.testmod(script(path))
    assert found.attempted and not found.failed
