"""A run directory, the only thing that connects training, evaluation and reports. Floor 0: no torch.

    config.json     the whole config
    classes.json    names of the classes in the order of their labels, where the training pictures have names
    env.json        every start: command, commit, hardware, versions, date, checksums of the images
    metrics.jsonl   rows that depend on the config and the step only; no clock, so two runs compare byte for byte
    timings.jsonl   what depends on the clock: images a second, starts, stops, rollbacks
    checkpoints/    see training/checkpoints.py
    replay/         batches whose step was skipped, as indices
    summary.json    the last numbers, once the run is done
    evaluation.json what `wellcond evaluate` found: one row for each judge, source, step and settings
    look.json       what `wellcond reproduce` has asked of the trained run so far, for claims that look at all layers

A killed process leaves at most a torn last line; the checkpoint knows how long `metrics.jsonl` was, and resuming cuts
it there.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .atomic import sync_file, sync_folder, write_bytes
from .finite import finite
from .locks import locked

CONFIG, ENV, METRICS, TIMINGS, SUMMARY = "config.json", "env.json", "metrics.jsonl", "timings.jsonl", "summary.json"
CLASSES, EVALUATION, LOOK = "classes.json", "evaluation.json", "look.json"
# A killed process may be reported dead some moments before the system drops its lock, and a restart may be as quick.
PATIENCE = 1.0  # seconds


class Run:
    """Paths of a run directory, and its small JSON files."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"

    def exists(self) -> bool:
        return (self.path / CONFIG).is_file()

    def read_config(self) -> str:
        """The text of config.json; ValueError where there is no run."""
        if not self.exists():
            what = "is not a run directory" if self.path.exists() else "does not exist"
            raise ValueError(f"{str(self.path)!r} {what} (no config.json); name the --out of a training run")
        try:
            return (self.path / CONFIG).read_text()
        except UnicodeDecodeError:
            raise ValueError(f"{str(self.path / CONFIG)!r} cannot be read: it is no text; restore it") from None

    def check_free(self) -> None:
        """ValueError where something else than a run is in the way."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"out is {str(self.path)!r}, which is a file; name a folder")
        if self.path.is_dir() and any(not p.name.startswith(".") for p in self.path.iterdir()):
            raise ValueError(f"{str(self.path)!r} holds files and no run; name an empty or new folder with --out")

    def create(self, config: str) -> None:
        """Make the directory with this config.json."""
        self.check_free()
        _write_json_text(self.path / CONFIG, config)

    def rewrite(self, config: str) -> None:
        """Another config.json: the same experiment, whose images lie elsewhere now."""
        _write_json_text(self.path / CONFIG, config)

    def add_start(self, origin: Mapping[str, Any]) -> None:
        """Append to the list of starts in env.json."""
        self._write(ENV, {"starts": [*self.starts(), dict(origin)]})

    def starts(self) -> list[dict[str, Any]]:
        return self._read(ENV, "starts") or []

    def write_classes(self, names: Sequence[str]) -> None:
        self._write(CLASSES, {"classes": list(names)})

    def classes(self) -> list[str]:
        """Empty where the training pictures had no names, or the run is older than this file."""
        return self._read(CLASSES, "classes", str) or []

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        self._write(SUMMARY, finite(summary))

    def read_summary(self) -> dict[str, Any] | None:
        return self._read(SUMMARY)

    def add_evaluation(self, row: Mapping[str, Any]) -> None:
        """Into evaluation.json, in the place of an earlier one of the same judge, source, step and settings."""
        new = finite(row)  # tuples as the lists that they are in the file
        key = ("judge", "data", "step", "settings")
        others = [old for old in self.evaluations() if [old.get(k) for k in key] != [new.get(k) for k in key]]
        self._write(EVALUATION, {"evaluations": [*others, new]})

    def evaluations(self) -> list[dict[str, Any]]:
        return self._read(EVALUATION, "evaluations") or []

    def _write(self, name: str, content: Any) -> None:
        _write_json_text(self.path / name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def _read(self, name: str, field: str | None = None, kind: type = dict) -> Any:
        """A small JSON file, or a list in it of `kind`; None where there is no file, ValueError where it is damaged."""
        path = self.path / name
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text())
            assert isinstance(found, dict)
            if field is None:
                return found
            assert isinstance(found[field], list) and all(isinstance(entry, kind) for entry in found[field])
            return found[field]
        except (AssertionError, ValueError, KeyError):
            raise ValueError(f"{str(path)!r} is damaged; move it away, and the same command goes on") from None

    def rows(self, name: str = METRICS) -> Iterator[dict[str, Any]]:
        """Rows of metrics.jsonl or timings.jsonl; a torn last line is left out, ValueError where another is none."""
        path = self.path / name
        if not path.is_file():
            return
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield _row(line, f"line {number} of {str(path)!r}")

    def keep_for_replay(self, step: int, batch: Mapping[str, Any]) -> Path:
        """Write replay/step-N.json: what is needed to run a skipped step again."""
        path = self.path / "replay" / f"step-{step:08d}.json"
        _write_json_text(path, json.dumps(dict(batch)) + "\n")
        return path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One trainer at a time; a second one is refused."""
        made = [p for p in (self.path, *self.path.parents) if not p.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self.path / ".lock", self._refuse, patience=PATIENCE):
            try:
                yield
            except BaseException:
                if not self.exists():  # it never became a run: no lock and no empty folder of it stay
                    (self.path / ".lock").unlink(missing_ok=True)
                    with suppress(OSError):
                        for folder in made:
                            folder.rmdir()
                raise

    def _refuse(self) -> None:
        raise ValueError(f"another process is training in {str(self.path)!r}; wait or name another --out")


class Log:
    """A file of JSON lines that only grows, and can be cut back to where a checkpoint saw its end."""

    def __init__(self, path: Path, *, length: int | None = None) -> None:
        """Open for appending; `length` cuts to so many bytes, None to the last whole line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.file = path.open("ab")
        try:
            self.cut(_whole_lines(path) if length is None else length)
        except BaseException:
            self.file.close()
            raise

    def cut(self, length: int) -> None:
        self.file.flush()
        found = os.fstat(self.file.fileno()).st_size
        if found < length:
            raise ValueError(
                f"{str(self.path)!r} has {found} bytes, its checkpoint saw {length}: it was changed by hand; "
                "restore it, or start anew in another --out"
            )
        self.file.truncate(length)
        self.file.seek(0, os.SEEK_END)

    def append(self, row: Mapping[str, Any]) -> None:
        """One row; NaN and infinity become null."""
        text = json.dumps(finite(row), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self.file.write(text.encode() + b"\n")

    def flush(self) -> None:
        """To the system: survives the death of this process."""
        self.file.flush()

    def sync(self) -> int:
        """To the disk: survives the death of the machine. Returns the length in bytes."""
        self.file.flush()
        os.fsync(self.file.fileno())
        return os.fstat(self.file.fileno()).st_size

    def close(self) -> None:
        """Rows that a full disk did not take were complained of when they were written; they are not tried again."""
        with suppress(OSError):
            self.file.close()


def _row(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"{place} cannot be read; restore the file, or train the run anew elsewhere")
    return row


def _write_json_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())
    sync_file(path)
    sync_folder(path.parent)


def _whole_lines(path: Path) -> int:
    content = path.read_bytes()
    return content.rfind(b"\n") + 1
