"""Every command of README and the site, typed page by page from top to bottom, on the stand-ins of typed_cases.

Those that need a checkout are in test_checkout.
"""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docs_cases import PAGES, ROOT, commands, mentioned, program, promised, script
from training_cases import free_port
from typed_cases import SHOWN, lay_out, of_a_page, typed

from wellcond import cli
from wellcond.runs import Run
from wellcond.verbs import VERBS

STATUS = {"--fail-above": 1}  # where the page says another one than 0
LEAVES = {  # verb → what is new or changed after it
    "gray": "*gray*",
    "diagnose": "*/*.json",
    "train": "runs/*/summary.json",
    "evaluate": "runs/*/evaluation.json",
    "report": "**/report.html",
    "push": "runs/*/hub/README.md",
    "reproduce": "*/*-*.json",  # in results/ or the --out of the page
}


def with_wellcond(words: list[str]) -> int:
    return max(cli.main([verb, *words[2:]]) for verb in (VERBS if words[1] == "VERB" else words[1:2]))


def started_once(words: list[str]) -> tuple[Run, dict[str, Any]]:
    run = Run(words[words.index("--out") + 1])
    (start,) = json.loads((run.path / "env.json").read_text())["starts"]
    return run, start


def with_torchrun(words: list[str]) -> int:
    """As many torchruns as nodes are asked for; of all their processes one talks."""
    nodes = int(words[words.index("--nnodes") + 1]) if "--nnodes" in words else 1
    port = str(free_port())  # 29500 may be taken
    command = [sys.executable, "-m", "torch.distributed.run", *(word.replace("29500", port) for word in words[1:])]
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen(command, env=environment, **given) for _ in range(nodes)]
    try:
        told = [process.communicate(timeout=200) for process in started]
    finally:
        for process in started:
            process.terminate()  # nothing, where it has ended
    assert sum(out.count("top-1") for out, _ in told) == 1, told
    assert sum(err.count("epoch 1/") for _, err in told) == 1, told
    run, start = started_once(words)
    assert start["processes"] == nodes * int(words[words.index("--nproc-per-node") + 1])
    assert start["command"].startswith("wellcond train")
    assert cli.main(["evaluate", str(run.path), "--device", "cpu"]) == 0
    assert run.evaluations()[0]["values"]["top1"] == (run.read_summary() or {})["top1"]  # one process judges as many do
    return max(process.returncode for process in started)


def with_submit(words: list[str]) -> int:
    """The script of the page. What it would give to Slurm, submitit's executor for trials runs in this process."""
    submitit = pytest.importorskip("submitit")
    module, usual = script(words[1]), signal.getsignal(signal.SIGUSR2)
    here = "--cluster" in words
    if not here:
        vars(module)["submitit"] = SimpleNamespace(
            AutoExecutor=lambda folder, cluster: submitit.AutoExecutor(folder=folder, cluster="debug")
        )
    try:
        results = module.submit(words[2:]).results()
    finally:
        signal.signal(signal.SIGUSR2, usual)
    assert started_once(words)[1]["processes"] == len(results) == (2 if here else 1)
    return 0 if set(results) == {None} else 1


def with_cat(words: list[str]) -> int:
    """The log of a job of this page, whose number is another."""
    logs = [path.read_text() for path in Path(words[1]).parent.glob("*_0_log.err")]
    return 0 if any("epoch 1/" in log for log in logs) else 1


RUN = {"wellcond": with_wellcond, "torchrun": with_torchrun, "python": with_submit, "cat": with_cat}


def state(pattern: str) -> set[tuple[Path, int]]:
    return {(path, path.stat().st_mtime_ns) for path in Path().glob(pattern)}


def type_in(said: list[str]) -> None:
    """Run a command of a page in this folder; it ends as the page says and leaves what its verb leaves."""
    lay_out(said)
    words = typed(said)
    if program(words) in ("torchrun", "python"):  # other ways to one run, each from its beginning
        shutil.rmtree(words[words.index("--out") + 1], ignore_errors=True)
    verb = "train" if "train" in words else words[1]
    pattern = LEAVES.get(verb, "") if "--help" not in words else ""
    before = state(pattern) if pattern else set()
    assert RUN[program(words)](words) == next((STATUS[word] for word in said if word in STATUS), 0), words
    assert not pattern or state(pattern) - before, words


@pytest.fixture
def answers(monkeypatch):
    """An app ends as soon as it has answered; the status of its answers."""
    uvicorn = pytest.importorskip("uvicorn")
    serve, found = uvicorn.Server.run, []

    def run(server, sockets):
        thread = threading.Thread(target=serve, args=(server, sockets))
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        connection = http.client.HTTPConnection(*sockets[0].getsockname(), timeout=20)
        connection.request("GET", "/")
        found.append(connection.getresponse().status)
        connection.close()
        server.should_exit = True
        thread.join()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    return found


@pytest.mark.slow
@pytest.mark.longest
@pytest.mark.parametrize("page", [page for page in PAGES if of_a_page(page)], ids=lambda page: page.name)
def test_a_page_goes_as_typed(page, tmp_path, monkeypatch, own_cache, answers):
    monkeypatch.chdir(tmp_path)
    for words in of_a_page(page):
        type_in(words)
    for name in promised(page):
        assert Path(name).exists(), name
    assert answers == [200 for words in of_a_page(page) if "app" in words]


def test_what_is_not_typed_runs_elsewhere():
    """Each line of the tables is needed, and what it points at is there."""
    assert SHOWN.keys() <= {program(words) for page in PAGES for words in commands(page, "console")}
    for command, (why, file, line) in SHOWN.items():
        assert why and line in (ROOT / file).read_text(), command


def test_what_only_a_transcript_may_show_is_not_asked_for():
    asked = [words for page in PAGES for words in commands(page, "sh") + mentioned(page)]
    assert not SHOWN.keys() & {program(words) for words in asked}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_command_hides(page):
    """Neither in a block of another kind nor in one without a fence."""
    rest = re.sub(r"^```(?:sh|console|python)\n.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^```.*?^```$|^    .*?$", rest, re.DOTALL | re.MULTILINE)
    programs = "|".join({"make", "pip", "apt", *RUN, *SHOWN})
    assert not re.search(rf"^\s*(\$ )?([\w./-]*/)?({programs}) ", "\n".join(blocks), re.MULTILINE)


@pytest.mark.parametrize(
    ("line", "error"),
    [("wellcond gray nowhere.jpg", AssertionError), ("wellcond recipe", AssertionError), ("sbatch job.sh", KeyError)],
)
def test_a_command_that_does_not_run_is_found(line, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error):
        type_in(line.split())
