"""Locks between processes: refused, waited for, dropped with their process; file systems that have none."""

import errno
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from wellcond import locks
from wellcond.data.cache import open_cache
from wellcond.data.generated import GeneratedSource
from wellcond.locks import locked
from wellcond.runs import Run


def refuse() -> None:
    raise ValueError("another has it")


def free(path: Path) -> bool:
    """Asked of another process."""
    code = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return subprocess.run([sys.executable, "-c", code, path], stderr=subprocess.DEVNULL, check=False).returncode == 0


def test_held_until_the_end_of_the_block(tmp_path):
    with locked(tmp_path / "lock", refuse) as alone:
        assert alone and not free(tmp_path / "lock")
        with pytest.raises(ValueError, match="another has it"), locked(tmp_path / "lock", refuse):
            pass
    assert free(tmp_path / "lock")
    with pytest.raises(KeyError), locked(tmp_path / "lock", refuse):
        raise KeyError
    assert free(tmp_path / "lock")


@pytest.mark.parametrize(("patience", "told"), [(0.0, ["held"]), (20.0, [])])
def test_waited_for_and_told_only_after_the_patience(patience, told, tmp_path):
    heard = []
    with ExitStack() as other:
        other.enter_context(locked(tmp_path / "lock", refuse))
        threading.Timer(0.2, other.pop_all().close).start()
        with locked(tmp_path / "lock", lambda: heard.append("held"), patience=patience) as alone:
            assert alone and heard == told


def test_dropped_with_a_process_that_was_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from wellcond.locks import locked\n"
        "with locked(Path(sys.argv[1]), sys.exit):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "lock"], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"locked\n"
        with pytest.raises(ValueError, match="another has it"), locked(tmp_path / "lock", refuse):
            pass
        other.kill()
    with locked(tmp_path / "lock", refuse, patience=20):
        pass


@pytest.fixture
def failing(monkeypatch):
    """The system answers every wish for a lock with this error."""

    def fail_with(number: int) -> None:
        def flock(file: object, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        assert locks.fcntl is not None
        monkeypatch.setattr(locks.fcntl, "flock", flock)

    return fail_with


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_keeps_nobody_out(number, failing, tmp_path):
    failing(number)
    with locked(tmp_path / "lock", refuse) as alone:
        assert not alone
    with Run(tmp_path / "run").locked():
        pass
    assert len(open_cache(GeneratedSource(4, size=16), 16, tmp_path)) == 4


def test_a_system_without_locks_keeps_nobody_out(monkeypatch, tmp_path):
    monkeypatch.setattr(locks, "fcntl", None)
    with locked(tmp_path / "lock", refuse) as alone:
        assert not alone


def test_a_fault_of_the_disk_is_not_taken_for_a_file_system_without_locks(failing, tmp_path):
    failing(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"), locked(tmp_path / "lock", refuse):
        pass
    with pytest.raises(OSError, match="Input/output error"), Run(tmp_path / "run").locked():
        pass
