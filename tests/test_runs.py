"""A run directory: whole files, logs that can be cut, one trainer at a time."""

import json
from pathlib import Path

import pytest

from wellcond import results
from wellcond.runs import Log, Run


def test_rows_come_back_and_nan_is_null(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    log.append({"step": 1, "loss": float("nan"), "list": [1.5, float("inf")]})
    log.append({"step": 2, "loss": 0.1})
    log.close()
    assert list(Run(tmp_path).rows()) == [{"step": 1, "loss": None, "list": [1.5, None]}, {"step": 2, "loss": 0.1}]


def test_a_log_is_cut_to_where_a_checkpoint_saw_it(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    log.append({"step": 1})
    length = log.sync()
    log.append({"step": 2})
    log.close()
    log = Log(tmp_path / "metrics.jsonl", length=length)
    log.append({"step": 3})
    log.close()
    assert [row["step"] for row in Run(tmp_path).rows()] == [1, 3]


@pytest.mark.parametrize("line", ["garbage", "[1]"])
def test_a_damaged_line_is_named(line, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step":1}}\n{line}\n')
    with pytest.raises(ValueError, match=r"^line 2 of '.*metrics.jsonl' cannot be read; restore"):
        list(Run(tmp_path).rows())


def test_a_torn_last_line_is_dropped(tmp_path):
    path = tmp_path / "timings.jsonl"
    path.write_bytes(b'{"a":1}\n{"b":')
    assert list(Run(tmp_path).rows("timings.jsonl")) == [{"a": 1}]
    log = Log(path)
    log.append({"c": 2})
    log.close()
    assert path.read_bytes() == b'{"a":1}\n{"c":2}\n'


def test_a_log_shorter_than_its_checkpoint_says_is_refused(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n")
    with pytest.raises(ValueError, match=r"has 3 bytes, its checkpoint saw 10: it was changed by hand"):
        Log(tmp_path / "metrics.jsonl", length=10)


def test_starts_are_listed(tmp_path):
    run = Run(tmp_path / "run")
    run.create("{}")
    run.add_start({"commit": "a"})
    run.add_start({"commit": "b"})
    assert [start["commit"] for start in run.starts()] == ["a", "b"]
    assert json.loads((tmp_path / "run" / "env.json").read_text())["starts"]


@pytest.mark.parametrize("text", ['{"starts": 3}', '{"starts": ["x"]}', '{"starts": [{}, 1]}', "[]", "{", ""])
def test_a_list_that_holds_something_else_is_damaged(text, tmp_path):
    (tmp_path / "env.json").write_text(text)
    with pytest.raises(ValueError, match=r"env.json' is damaged; move it away"):
        Run(tmp_path).starts()


def test_what_is_no_run_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"is not a run directory \(no config.json\); name the --out"):
        Run(tmp_path).read_config()
    with pytest.raises(ValueError, match=r"'.*/none' does not exist"):
        Run(tmp_path / "none").read_config()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="which is a file; name a folder"):
        Run(tmp_path / "file").create("{}")


def test_a_copy_without_history_says_its_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")  # no git here
    assert results.git_commit() is None
    monkeypatch.setenv("WELLCOND_COMMIT", "abc123")
    assert results.git_commit() == "abc123"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full, on Linux")
def test_a_row_that_the_disk_does_not_take_is_complained_of_once(tmp_path):
    """When it is closed the error would hide the one that says which checkpoint is whole."""
    log = Log(tmp_path / "metrics.jsonl")
    log.close()
    log.file = open("/dev/full", "ab")  # noqa: SIM115
    log.append({"step": 1})
    with pytest.raises(OSError, match="No space"):
        log.flush()
    log.close()
    assert log.file.closed
