"""A run directory → what the page needs of it, whatever state it is in: unfinished, torn, or with files missing.

What cannot be read is named in `troubles` and left out; only a directory without a readable config is no run.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from wellcond.config import TrainConfig, from_json
from wellcond.probes.rows import Row
from wellcond.runs import CONFIG, ENV, METRICS, SUMMARY, TIMINGS

Line = dict[str, Any]


class NoRun(ValueError):
    """There is nothing to show there; the message says why."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """What is known of one run."""

    path: Path
    config: TrainConfig
    train: list[Line] = field(default_factory=list)  # rows of metrics.jsonl by kind
    evals: list[Line] = field(default_factory=list)
    probes: list[Line] = field(default_factory=list)
    judged: list[Line] = field(default_factory=list)
    timings: list[Line] = field(default_factory=list)
    starts: list[Line] = field(default_factory=list)
    summary: Line | None = None
    troubles: list[str] = field(default_factory=list)
    title: str = ""  # what a page calls it; empty: its folder, and what sets it apart

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def step(self) -> int:
        """The last step of which something is known."""
        return max(
            (row["step"] for rows in (self.train, self.evals, self.probes, self.judged) for row in rows), default=0
        )

    @cached_property
    def steps_per_epoch(self) -> int | None:
        """From the rows at the end of an epoch; None before the first."""
        ends = [row["step"] // row["epoch"] for row in (*self.evals, *self.probes, *self.judged) if row["epoch"] > 0]
        return ends[-1] if ends else None

    @property
    def state(self) -> str:
        if self.summary is not None:
            return "done"
        if self.steps_per_epoch:
            return f"epoch {self.step // self.steps_per_epoch} of {self.config.epochs}"
        return f"step {self.step}" if self.step else "begun"

    @property
    def skipped(self) -> int | None:
        if self.summary is not None and isinstance(self.summary.get("skipped"), int):
            return self.summary["skipped"]
        return next((row["skipped"] for row in reversed(self.train) if isinstance(row.get("skipped"), int)), None)

    @property
    def images_per_second(self) -> float | None:
        """Median over epochs: the first one compiles and warms up."""
        rates = [rate for row in self.timings if (rate := number(row.get("images_per_s"))) is not None]
        return statistics.median(rates) if rates else None

    @property
    def seconds(self) -> float | None:
        """Over all starts; what came after the last epoch of a start that was killed is not counted."""
        total, since = 0.0, None
        for row in self.timings:
            if row.get("event") == "start":
                total, since = total + (since or 0.0), None
            since = number(row.get("seconds")) or since
        return total + (since or 0.0) or None

    def last(self, quantity: str) -> float | None:
        return number(self.evals[-1].get(quantity)) if self.evals else None

    def best(self, quantity: str) -> float | None:
        return max((v for row in self.evals if (v := number(row.get(quantity))) is not None), default=None)

    @cached_property
    def probed(self) -> dict[int, list[Row]]:
        """Epoch → rows of every block. A log of an older version knows no sizes: n = d = 0."""
        found: dict[int, list[Row]] = {}
        for line in self.probes:
            found.setdefault(line["epoch"], []).append(
                Row(
                    layer=line["layer"],
                    site=line["site"],
                    quantity=line["quantity"],
                    value=number(line.get("value")),
                    std=number(line.get("std")),
                    floor_count=number(line.get("floor_count")) or 0.0,
                    num_infinite=line.get("num_infinite", 0),
                    num_images=line.get("num_images", 0),
                    n=line.get("n", 0),
                    d=line.get("d", 0),
                )
            )
        return found


def read(path: Path) -> Story:
    """NoRun where there is no readable config."""
    if not (path / CONFIG).is_file():
        raise NoRun(f"{path}: no {CONFIG}, so it is no run")
    try:
        config = from_json((path / CONFIG).read_text(), TrainConfig)
    except (ValueError, OSError) as error:
        raise NoRun(f"{path / CONFIG}: {error}") from None
    troubles: list[str] = []
    kinds: dict[str, list[Line]] = {"train": [], "eval": [], "probe": [], "judge": []}
    for row in _lines(path / METRICS, troubles, _is_metric):
        kinds[row["kind"]].append(row)
    starts = _object(path / ENV, troubles) or {}
    listed = starts.get("starts", [])
    return Story(
        path=path,
        config=config,
        train=kinds["train"],
        evals=kinds["eval"],
        probes=kinds["probe"],
        judged=kinds["judge"],
        timings=list(_lines(path / TIMINGS, troubles, lambda row: "event" in row)),
        starts=[start for start in listed if isinstance(start, dict)] if isinstance(listed, list) else [],
        summary=_object(path / SUMMARY, troubles, required=False),
        troubles=troubles,
    )


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _is_metric(row: Mapping[str, Any]) -> bool:
    needs: dict[str, dict[str, type]] = {
        "train": {},
        "eval": {},
        "probe": {"layer": int, "site": str, "quantity": str},
        "judge": {"judge": str},
    }
    if row.get("kind") not in needs or not all(type(row.get(name)) is int for name in ("step", "epoch")):
        return False
    return all(type(row.get(name)) is kind for name, kind in needs[row["kind"]].items())


def _lines(path: Path, troubles: list[str], fits: Callable[[Line], bool]) -> Iterator[Line]:
    """The rows that can be read; the others are counted. A torn last line is what a killed process leaves."""
    try:
        content = path.read_bytes()
    except OSError as error:
        troubles.append(f"{path}: {_why(error)}")
        return
    bad: list[int] = []
    whole, _, _ = content.rpartition(b"\n")
    for count, line in enumerate(whole.split(b"\n") if whole else (), 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and fits(row):
            yield row
        else:
            bad.append(count)
    if bad:
        more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
        troubles.append(f"{path}: line {bad[0]}{more} cannot be read")


def _object(path: Path, troubles: list[str], *, required: bool = True) -> Line | None:
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        if required:
            troubles.append(f"{path}: {_why(error)}")
        return None
    except (ValueError, OSError) as error:
        troubles.append(f"{path}: {_why(error)}")
        return None
    if isinstance(value, dict):
        return value
    troubles.append(f"{path}: holds no JSON object")
    return None


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"not JSON ({error})"
