"""A run directory under the run root → its curves and κ, while it trains.

What the browser says is a name, never trusted: it must lead, links followed, to a run inside the root, and so must
every file of it that is read. `metrics.jsonl` may be torn at its end; runs_page.reading leaves the torn line out.
"""

import os
from functools import lru_cache
from pathlib import Path, PurePath

from wellcond import report
from wellcond.runs import CONFIG, ENV, METRICS, SUMMARY, TIMINGS
from wellcond.runs_page import curves, kappa
from wellcond.runs_page.groups import group
from wellcond.runs_page.reading import Story, read
from wellcond.runs_page.tables import last_loss

FILES = (CONFIG, METRICS, TIMINGS, ENV, SUMMARY)
DEPTH = 3  # folders under the root in which runs are looked for
MAX_RUNS = 500
Signature = tuple[tuple[int, int], ...]


def find_runs(root: Path) -> list[str]:
    """Names of the runs under the root, those that changed last first; links that lead out of it are left out."""
    found: dict[str, float] = {}
    for where, folders, files in os.walk(root):
        place = Path(where)
        depth = len(place.relative_to(root).parts)
        folders[:] = sorted(name for name in folders if not name.startswith(".")) if depth < DEPTH else []
        if CONFIG in files:
            folders.clear()  # a run holds no runs
            name = place.relative_to(root).as_posix()
            try:
                path = locate(root, name)
            except ValueError:
                continue
            found[name] = max((path / file).stat().st_mtime for file in FILES if (path / file).exists())
        if len(found) >= MAX_RUNS:
            break
    return sorted(found, key=lambda name: -found[name])


def locate(root: Path, name: str) -> Path:
    """The run of this name; ValueError if it lies outside the root, or is no run."""
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise ValueError("no run is chosen; choose one, or start one with wellcond train")
    shown = repr(name if len(name) < 80 else f"{name[:77]}…")
    if PurePath(name).is_absolute() or ".." in PurePath(name.replace("\\", "/")).parts:
        raise ValueError(f"{shown} is not a name under the run root; choose one of the list")
    inside = root.resolve()
    try:
        path = (inside / name).resolve()
        outside = [p for p in (path, *(path / file for file in FILES)) if not p.resolve().is_relative_to(inside)]
        is_run = (path / CONFIG).is_file()
    except (OSError, RuntimeError):  # a name too long, links in a circle
        raise ValueError(f"{shown} is not a name under the run root; choose one of the list") from None
    if outside:
        raise ValueError(f"{shown} leads out of the run root, and is not opened; start the app with --runs there")
    if not is_run:
        raise ValueError(f"{shown} is no run under the run root; choose one of the list")
    return path


def signature(path: Path) -> Signature:
    """Changes whenever a file of the run does."""
    return tuple((s.st_size, s.st_mtime_ns) for f in FILES if (s := _stat(path / f)) is not None)


def story(path: Path) -> Story:
    """What is known of the run now; read again only when a file has changed."""
    try:
        return _story(path, signature(path))
    except ValueError as error:  # the page need not know where the runs lie
        raise ValueError(str(error).replace(str(path), path.name)) from None


@lru_cache(maxsize=8)
def _story(path: Path, _: Signature) -> Story:
    return read(path)


def headline(told: Story, name: str) -> str:
    """How far it is, and its last numbers, in one line."""
    parts = [f"{name}: {told.state}", f"step {told.step}"]
    if (loss := last_loss(told)) is not None:
        parts.append(f"loss {report.format_cell(loss)}")
    if (top1 := told.last("top1")) is not None:
        parts.append(f"top-1 {report.format_cell(top1)} %")
    if told.skipped:
        parts.append(f"{told.skipped} steps skipped")
    if not told.probed:
        parts.append("no κ yet")
    parts += [line.replace(str(told.path), name) for line in told.troubles[:1]]
    return " · ".join(parts)


def figures(told: Story) -> dict[str, report.Figure | None]:
    """Loss, accuracy and κ; None where there is nothing to draw yet."""
    groups = group([told])
    probed = kappa.Probed(groups)
    return {
        "loss": curves.training(groups),
        "top-1": curves.accuracy(groups),
        "κ": kappa.over_epochs(probed) if probed else None,
    }


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
