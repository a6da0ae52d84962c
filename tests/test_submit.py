"""examples/slurm/submit.py: what the docs say parses, a mistake is told before the queue (test_typed runs it)."""

import re

import pytest
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
