"""README: its code runs as pasted, its numbers are those of results/, its files exist."""

import json
import re
from pathlib import Path

import pytest

from wellcond.bench.claim_lines import JUDGED, LINES, Line, cells
from wellcond.bench.table import CLAIMS, HEADLINES, NOTHING, PROMISES, claims, render, replace_block, summary, wanted

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_snippet_runs(capsys):
    snippets = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), {})


def test_published_numbers_are_those_of_results():
    for path, text in wanted(ROOT).items():
        assert path.read_text() == text, "run python -m wellcond.bench.table"


def test_named_files_exist():
    tree = README[README.index("src/wellcond/\n") :]
    for name in re.findall(r"^  ([a-z_]+(?:\.py|/)) ", tree, re.MULTILINE):
        assert (ROOT / "src" / "wellcond" / name).exists(), name
    for name in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / name).exists(), name


def test_every_room_is_in_the_tree():
    here = ROOT / "src" / "wellcond"
    for path in [*here.glob("*.py"), *(p for p in here.iterdir() if (p / "__init__.py").exists())]:
        name = f"{path.name}/" if path.is_dir() else path.name
        assert name.startswith("__") or f"  {name} " in README, name


RESULT = {
    "what": "spectral",
    "bars": [
        {"name": "κ 50×", "quantity": "speedup", "sense": "at least", "limit": 50, "value": 61.23456,
         "row": "ours", "met": True},
        {"name": "step", "quantity": "ratio", "sense": "at most", "limit": 1.1, "value": 1.2,
         "row": "svd", "met": False},
        {"name": "unmeasured", "quantity": "ratio", "sense": "at most", "limit": 1, "value": None,
         "row": None, "met": None},
        {"name": "exactness", "quantity": "error_fro", "sense": "at most", "limit": 1, "value": 0.5,
         "row": "x", "met": True},
    ],
    "parts": {
        "a-cuda": {
            "part": "a",
            "device": "cuda",
            "quick": False,
            "command": "wellcond bench spectral",
            "commit": "0123456789abcdef",
            "hardware": {"gpu": "H200"},
            "versions": {"torch": "2.11.0"},
            "images": "parquet:x",
        },
        "a-cpu": {"part": "a", "device": "cpu", "quick": True},
    },
    "rows": [
        {"part": "a", "device": "cuda", "name": "ours | theirs", "median_ms": 1.5, "ratio": 1.02,
         "ratio_ci": [1.01, 1.03], "error_fro": 3.2e-6},
        {"part": "a", "device": "cuda", "name": "other", "failed": "out of memory"},
        {"part": "a", "device": "cpu", "name": "quick", "median_ms": 99.0},
    ],
}  # fmt: skip


def test_table_keeps_misses_and_failures_and_leaves_quick_runs_out(tmp_path):
    (tmp_path / "bench-spectral.json").write_text(json.dumps(RESULT))
    text = render(tmp_path)
    assert "| κ 50× | ≥ 50 | 61.23 | ours | yes |" in text and "κ 50×" not in summary(tmp_path)
    assert "| step | ≤ 1.1 | 1.2 | svd | **no** |" in text and "| step | ≤ 1.1 | 1.2 | **no** | – |" in summary(
        tmp_path
    )
    assert "unmeasured" not in text + summary(tmp_path)
    assert "exactness" in text
    assert "| ours \\| theirs | 1.5 | 1.02 | 1.01 … 1.03 | – | – | 3.2e-06 | – |" in text
    assert "| other | failed |" in text
    assert "99" not in text
    assert "H200" in text


def test_no_results_say_so(tmp_path):
    assert render(tmp_path) == summary(tmp_path) == claims(tmp_path) == NOTHING


def test_headlines_are_promises_and_were_measured():
    bars = [bar for path in (ROOT / "results").glob("bench-*.json") for bar in json.loads(path.read_text())["bars"]]
    assert {bar["name"] for bar in bars if bar["met"] is not None} >= HEADLINES


ROW = {"name": "gain", "paper": "+0.5 (of two)", "value": 1.25, "interval": [0.5, 2.0], "verdict": "as in the paper"}


def write_claim(folder, name, rows, verdict="Not shown.", quick=False):
    content = {"claim": name, "quick": quick, "verdict": verdict, "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_a_claim_without_a_line_shows_its_rows_with_a_number_of_the_paper_and_an_interval(tmp_path):
    others = [{**ROW, "name": "alone", "interval": None}, {**ROW, "name": "words", "paper": "a proxy"},
              {**ROW, "name": "mean", "verdict": "–"}]  # fmt: skip
    write_claim(tmp_path, "real", [ROW, *others])
    write_claim(tmp_path, "quick", [ROW], quick=True)
    assert claims(tmp_path).splitlines()[2:] == ["| gain (`real`) | +0.5 | 1.25 ± 0.75 | as in the paper |"]


def test_a_line_has_the_numbers_and_the_verdict_of_its_file(tmp_path):
    lines = {
        "See": [Line("b", "Both fall", ("x", "y"), whole=True), Line("a", "It grows", ("gain",))],
        "Fix": [Line("a", "None", ("z",))],
    }
    rows = [{**ROW, "name": "x"}, {**ROW, "name": "y", "paper": "-2", "value": -54.0, "interval": [-91, -17]}]
    read = [
        {"claim": "a", "verdict": "Reproduced.", "rows": [ROW, {**ROW, "name": "z", "value": None}]},
        {"claim": "b", "verdict": "CIFAR-10: not shown that x; others: reproduced.", "rows": rows},
    ]
    assert cells(read, lines) == [
        ["**See**", "", "", ""],
        ["Both fall (`b`)", "+0.5; -2", "1.25 ± 0.75; -54 ± 37", "not shown"],
        ["It grows (`a`)", "+0.5", "1.25 ± 0.75", "as in the paper"],
    ]


def test_every_line_of_the_claims_is_measured_and_short():
    found = {path.stem: json.loads(path.read_text()) for path in (ROOT / "results").glob("*-*.json")}
    lines = [line for of_job in LINES.values() for line in of_job]
    for line in lines:
        assert set(line.rows) <= {row["name"] for row in found[line.claim]["rows"]}, line
        assert not line.whole or JUDGED.search(found[line.claim]["verdict"]), line
    block = README[README.index(CLAIMS[0]) : README.index(CLAIMS[1])].splitlines()[3:]
    assert len(block) >= len(lines) + len(LINES) and all(row.count("|") == 5 and len(row) <= 175 for row in block)


def test_marks_are_needed_once():
    with pytest.raises(ValueError, match="marks"):
        replace_block("".join(reversed(PROMISES)), "x")
