"""`reproduce --jobs`: several runs at once are the same runs; signals, mistakes and deaths of their processes."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from claim_cases import reproduce

from wellcond.config import ReproduceConfig
from wellcond.reproduction import abreast
from wellcond.runs import Run

pytestmark = pytest.mark.usefixtures("own_cache")
CONFIG = ReproduceConfig(claim="asa-kappa", jobs=2)


def numbers(content):
    clock = {"seconds", "images_per_s", "date", "jobs"}
    return [{name: value for name, value in run.items() if name not in clock} for run in content["runs"]]


def test_the_same_runs_in_any_order(tmp_path, capsys):
    one = reproduce("asa-fig1c", tmp_path / "one", seeds=2)[1]
    status, several = reproduce("asa-fig1c", tmp_path / "several", "--jobs", 2, seeds=2)
    assert status == 0 and numbers(several) == numbers(one) and several["rows"] == one["rows"]
    assert [run["jobs"] for run in several["runs"]] == [2] * 6 and "jobs" not in one["runs"][0]
    assert capsys.readouterr().out.count("seed 1: top-1") == 6


def test_a_claim_that_trains_nothing(tmp_path):
    one = reproduce("asa-kappa", tmp_path / "one", seeds=2)[1]
    assert numbers(reproduce("asa-kappa", tmp_path / "several", "--jobs", 3, seeds=2)[1]) == numbers(one)


def test_a_mistake_in_one_is_told_and_the_others_are_kept(tmp_path, capsys):
    first = reproduce("asa-fig1c", tmp_path, "--only", "all-skips")[1]["runs"][0]
    (folder,) = (tmp_path / "runs").iterdir()
    (tmp_path / "runs" / folder.name.replace("seed0", "seed1")).mkdir()
    (tmp_path / "runs" / folder.name.replace("seed0", "seed1") / "thesis.tex").touch()
    status, content = reproduce("asa-fig1c", tmp_path, "--only", "all-skips", "--jobs", 2, seeds=3)
    line = capsys.readouterr().err.strip()
    assert status == 2 and "holds files and no run" in line and "\n" not in line
    assert first in content["runs"]


def test_runs_that_have_ended_beside_a_mistake_are_kept(monkeypatch):
    """Many, for the order of a set is none: of two the run would be lost every other time."""

    def ended(workers, key):
        future = Future()
        future.set_exception(ValueError("a mistake")) if key == ("a", 3) else future.set_result({"seed": key[1]})
        return future

    monkeypatch.setattr(abreast.Workers, "begin", ended)
    found = abreast.measured(ReproduceConfig(claim="asa-kappa", jobs=8), [("a", i) for i in range(8)], lambda key: True)
    kept = []
    with pytest.raises(ValueError, match="a mistake"):
        kept.extend(key for key, _ in found)
    assert sorted(kept) == [("a", i) for i in range(8) if i != 3]


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_jobs_are_refused(jobs, tmp_path, capsys):
    assert reproduce("asa-fig1c", tmp_path, "--jobs", jobs)[0] == 2
    assert f"jobs is {jobs}; choose 1 or more" in capsys.readouterr().err


def stand_in(folder: Path, script: str, monkeypatch) -> None:
    """Workers are a shell script."""
    program = folder / "program"
    program.write_text(f"#!/bin/sh\nread config\nread key\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(abreast.sys, "executable", str(program))


def test_a_process_that_dies_says_its_last_words(tmp_path, monkeypatch):
    stand_in(tmp_path, "echo Traceback >&2; echo 'OutOfMemoryError: CUDA out of memory' >&2; exit 3", monkeypatch)
    words = (
        r"process of a/b, seed 4 ended with status 3 \(OutOfMemoryError: CUDA out of memory\); the same command goes on"
    )
    with pytest.raises(ValueError, match=words):
        list(abreast.measured(CONFIG, [("a/b", 4)], lambda key: True))


@pytest.mark.parametrize("status", [75, 130])
def test_a_process_that_was_asked_to_stop_stops_all(status, tmp_path, monkeypatch):
    stand_in(tmp_path, f"exit {status}", monkeypatch)
    with pytest.raises(SystemExit) as ended:
        list(abreast.measured(CONFIG, [("a", 0), ("b", 0)], lambda key: True))
    assert ended.value.code == status


def test_the_rest_waits_for_another_portion(tmp_path, monkeypatch):
    stand_in(tmp_path, """echo '[{"seconds": 1}, ""]'; read key""", monkeypatch)
    found = abreast.measured(CONFIG, [("a", 0), ("b", 0), ("c", 0)], lambda key: key[0] != "b")
    assert list(found) == [(("a", 0), {"seconds": 1})]


def test_gpus_are_dealt_out_in_turns(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    def dealt(config=CONFIG):
        return [abreast._environment(config, number).get("CUDA_VISIBLE_DEVICES") for number in range(3)]

    assert dealt() == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3")
    assert dealt() == ["5", "3", "5"]
    assert dealt(ReproduceConfig(claim="asa-kappa", device="cpu")) == ["5,3"] * 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert dealt() == ["5,3"] * 3


def test_processes_share_the_threads_of_this_one(monkeypatch):
    """Not the cores of the machine: a batch system may have given it four of sixty-four."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)

    def threads(jobs):
        return abreast._environment(ReproduceConfig(claim="asa-kappa", jobs=jobs, device="cpu"), 0)["OMP_NUM_THREADS"]

    assert [threads(jobs) for jobs in (2, 3, 8)] == ["2", "1", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert threads(2) == "7"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_asked_to_stop_every_run_saves_and_the_same_command_goes_on(number, tmp_path):
    words = ["reproduce", "asa-fig1c", "--quick", "--seeds", "1", "--jobs", "2", "--out", tmp_path / "out"]
    words += ["--runs", tmp_path / "runs", "--only", "all-skips", "no-ffn-skip", "--epochs"]
    command = [sys.executable, "-m", "wellcond", *map(str, words)]
    with subprocess.Popen([*command, "100000"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        workers = _until(lambda: _children(process.pid) if len(_training(tmp_path)) == 2 else [])
        assert len(workers) == 2
        process.send_signal(number)
        status = process.wait()
    assert status == (75 if number == signal.SIGTERM else -signal.SIGKILL)
    assert _until(lambda: not any(Path(f"/proc/{worker}/stat").exists() for worker in workers))
    for folder in (tmp_path / "runs").iterdir():
        saved = max(int(path.name.split("-")[-1]) for path in (folder / "checkpoints").iterdir() if path.is_dir())
        assert saved >= max(row["step"] for row in Run(folder).rows())


def _training(folder: Path) -> list[Path]:
    return [path for path in folder.glob("runs/*/metrics.jsonl") if path.stat().st_size]


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _until(found, seconds: float = 120):
    end = time.monotonic() + seconds
    while not (what := found()) and time.monotonic() < end:
        time.sleep(0.05)
    return what
