"""`wellcond evaluate RUNS`: judges of trained runs → a table, rows of their evaluation.json, a page. Floor 8.

The model is that of the newest whole checkpoint, as it was trained (grayed, skipless, with linear attention, averaged
where the run keeps an average), in the precision of its training; so with the run's own data it gives the number that
training ended with. `wellcond.evaluation` judges; this room brings it the model and the pictures.

    options     the options            subjects    a run → who is judged
    album       what was found         page, drawing    all of it on one page
    words       what its numbers mean

The pictures come from `wellcond.training`, which asks the same judges along the way.
"""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from .. import parsing, results
from ..atomic import check_writable
from ..config import to_command
from ..finite import finite
from .options import SHOWING, EvaluateCommand

if TYPE_CHECKING:
    from ..evaluation import Settings, Subject
    from ..runs import Run
    from .album import Album

Rows = list[dict[str, Any]]
PAGE = "evaluation.html"


class Unwritten(ValueError):
    """Numbers that could not be kept, as on a full disk: they are printed all the same, for they may be of hours."""


def parse(arguments: list[str]) -> EvaluateCommand | None:
    return parsing.parse(EvaluateCommand, "evaluate", arguments)


def run(command: EvaluateCommand) -> None:
    """Judge the runs, keep and print what was found."""
    from ..runs import EVALUATION, Run
    from .subjects import examine

    runs = list(dict.fromkeys(command.runs))
    for path in runs:
        Run(path).read_config()
        Run(path).evaluations()  # a damaged file is told before the work
    place = _page(command)
    if place is not None:
        check_writable(place, "html", suffix=".html")
    for path in runs:
        check_writable(path / EVALUATION, f"what is found of {path}")
    examined = [examine(run, command) for run in runs]  # what is wrong with any of them is said before the work
    albums: list[Album] = []
    rows: Rows = []
    for path, (subject, album, step) in zip(runs, examined, strict=True):
        albums.append(album)
        try:
            _judge(command, Run(path), subject, album, step, rows)
        except Unwritten:
            if command.json:
                print(_as_json(rows))
            else:
                _show(path, album, step)
            raise
        if not command.json:
            _show(path, album, step)
            print(f"→ {path / EVALUATION}")
    if command.json:  # before the page, whose disk may be full
        print(_as_json(rows))
    if place is not None:
        _write_page(place, albums, command)
        if not command.json:
            print(f"→ {place}")


def _judge(
    command: EvaluateCommand, directory: "Run", subject: "Subject", album: "Album", step: int, rows: Rows
) -> None:
    """To `rows`, and into the run's evaluation.json; Unwritten where that fails."""
    import torch

    from ..evaluation import JUDGES
    from ..runs import EVALUATION

    origin = results.origin(_words(command, directory.path), next(subject.model.parameters()).device.type)
    for judge in dict.fromkeys(command.judges):
        try:
            values = dict(JUDGES[judge](subject))
        except torch.OutOfMemoryError:
            remedy = f"choose a --batch-size below {command.batch_size}"
            raise ValueError(f"the GPU has too little memory for {command.batch_size} images; {remedy}") from None
        album.values[judge] = values
        row = {"judge": judge, "data": album.data, "step": step, "values": values}
        row["settings"] = _settings(judge, command, subject.settings)
        rows.append({"run": str(directory.path), **row, **origin})
        try:
            directory.add_evaluation(row | origin)
        except OSError as error:
            raise Unwritten(
                f"the numbers are printed, but {str(directory.path / EVALUATION)!r} cannot be written "
                f"({error.strerror or error}); make room and evaluate again, or copy them"
            ) from None
    subject.kept.clear()  # other runs are judged after this one


def _write_page(place: Path, albums: "list[Album]", command: EvaluateCommand) -> None:
    from . import page

    try:
        page.build(albums, command=_words(command, *command.runs)).write(place)
    except OSError as error:
        raise ValueError(
            f"the numbers are printed and kept, but their page {str(place)!r} cannot be written "
            f"({error.strerror or error}); make room, or name another place with --html"
        ) from None


def _as_json(rows: Rows) -> str:
    return json.dumps(finite(rows), indent=1, allow_nan=False)


def _show(path: Path, album: "Album", step: int) -> None:
    from .words import legend

    console = Console(highlight=False)
    console.print(f"{path}, step {step}, on {album.data}", markup=False, soft_wrap=True)
    console.print(*_tables(album), sep="\n")
    console.print(legend([album]), markup=False)


def _tables(album: "Album") -> list[Table]:
    """One of all numbers of the last layer; of several layers one for each judge, layers downwards, so that it stays
    readable in a narrow window however deep the model is. Numbers that belong to no layer stand beside the last."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for judge, values in album.values.items():
        for key, value in values.items():
            what, _, layer = key.partition("@")
            found.setdefault(judge, {}).setdefault(what, {})[layer] = value
    layers = sorted({layer for named in found.values() for row in named.values() for layer in row if layer}, key=int)
    if not layers:
        shown = Table("judge", "what", "value")
        for judge, named in found.items():
            for what, row in named.items():
                shown.add_row(judge, what, _cell(row[""]))
        return [shown]
    tables = []
    for judge, named in found.items():
        tables.append(shown := Table(judge, *named))
        for layer in (*layers, ""):
            cells = ["" if (cell := row.get(layer)) is None else _cell(cell) for row in named.values()]
            if any(cells):
                shown.add_row(f"layer {layer}" if layer else "last", *cells)
    return tables


def _cell(value: float) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:.2g}"


def _words(command: EvaluateCommand, *runs: Path) -> str:
    """The command that gives these numbers again."""
    return to_command("evaluate", dataclasses.replace(command, runs=runs), names={"judges": "with"})


def _settings(judge: str, command: EvaluateCommand, settings: "Settings") -> dict[str, Any]:
    """What a number hangs on beside model, pictures and judge: two that differ here stand side by side in the file."""
    looking = {name: getattr(command, name) for name in ("where", "size", "foreground", "void", "boxes")}
    found = dataclasses.asdict(settings) | looking
    if judge != "segmentation":  # whose probe learns from such batches; to others it is how many go at once
        del found["batch_size"]
    return found


def _page(command: EvaluateCommand) -> Path | None:
    """Written where there is something to see: pictures, several layers or models, or when asked for."""
    alone = len(set(command.runs)) == 1
    if SHOWING & set(command.judges) or command.html or not alone or command.layers != ("last",):
        return command.html or (command.runs[0] / PAGE if alone else Path(PAGE))
    return None
