"""examples/slurm/submit.py: what the docs say parses, a mistake is told before the queue, a job that is stopped goes on
(test_typed runs it)."""

import os
import re
import signal
from unittest import mock

import pytest
from command_cases import TRAIN, terminated, trained
from docs_cases import PAGES, commands, program, script

pytest.importorskip("submitit")
PATH = "examples/slurm/submit.py"
LINES = [words for page in PAGES for words in commands(page) if program(words) == "python"]


class Executor:
    """submitit's, which keeps what it is given."""

    def __init__(self, **_given):
        self.parameters = {}

    def update_parameters(self, **parameters):
        self.parameters |= parameters

    def submit(self, task):
        self.task = task
        return self

    job_id = "1"

    @property
    def paths(self):
        return self

    stderr = "log"


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_what_the_docs_say_is_submitted(words, monkeypatch):
    assert words[1] == PATH
    submit = script(PATH)
    monkeypatch.setattr(submit.submitit, "AutoExecutor", Executor)
    given = submit.submit(words[2:])
    assert given.task.command[0] == "train"
    per_node = given.parameters["tasks_per_node"]
    assert given.parameters["gpus_per_node"] == (0 if "--no-gpu" in words else per_node)


@pytest.mark.parametrize("command", [[], ["train", "procedural-vitt"], ["train", "procedural-vit", "--epoch", "2"]])
def test_a_mistake_is_told_before_the_queue(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        script(PATH).submit(command)
    assert stopped.value.code == 2
    assert re.search("procedural-vit|--epochs", capsys.readouterr().err.splitlines()[-1])


@pytest.fixture
def slurm(tmp_path):
    """A job's surroundings, with an scontrol that writes down what it is told; the file."""
    told, scontrol = tmp_path / "told", tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f'#!/bin/sh\necho "$@" >> "{told}"\n')
    scontrol.chmod(0o755)
    usual = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    place = {"SUBMITIT_EXECUTOR": "slurm", "SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "localhost"}
    with mock.patch.dict(os.environ, place | {"PATH": f"{scontrol.parent}:{os.environ['PATH']}"}):
        yield told
    signal.signal(signal.SIGUSR2, usual)


def start(job):
    """What a job adds to its environment, its rank and the like, ends with it."""
    with mock.patch.dict(os.environ):
        job()


def test_a_job_told_to_stop_goes_back_into_the_queue_and_on(tmp_path, monkeypatch, slurm):
    """As after `scancel --signal=USR2 3`, and as when its time is nearly up."""
    job = script(PATH).Training((*TRAIN, "--out", str(tmp_path / "run")))
    told = terminated(monkeypatch, at=4, by=signal.SIGUSR2)
    with told, pytest.raises(SystemExit) as stopped:
        start(job)
    assert stopped.value.code == 75 and slurm.read_text() == "requeue 3\n"
    start(job)
    straight = trained(tmp_path / "straight")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (straight / "metrics.jsonl").read_bytes()
    assert slurm.read_text() == "requeue 3\n"
