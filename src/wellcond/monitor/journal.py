"""The file of a monitor: one JSON line for each measurement, and no clock in it, so that two runs can be compared.

    {"step": 100, "columns": ["layer", "site", …], "rows": [[0, "sab_in", …], …], "warnings": [{…}, …]}

A line is appended by one write. A crash can leave the last one torn, or lines of steps that the run, resumed from an
earlier checkpoint, will take again: both are cut off when it goes on.
"""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellcond.atomic import check_writable
from wellcond.diagnosis.result import Finding
from wellcond.probes.rows import Row

COLUMNS = tuple(field.name for field in dataclasses.fields(Row))
_DIGITS = 7  # of a number in the file: activations are float32


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured after so many steps of training, and what it means."""

    step: int
    rows: list[Row]
    warnings: list[Finding]


class Journal:
    """Appends measurements to a file, which may be one of the same run before it was interrupted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise ValueError(f"path is {str(path)!r}, which is a folder; name a file, e.g. monitor.jsonl")
        check_writable(path, "path")

    def resume(self, step: int | None) -> None:
        """Keep what was measured up to `step` (None: nothing may be there) and cut off the rest."""
        if not self.path.exists() or not self.path.stat().st_size:
            return
        if step is None:
            raise ValueError(
                f"{str(self.path)!r} holds an earlier run; load_state_dict() of its checkpoint goes on with it, "
                "another path starts a new one"
            )
        end = 0
        for content in _lines(self.path):
            if _parse(content, self.path)["step"] > step:
                break
            end += len(content)
        os.truncate(self.path, end)

    def add(self, measurement: Measurement) -> None:
        line = {
            "step": measurement.step,
            "columns": COLUMNS,
            "rows": [[_short(getattr(row, name)) for name in COLUMNS] for row in measurement.rows],
            "warnings": [dataclasses.asdict(finding) for finding in measurement.warnings],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab", buffering=0) as file:
            file.write(json.dumps(line, allow_nan=False, ensure_ascii=False).encode() + b"\n")


def read(path: str | Path) -> list[Measurement]:
    """The measurements of a file that a `Monitor` wrote; a torn last line is left out."""
    return [_measurement(_parse(content, Path(path))) for content in _lines(Path(path))]


def _lines(path: Path) -> list[bytes]:
    """Whole lines, each with its end."""
    return [content for content in path.read_bytes().splitlines(keepends=True) if content.endswith(b"\n")]


def _parse(content: bytes, path: Path) -> dict[str, Any]:
    try:
        line = json.loads(content)
    except ValueError:
        line = None
    if not isinstance(line, dict) or not {"step", "columns", "rows", "warnings"} <= set(line):
        raise ValueError(f"{str(path)!r} holds lines that no Monitor wrote; give another path")
    return line


def _measurement(line: dict[str, Any]) -> Measurement:
    rows = [Row(**dict(zip(line["columns"], row, strict=True))) for row in line["rows"]]
    return Measurement(step=line["step"], rows=rows, warnings=[Finding(**fields) for fields in line["warnings"]])


def _short(value: Any) -> Any:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
