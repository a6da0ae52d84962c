"""The examples and the notebook run as they are, offline, and print what they promise."""

import json
import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "wellcond.ipynb"
PRINTED = {  # what a reader looks for
    "01_diagnose_your_model.py": [
        r"attention ┃ +attention",
        r"block 0: log κ \S+ alone, \d",
        r"log κ above 12 at \d+ places; .* at \d+",
    ],
    "02_gray_your_loop.py": [
        r"step 60  loss \d",
        r"block 3: log κ \d",
        r"log κ of what the model is fed: \d.*grayed \d",
    ],
    "03_gray_timm_loop.py": [r"epoch 2  loss \d.*log κ into block 0 \d"],
    "04_go_skipless.py": [r"usual weights\. Not made for", r"init_skipless_\. Made for", r"loss \d.* → \d"],
    "05_reproduce_one_claim.py": [r"SA\(X\) far", r"the paper says: Always Skip Attention"],
}


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # what they write stays here


def test_every_example_is_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_example_runs(name, capsys):
    text = (EXAMPLES / name).read_text()
    assert text.startswith('"""') and text.count("\n") <= 55
    runpy.run_path(str(EXAMPLES / name))
    shown = capsys.readouterr().out
    for words in PRINTED[name]:
        assert re.search(words, shown), (words, shown)
    if name.startswith("04"):
        assert_only_ours_trains(shown)


def assert_only_ours_trains(shown: str) -> None:
    """Without skips: from the usual weights the loss stays that of guessing, 2.30; from ours it falls."""
    usual, ours = (float(end) for end in re.findall(r"(?:weights|init_skipless_): loss .*→ (\d+\.\d+)", shown))
    assert ours < 1.8 < 2.2 < usual


def test_graying_is_the_only_difference_in_the_loops():
    """What is new in a loop is marked, and the marked lines are all of wellcond that is in it."""
    for name in ("02_gray_your_loop.py", "03_gray_timm_loop.py"):
        text = (EXAMPLES / name).read_text()
        loop = text[text.index("model = timm") : text.index("monitor.close()")]
        for line in loop.splitlines():
            assert ("←" in line) == bool(re.search(r"\bwc\.|monitor\.step", line)), line


def test_notebook_runs(capsys):
    notebook = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 4
    names: dict[str, object] = {}
    for cell in cells:
        assert cell["outputs"] == [] and cell["execution_count"] is None  # committed without outputs
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    shown = capsys.readouterr().out
    assert re.search(r"svd, ε = 0\.7 .* 0\.70 of it", shown)
    assert_only_ours_trains(shown)
