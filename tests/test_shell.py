"""Habits of a shell: help that fits a screen, examples that parse, Tab, JSON on stdout, no colours where none belong,
no bars where nobody watches, and nothing heavy imported before work begins."""

import io
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from wellcond import cli, completion, wording
from wellcond.cli import main
from wellcond.data.procedural import procedural
from wellcond.recipes import RECIPES
from wellcond.verbs import VERBS
from wellcond.watching import watched

LINES, COLUMNS = 40, 80


def test_the_overview_fits_a_screen(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= COLUMNS
    assert any(line.startswith("  wellcond ") for line in lines)  # an example


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_fits_a_screen_and_ends_in_an_example(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert main([verb, "--help"]) == 0
    *before, title, example = capsys.readouterr().out.splitlines()
    assert (title, example.strip()) == ("example:", VERBS[verb].example)
    assert max(map(len, before)) <= COLUMNS and len(before) + 2 <= LINES
    assert not any("...." in line for line in before)  # brackets in prose read as "several words"


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_help_is_laid_out_at_every_width(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["app", "--help"]) == 0
    usage = capsys.readouterr().out.split("\n\n")[0]
    assert "[--max-upload INT]" in usage  # an option and what it takes are not parted
    assert main(["report", "--help"]) == 0
    text = capsys.readouterr().out
    assert "RUNS ..." in text and "[RUNS]" not in text  # several, and needed
    assert main(["train", "procedural-vit", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = lines[lines.index("along options:") + 1 : next(i for i, row in enumerate(lines) if "--along.judges" in row)]
    assert all(row.startswith("  ") and row[2] != " " and "  " not in row.strip() for row in said), said
    assert " ".join(" ".join(said).split()).endswith("up to twelve hours.")


def test_train_has_too_many_options_for_a_screen_and_shows_those_of_first_need(capsys):
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= LINES
    assert main(["train", "procedural-vit", "--help"]) == 0
    known = wording.options(capsys.readouterr().out)
    assert len(known) > 100  # as it says
    for option, group in re.findall(r"(--[a-z][a-z.-]*)(\*?)", shown.partition("example:")[0]):
        assert option in known or (group and any(name.startswith(option) for name in known)), option


@pytest.mark.parametrize("verb", VERBS)
def test_the_example_of_a_verb_can_be_parsed(verb):
    words = shlex.split(VERBS[verb].example.split(" > ")[0])
    assert words[:2] == ["wellcond", verb]
    assert cli.parse(*words[1:]) is not None


# --- Tab -------------------------------------------------------------------------------------------------------------
TAB = {
    "wellcond d": {"diagnose", "demo", "doctor"},
    "wellcond --v": {"--version"},
    "wellcond gray --me": {"--method"},
    "wellcond gray x.png --method ": {"svd", "dct"},
    "wellcond gray x.png --method s": {"svd"},
    "wellcond gray x.png --method = d": {"dct"},  # as bash cuts --method=d
    "wellcond gray x.png --crop x": set(),  # a file: bash's own completion
    "wellcond train cifar10-vit": {
        "cifar10-vit-tiny",
        "cifar10-vit-tiny-skipless",
        "cifar10-vit-s",
        "cifar10-vit-s-skipless",
    },
    "wellcond train procedural-vit --optim.l": {"--optim.lr", "--optim.layer-decay"},
    "wellcond train procedural-vit --optim.name so": {"soap"},
    "wellcond evaluate runs/x --with knn lin": {"linear"},
    "wellcond evaluate runs/x --with knn --lay": {"--layers"},
    "wellcond recipes procedural-": {"procedural-vit", "procedural-mae", "procedural-dino"},
    "wellcond reproduce cts-t": {"cts-table1"},
    "wellcond bench so": {"soap"},
    "wellcond diagnose x --cut ": {"no", "attention", "mlp", "both"},
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_tab_in_bash(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    tries = "\n".join(f"try {' '.join(map(shlex.quote, line.split(' ')))}" for line in TAB)
    try_one = 'try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _wellcond; echo "${COMPREPLY[*]}"; }'
    (tmp_path / "tries.bash").write_text(f"{script}\n{try_one}\n{tries}\n")
    done = subprocess.run(["bash", "--norc", str(tmp_path / "tries.bash")], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    offered = dict(zip(TAB, (set(line.split()) for line in done.stdout.splitlines()), strict=True))
    assert offered == TAB


def test_tab_knows_every_option_and_recipe_in_every_shell():
    scripts = {shell: completion.script(shell) for shell in ("bash", "zsh", "fish")}
    for verb in VERBS:
        words = completion.words(verb)
        assert {"--help"} <= set(words.options)
        for option in words.options:
            assert all(f" -l {option[2:]}" in s if shell == "fish" else option in s for shell, s in scripts.items())
    assert completion.words("train").first == completion.words("recipes").first == tuple(RECIPES)
    assert scripts["zsh"].startswith("#compdef wellcond\n")


# --- JSON ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def photos(tmp_path) -> Path:
    (tmp_path / "photos").mkdir()
    for i in range(2):
        Image.fromarray(procedural(i, size=32).image).save(tmp_path / "photos" / f"{i}.png")
    (tmp_path / "photos" / "broken.png").write_text("no image")
    return tmp_path / "photos"


def test_gray_prints_only_json(photos, tmp_path, capsys):
    assert main(["gray", str(photos), "--patch-size", "8", "--json", "--out", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    rows = json.loads(captured.out)
    assert [Path(row["image"]).name for row in rows] == ["0.png", "1.png"]
    assert all(Path(row["picture"]).is_file() and Path(row["strip"]).is_file() for row in rows)
    assert all(row["log_kappa_after"] < row["log_kappa_before"] for row in rows)
    assert "broken.png" in captured.err  # what is for people goes there
    assert rows == json.loads((tmp_path / "out" / "kappa.json").read_text())


def test_recipes_prints_only_json(capsys):
    assert main(["recipes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(RECIPES)
    assert {"name": "procedural-mae", "objective": "mae", "epochs": 6}.items() <= rows[
        list(RECIPES).index("procedural-mae")
    ].items()


DIAGNOSE = ["diagnose", "test_vit", "--image-size", "32", "--images", "2", "--no-jacobian"]


@pytest.mark.parametrize("options", [["--json"], ["--json", "-"], ["--json", "--html", "x.html"]], ids=str)
def test_diagnose_prints_only_json(options, tmp_path, capsys, monkeypatch):
    from wellcond.diagnosis import Diagnosis

    monkeypatch.chdir(tmp_path)
    assert main([*DIAGNOSE, *options]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    diagnosis = Diagnosis.from_json(captured.out)
    assert diagnosis.num_images == 2 and diagnosis.rows
    assert [path.name for path in tmp_path.iterdir()] == (["x.html"] if "--html" in options else [])


# --- colours and bars ------------------------------------------------------------------------------------------------
def on_a_terminal(*words: str, **environment: str) -> str:
    """What `wellcond` writes to a terminal of 80 columns."""
    here, there = pty.openpty()
    settings = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    settings |= {"TERM": "xterm-256color", "COLUMNS": "80", **environment}
    with subprocess.Popen(
        [sys.executable, "-m", "wellcond", *words], stdout=there, stderr=there, env=settings
    ) as process:
        os.close(there)
        shown = b""
        while True:
            try:
                some = os.read(here, 1 << 16)
            except OSError:  # Linux says so when the other end is closed
                break
            if not some:
                break
            shown += some
        assert process.wait() == 0, shown
    os.close(here)
    return shown.decode()


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")


@pytest.mark.parametrize("words", [["gray", "--help"], ["recipes"]], ids=str)
def test_colours_are_for_terminals_that_want_them(words):
    assert "\x1b[" in on_a_terminal(*words)
    assert not COLOUR.search(on_a_terminal(*words, NO_COLOR="1"))
    piped = subprocess.run([sys.executable, "-m", "wellcond", *words], capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stdout + piped.stderr


@pytest.mark.parametrize(("out", "err", "moves"), [(True, True, True), (False, True, False), (True, False, False)])
def test_bars_rest_in_a_pipe(out, err, moves, monkeypatch):
    class Stream(io.StringIO):
        def __init__(self, terminal: bool) -> None:
            super().__init__()
            self.terminal = terminal

        def isatty(self) -> bool:
            return self.terminal

    monkeypatch.setattr(sys, "stdout", Stream(out))
    monkeypatch.setattr(sys, "stderr", Stream(err))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert watched(Console(stderr=True)) == moves


def test_every_bar_asks_whether_somebody_watches():
    source = Path(cli.__file__).parent
    for path in source.rglob("*.py"):
        text = path.read_text()
        bars = re.search(r"\b(Progress|track)\(", text)
        assert not bars or "watched(" in text or "is_terminal" in text, path


# --- start-up --------------------------------------------------------------------------------------------------------
SLOW = {"torch", "torchvision", "timm", "plotly", "jinja2", "transformers", "gradio"}  # a second and more
HEAVY = SLOW | {"numpy", "PIL", "pyarrow", "scipy"}
LIGHT = {  # command → what may not be imported until its end; one process runs them in this order
    "--help": HEAVY | {"tyro", "rich"},
    "--version": HEAVY | {"tyro", "rich"},
    "recipes": HEAVY,
    "recipes --json": HEAVY,
    "recipes cifar10-vit-tiny": HEAVY,
    "train --help": HEAVY,
    "train procedural-vit --epohcs 3": HEAVY,
    "gray --help": HEAVY,
    "doctor --help": HEAVY,
    "diagnose --help": SLOW,
    "completion bash": SLOW,
}


def test_nothing_heavy_is_imported_before_work_begins():
    code = f"""
import contextlib, io, json, sys
from wellcond.cli import main
found = {{}}
for command in {list(LIGHT)!r}:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(command.split())
    found[command] = list(sys.modules)
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {
        command: LIGHT[command] & set(names) for command, names in found.items() if LIGHT[command] & set(names)
    } == {}
    assert "tyro" in found["recipes"]  # so modules are seen
