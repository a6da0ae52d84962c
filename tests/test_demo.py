"""`make demo`: one page with pictures, runs and κ; the same command again does nothing twice."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from test_report import Attributes

from wellcond import demo
from wellcond.cli import main
from wellcond.config import TrainConfig, changed_fields, from_json
from wellcond.demo import training
from wellcond.runs_page.reading import read


@pytest.fixture(scope="module")
def made(demo_checkout, tmp_path_factory) -> Path:
    """What it left; a copy, for some tests change it."""
    return shutil.copytree(demo_checkout / "demo", tmp_path_factory.mktemp("made") / "demo")


def test_its_page_opens(made):
    """In a Chromium, too, in test_runs_browser."""
    page = (made / "report.html").read_text()
    found = Attributes(page)
    assert found.tags[0] == "html" and found.tags.count("img") > 2 and page.rstrip().endswith("</html>")
    assert all(address.startswith(("data:", "#")) for address in found.addresses)


def test_one_page_tells_it_all(made):
    page = (made / "report.html").read_text()
    for words in (
        "SVD 0.7",
        "striped disc",
        "no attention skip",
        "no skips, skipless init",
        "κ by block",
        "wellcond demo --count 1",
    ):
        assert words in page


def test_it_leads_with_the_numbers_of_this_very_run(made):
    page = (made / "report.html").read_text()
    (lead,) = re.findall(r'<p class="summary">(.*?)</p>', page, re.DOTALL)
    reached = {}
    for path in made.glob("runs-*/*"):
        rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        reached[path.name] = [row["top1"] for row in rows if row["kind"] == "eval"][-1]
    told = ["all-skips", "no-attention-skip", "no-skips", "no-skips-skipless-init", "DCT-0.95"]
    shown = [float(number) for number in re.findall(r"([\d.]+) %", lead)]
    chance = shown.pop(2)
    assert chance == 10 and shown == pytest.approx([reached[name] for name in told], abs=0.051)
    assert lead.count(". ") == 3 and "quick version" in lead  # three sentences, and that it says nothing
    apart = abs(reached["all-skips"] - reached["no-attention-skip"])
    assert f"{apart:.1f} points apart" in lead


def test_the_sections_tell_a_story(made):
    titles = re.findall(r"<h2>(.*?)</h2>", (made / "report.html").read_text())
    assert titles[: len(demo.STORY)] == list(demo.STORY.values())
    rest = [title for title in titles[len(demo.STORY) :] if title != "Warnings"]  # which are there if there are any
    assert rest == ["Runs", "Training", "Every epoch and block", "How it was made"]


def test_runs_are_ordinary_runs_that_differ_in_the_model_only(made):
    (folder,) = made.glob("runs-*")
    stories = {path.name: read(path) for path in folder.iterdir()}
    names = {"all-skips", "no-MLP-skip", "no-attention-skip", "DCT-0.95", "no-skips", "no-skips-skipless-init"}
    assert set(stories) == names
    assert all(s.summary is not None and s.troubles == [] and s.probed for s in stories.values())
    base = stories["all-skips"].config
    for name, story in stories.items():
        assert all(field.startswith("model.") for field in changed_fields(base, story.config)), name
    assert stories["no-attention-skip"].config.model.cut_attention_skips
    fails, trains = (stories[name].config for name in ("no-skips", "no-skips-skipless-init"))
    assert fails.model.cut == "both" and set(changed_fields(fails, trains)) == {"model.init.method"}


def test_again_it_shows_what_is_there(made, capsys):
    runs = sorted(made.glob("runs-*/*/metrics.jsonl"))
    before = [path.stat().st_mtime_ns for path in runs]
    (made / "report.html").unlink()
    assert main(["demo", "--quick", "--count", "1", "--size", "64", "--out", str(made)]) == 0
    assert (made / "report.html").is_file()
    assert [path.stat().st_mtime_ns for path in runs] == before
    said = capsys.readouterr().out
    assert "no attention skip" in said and "training" not in said


def test_its_last_line_works_as_pasted(made, capsys, tmp_path):
    """From wherever the user stands, with no environment activated."""
    assert main(["demo", "--quick", "--count", "1", "--size", "64", "--out", str(made)]) == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    helped = subprocess.run([*words, "--help"], env=bare, capture_output=True, text=True)
    assert helped.returncode == 0 and "usage: wellcond diagnose" in helped.stdout


def test_another_seed_is_another_set_of_runs():
    base = training.base_config(seed=0)
    assert training.runs_folder(base) == training.runs_folder(training.base_config(seed=0))
    assert training.runs_folder(base) != training.runs_folder(replace(base, seed=1))


def test_an_error_in_a_run_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    """It comes from another process."""
    base = training.base_config(seed=0)
    wrong = replace(base, model=replace(base.model, options=(("no_such_option", 1),)))
    monkeypatch.setattr(training, "quick", lambda _: replace(wrong, data=replace(base.data, train="procedural:64")))
    assert main(["demo", "--quick", "--count", "1", "--size", "64", "--out", str(tmp_path)]) == 2
    assert "no_such_option" in capsys.readouterr().err


def test_the_experiment_is_one_config():
    base = training.base_config(seed=0)
    configs = training.variants(base)
    assert next(iter(configs.values())) == base  # the with-skip model is the one the others are changed from
    assert all(replace(c, model=base.model) == base for c in configs.values())
    assert isinstance(from_json(training.to_json(base), TrainConfig), TrainConfig)
    assert (base.precision, base.compile, base.device) == ("float32", False, "cpu")


def test_a_killed_demo_leaves_no_process():
    """One that is left holds the pipe that is read to its end here."""
    code = (
        "import os; from wellcond.demo.side_by_side import open_pool; "
        "print(open_pool(1).submit(os.getpid).result(), flush=True); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == 9 and int(done.stdout)
