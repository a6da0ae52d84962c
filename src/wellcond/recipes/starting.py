"""`wellcond train RECIPE`: the recipe's config with the user's options on top → a run directory.

    wellcond train cifar10-vit-tiny --data cifar10:FOLDER --out runs/x --optim.lr 5e-4
    torchrun --nproc-per-node 8 -m wellcond train imagenet-vit-b --data FOLDER --out runs/vit-b

RECIPE may also be a config.json, for example that of another run. Every field of the config is an option by its dotted
name; `--data X` is short for `--data.train X --data.val X`. Without --out the run is in runs/RECIPE-seedN. If it is
there already it goes on; with another config it is refused, naming the field.

Exit status: 0 done; 1 the loss stayed without finite values; 2 a mistake in the input; 75 asked to stop (SIGTERM,
SIGUSR1) and saved, so that a scheduler starts it again; 130 the same after Ctrl-C; 141 not done, since the pipe of its
progress was closed. torchrun turns all but 0 into 1.
"""

import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from .. import parsing
from ..atomic import check_writable
from ..config import TrainConfig, from_json
from ..invoked import typed
from ..runs import CONFIG, Run
from ..stopping import requeued
from . import get
from .changing import changed

if TYPE_CHECKING:
    from ..data.records import Source
    from ..training import Summary

OVERVIEW = """\
usage: wellcond train RECIPE [options]

Train a recipe, or go on with its run. wellcond recipes lists the recipes; a
config.json, for example that of another run, is one, too.

options, of more than a hundred; wellcond train RECIPE --help shows all, with
the recipe's own values:
  --out DIR                 the run directory; else runs/RECIPE-seedN
  --data SOURCE             a folder with train/ and val/, parquet shards, …
  --epochs INT              the warm-up follows
  --batch-size INT          of a step, over all processes
  --seed INT                of weights, order and augmentation
  --pretrained RUN          start from the backbone of another run
  --objective, --mae.*, --dino.*        with labels, or without
  --model.*, --model.graying.*, --model.init.*    size, skips, graying, weights
  --data.*, --data.augment.*            where pictures come from, and how
  --optim.name, --optim.lr, --optim.*   optimizer and schedule
  --along.judges, --along.*             judges along the way
  --device, --precision, --compile, --accumulate, --parallel

exit status: 0 done, 1 diverged, 2 a mistake in the input, 75 asked to stop
and saved: the same command goes on
"""


@dataclass(frozen=True, kw_only=True)
class TrainCommand:
    """Train a recipe, or go on with its run: wellcond train RECIPE [options]; wellcond recipes lists them.

    Shown are the recipe's own values. A shorter --epochs shortens the warm-up with it, and the ImageNet recipes scale
    the learning rate with --batch-size. Exit status: 0 done, 1 diverged, 2 a mistake in the input, 75 asked to stop and
    saved: the same command goes on.
    """

    out: Path | None = None
    """The run directory, which may be one to go on with; none: runs/RECIPE-seedN."""
    data: str | None = None
    """Short for data.train and data.val: a folder with both halves, parquet shards, cifar10:FOLDER, …"""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]


def parse(arguments: list[str]) -> TrainCommand | None:
    """The recipe first, then options; None when help was asked for."""
    if not arguments or arguments[0].startswith("-"):
        if {"-h", "--help"} & set(arguments):
            print(OVERVIEW)
            return None
        raise parsing.MissingArgument("a recipe")
    name, *rest = arguments
    command = TrainCommand(config=_base(name, rest))
    return parsing.parse(TrainCommand, f"train {name}", rest, command)


def _base(name: str, arguments: list[str]) -> TrainConfig:
    """The config under the options. Fields on which others hang are looked for first: these follow them."""
    early: dict[str, Any] = {}
    for field in ("epochs", "batch_size"):
        value = _value_of(f"--{field.replace('_', '-')}", arguments)
        if value is not None and value.isdecimal():
            early[field] = int(value)
    if (source := _value_of("--data", arguments)) is not None:
        early |= {"data.train": source, "data.val": source}
    if not name.endswith(".json"):
        return get(name, **early)
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"there is no config {name!r}; give a recipe (wellcond recipes) or a config.json")
    try:
        return changed(from_json(path.read_text(), TrainConfig), early)
    except ValueError as error:
        why = "it is no text" if isinstance(error, UnicodeDecodeError) else error
        remedy = "give one that wellcond recipes NAME --json prints, or that of a run"
        raise ValueError(f"{name!r} is no config: {why}; {remedy}") from None


def _value_of(option: str, arguments: list[str]) -> str | None:
    """What the last `option VALUE` or `option=VALUE` says.

    >>> _value_of("--epochs", ["--epochs", "3", "--seed=1"]), _value_of("--seed", ["--epochs", "3", "--seed=1"])
    ('3', '1')
    """
    found = None
    for i, word in enumerate(arguments):
        name, equals, value = word.replace("_", "-", word.startswith("--batch_")).partition("=")
        if name == option and (equals or i + 1 < len(arguments)):
            found = value if equals else arguments[i + 1]
    return found


def run(command: TrainCommand) -> int:
    """Train, print where things are.

    Before the loop listens for signals and after it (training/signals.py) there is nothing to save, but schedulers want
    the same status: a large folder takes minutes to list, and the same command goes on or writes the page.
    """
    with requeued():
        return _run(command)


def _run(command: TrainCommand) -> int:
    config = command.config
    out = command.out or Path("runs") / f"{config.recipe}-seed{config.seed}"
    main = int(os.environ.get("RANK", 0)) == 0
    judges = ""
    if main:  # the others are ended by torchrun
        sources = _open_sources(config)
        judges = _judges(config, sources)
        if not Run(out).exists():
            from ..training.feeding import check_sources

            Run(out).check_free()
            check_writable(out / CONFIG, "out")
            _check_model(config)
            check_sources(config, *sources)

    import torch

    from ..training import Diverged, Stopped, train

    console = Console(stderr=True, highlight=False) if main else None
    try:
        with _told_in_a_line(console):
            summary = train(config, out, console=console)
    except Stopped as stopped:  # has said so
        return int(stopped.code or 0)
    except SystemExit as ended:  # of rich, where nobody reads the progress any more (2>&1 | head): the run is not done
        if isinstance(ended.__context__, BrokenPipeError):
            return 141  # 128 + SIGPIPE, as shells have it; the same command goes on
        raise
    except Diverged as error:
        print(f"wellcond: {error}", file=sys.stderr)
        return 1
    except torch.OutOfMemoryError:
        more = 2 * config.accumulate
        raise ValueError(
            f"the GPU has too little memory for {config.batch_size} images in {config.accumulate} chunks; "
            f"start again with --accumulate {more} in another --out"
        ) from None
    if main:
        _tell(summary, out, judges)
    return 0


def _open_sources(config: TrainConfig) -> "list[Source]":
    """Before anything is made: are there pictures?"""
    from ..data.splits import open_split

    sources = []
    for half, name in (("train", config.data.train), ("val", config.data.val)):
        try:
            sources.append(open_split(name, half, image_size=config.data.image_size))  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"data.{half}: {error}; say where with --data") from None
    return sources


def _judges(config: TrainConfig, sources: "list[Source]") -> str:
    """What `wellcond evaluate` is to be told when the run is done; nothing where it has a head of its own."""
    from ..training.subjects import judges_without_head

    return "" if config.model.num_classes else f" --with {judges_without_head(sources)}"


def _check_model(config: TrainConfig) -> None:
    """Before a run directory is made: can the model be built, and does it take a picture of that size?"""
    import torch

    from ..objectives import build_objective
    from ..training import build_model, monitoring
    from ..training.adopting import adopt_

    size = config.model.image_size
    try:
        model = build_model(config.model, config.seed)
        build_objective(config, model)
        with torch.no_grad():
            model.eval()(torch.zeros(1, 3, size, size))
    except (ArithmeticError, AssertionError, RuntimeError, TypeError) as error:  # of timm
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = "--model" if config.objective == "supervised" else f"--model and --{config.objective}"
        raise ValueError(
            f"{config.model.name} does not take these sizes: {why[:150]}; look at the {where} options"
        ) from None
    if config.monitor_every:
        monitoring.check(model, torch.zeros(1, 3, size, size))
    if config.pretrained is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # told when training begins
            adopt_(model, config.pretrained, config.model)
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise ValueError(f"{name} is not finite before the first step; look at --model.init and --pretrained")


@contextmanager
def _told_in_a_line(console: Console | None) -> Iterator[None]:
    """Warnings of a run are for its user: one line each, without the place in our code; those of others as ever."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], filename: str, *rest: Any, **words: Any) -> None:
            if category is not UserWarning:
                usual(message, category, filename, *rest, **words)
            elif console is not None:
                console.print(f"warning: {message}", markup=False, soft_wrap=True)

        warnings.showwarning = show
        warnings.simplefilter("always", UserWarning)
        yield


def _tell(summary: "Summary", out: Path, judges: str) -> None:
    """The numbers as a table, and where things are in lines of their own: a path is for copying, not for folding."""
    shown = Table(show_header=False)
    for name, value in (("top-1", summary.top1), ("top-5", summary.top5)):
        if value is not None:
            shown.add_row(name, f"{value:.2f} %")
    if summary.val_loss is not None:
        shown.add_row("validation loss", f"{summary.val_loss:.4f}")
    if summary.loss is not None:
        shown.add_row("training loss", f"{summary.loss:.4f}")
    epochs = "epoch" if summary.epochs == 1 else "epochs"
    skipped = f", {summary.skipped} skipped" if summary.skipped else ""
    shown.add_row("steps", f"{summary.steps} in {summary.epochs} {epochs}{skipped}")
    console = Console(highlight=False)
    console.print(shown)
    places = {
        "page": _page(out),
        "curves": out / "metrics.jsonl",
        "model": f'wellcond.load("{out}")',
        "next": f"{typed('wellcond')} evaluate {shlex.quote(str(out))}{judges}",
    }
    for name, place in places.items():
        console.print(f"{name:<6} {place}", markup=False, soft_wrap=True)


def _page(out: Path) -> Path:
    """Written last, when the numbers are safe: what fails here (a full disk) must not look like a lost run."""
    from ..runs_page import write_page

    try:
        return write_page(out)
    except OSError as error:
        raise ValueError(
            f"the run is done and saved in {str(out)!r}, but its page cannot be written ({error.strerror}); "
            f"wellcond report {out} --out FILE writes it elsewhere"
        ) from None
