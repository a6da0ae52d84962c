"""Runs → results/CLAIM.json. The file is rewritten after every run, so an interrupt loses one run at most.

Runs that the file holds already are not measured again; each keeps the commit, the hardware and the date of its own
measurement. `again` measures all of them anew; a file of other settings is refused.
"""

import contextlib
import dataclasses
import itertools
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .. import report, results
from ..atomic import check_writable
from ..config import ReproduceConfig
from ..extras import CHECKOUT
from ..finite import finite
from ..watching import watched
from . import abreast, portions
from .claim import Claim, Row, Run
from .portions import Key, Runs

COLUMNS = ("", "paper", "ours", "95 % interval", "verdict")
QUICK = "The quick version, far smaller still: it shows that the claim can be measured, and says nothing about it."


def assemble(claim: Claim, config: ReproduceConfig) -> dict[str, Any]:
    """Measure the runs that are missing, judge all, write, print. Returns the content of the file."""
    path = config.out / f"{claim.name}.json"
    check_writable(path, "out")
    if config.html is not None:
        check_writable(config.html, "html", suffix=".html")
    settings = claim.settings(config.quick)
    runs, origin = portions.kept(path, claim, config, settings)
    others, elsewhere = portions.collected(claim, config, settings)
    num_new = len(others.keys() - runs.keys())
    runs, origin = others | runs, origin or elsewhere
    wanted = [(v, s) for s in range(config.seeds) for v in portions.chosen(claim, config)]
    shared, theirs = portions.shared(claim, config, [key for key in wanted if key not in runs])
    runs, origin = runs | shared, origin or theirs
    if runs:
        _check_held(claim, config, settings, runs)
    console = Console(highlight=False)
    if config.collect:
        console.print(f"{claim.name}: {num_new} of {len(others)} runs taken over", markup=False)
    missing = [] if config.collect else [key for key in wanted if key not in runs]
    here = origin_here(claim)
    told = origin.pop("command", "")  # the command that measured, not the one that looks again

    def write() -> dict[str, Any]:
        sets = sorted({name for run in runs.values() for name in (run.get("dataset"), *run.get("judged", ())) if name})
        command = _command(config, told, len({seed for _, seed in runs}), sets)
        content = _content(claim, config, {**origin, "command": command}, settings, _sorted(claim, runs))
        return results.write(path, content, one_a_line=("settings", "rows", "runs"))

    for key, run in _measured(claim, config, runs, missing, here, console):
        runs[key], origin, told = run, here, ""
        write()
    lacking = [key for key in wanted if key not in runs]
    if not runs:
        console.print(_lacking(claim, lacking), soft_wrap=True, markup=False)
        return {}
    content = write()
    console.print(_table(content))
    for line in (content["verdict"], QUICK if config.quick else "", _lacking(claim, lacking), f"→ {path}"):
        if line:
            console.print(line, soft_wrap=True, markup=False)
    if not config.quick and (line := _published(claim, path)):
        console.print(line, soft_wrap=True, markup=False)
    if config.html is not None:
        page(claim, content).write(config.html)
        console.print(f"→ {config.html}", soft_wrap=True, markup=False)
    return content


def _check_held(claim: Claim, config: ReproduceConfig, settings: dict[str, Any], runs: Runs) -> None:
    """ValueError where the runs that files hold cannot be judged, before hours of measuring: a part of one is missing.

    What a run holds is known to `judge` alone, and it goes deep; so it is asked.
    """
    try:
        portions.check_pictures(runs.values())
        _content(claim, config, {}, settings, _sorted(claim, runs))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        places = " or ".join(repr(str(place)) for place in (config.out, *config.collect))
        raise ValueError(
            f"the runs of {claim.name} in {places} cannot be judged: one is damaged ({what}); restore its file, or "
            "measure it anew with --again"
        ) from error


def _measured(
    claim: Claim, config: ReproduceConfig, runs: Runs, missing: Sequence[Key], here: dict[str, Any], console: Console
) -> Iterator[tuple[Key, Run]]:
    """The runs that are missing, one after the other or several at once, as long as the minutes last."""
    allowance = portions.Allowance(config.max_minutes, runs)
    # A claim that trains shows the bar of each run itself, if there is one at a time.
    eyes = Console(stderr=True)
    alone = claim.tell is not None and config.jobs == 1
    bar = None if alone else Progress(console=eyes, transient=True, disable=not watched(eyes))

    def begins(key: Key) -> bool:
        variant, seed = key
        if not allowance.allows(variant):
            return False
        if claim.admit is not None:
            claim.admit(variant, list(runs.values()))
        if bar:
            bar.update(bar.task_ids[0], description=f"{claim.name} {variant}, seed {seed}")
        return True

    with bar or contextlib.nullcontext():
        if bar:
            bar.add_task(claim.name, total=len(missing))
        if config.jobs > 1:
            found = abreast.measured(config, missing, begins)
        else:
            one_by_one = itertools.takewhile(begins, missing)
            found = ((key, run_of(claim, *key, config.quick, here)) for key in one_by_one)
        for (variant, seed), run in found:
            allowance.took(variant, run["seconds"])
            if claim.tell is not None:
                told = f"{claim.name} {variant} seed {seed}: {claim.tell(run)}, {run['seconds']:.0f} s"
                console.print(told, soft_wrap=True, markup=False)
            yield (variant, seed), run
            if bar:
                bar.advance(bar.task_ids[0])


def _sorted(claim: Claim, runs: Runs) -> list[Run]:
    """By seed, then as the claim lists its variants; those of a file that it does not list come after them."""
    order = {variant: i for i, variant in enumerate(claim.order or claim.variants)}
    return [runs[key] for key in sorted(runs, key=lambda key: (key[1], order.get(key[0], len(order)), key[0]))]


def _lacking(claim: Claim, lacking: Sequence[Key]) -> str:
    """What is still to be measured, in words; "" where it is nothing."""
    told = "; ".join(f"{variant}, seed {seed}" for variant, seed in lacking)
    return " ".join(filter(None, (f"Still missing: {told}." if told else "", claim.left_out)))


def page(claim: Claim, content: dict[str, Any]) -> report.Report:
    """The claim as a page: the table, and what the claim adds."""
    rows = [[row["name"], row["paper"], row["value"], interval_text(row), row["verdict"]] for row in content["rows"]]
    first = report.Section(
        title="Verdict",
        text=f"{content['verdict']} {claim.measures} Scaled down: {content['scaled_down']}",
        items=[report.Table(columns=COLUMNS, rows=rows)],
    )
    more = claim.sections(content) if claim.sections else []
    return report.Report(
        title=f"{claim.name}: a claim, measured",
        summary=claim.says,
        sections=[first, *more],
        command=content["command"],
        packages=("wellcond", "torch", "timm", "numpy"),
    )


def interval_text(row: dict[str, Any]) -> str:
    """As in every table: "a … b", or a dash."""
    return "–" if row["interval"] is None else f"{row['interval'][0]:.3g} … {row['interval'][1]:.3g}"


def origin_here(claim: Claim) -> dict[str, Any]:
    """Where runs come from that are measured now."""
    return {**results.origin("", claim.device), "device": claim.device, **claim.origin}


def run_of(claim: Claim, variant: str, seed: int, quick: bool, origin: dict[str, Any]) -> Run:
    """One run, measured."""
    start, date = time.perf_counter(), results.now()
    measured = claim.measure(variant, seed, quick)
    own = {"commit": origin["commit"], "hardware": origin["hardware"], "date": date}
    seconds = round(time.perf_counter() - start, 1)
    return finite({"variant": variant, "seed": seed, **own, "seconds": seconds, **measured})


def _content(
    claim: Claim, config: ReproduceConfig, origin: dict[str, Any], settings: dict[str, Any], runs: list[Run]
) -> dict[str, Any]:
    judgement = claim.judge(runs)
    sets = sorted({run["dataset"] for run in runs if "dataset" in run})
    return {
        "claim": claim.name,
        "says": claim.says,
        "measures": claim.measures,
        "scaled_down": (f"{QUICK} " if config.quick else "") + claim.scaled_down + _epochs(settings, runs),
        "quick": config.quick,
        **origin,
        "images": ", ".join(sets) or claim.images,
        **_minutes(runs),
        "seeds": sorted({run["seed"] for run in runs}),
        "settings": settings,
        "verdict": judgement.verdict,
        "rows": [_plain(row) for row in judgement.rows],
        "runs": runs,
    }


def _plain(row: Row) -> dict[str, Any]:
    fields = dataclasses.asdict(row)
    return {**{key: value for key, value in fields.items() if key != "more"}, **row.more}


def _published(claim: Claim, path: Path) -> str:
    """Where the numbers of the project stand, for who measured beside them; empty without a checkout."""
    theirs, told = CHECKOUT / "results" / f"{claim.name}.json", CHECKOUT / "docs" / "results.md"
    beside = theirs.is_file() and told.is_file() and theirs.resolve() != path.resolve()
    return f"what is measured, and the project's own numbers: {claim.name} in {told}" if beside else ""


def _table(content: dict[str, Any]) -> Table:
    minutes = f", {content['gpu_minutes']:g} GPU-minutes" if "gpu_minutes" in content else ""
    title = f"{content['claim']}, {results.told_seeds(content['runs'])}{minutes}"
    table = Table(title=title, title_justify="left")
    for heading in COLUMNS:
        table.add_column(heading, justify="right" if heading in ("ours", "95 % interval") else "left")
    for row in content["rows"]:
        ours = "–" if row["value"] is None else f"{row['value']:.3g}"
        table.add_row(row["name"], row["paper"], ours, interval_text(row), row["verdict"])
    return table


def _epochs(settings: dict[str, Any], runs: Sequence[Run]) -> str:
    """How long the runs on each set trained: as part of what was scaled down."""
    found: dict[str, set[int]] = {}
    for run in runs:
        if "dataset" in run and "epochs" in settings.get(run["variant"], {}):
            found.setdefault(run["dataset"], set()).add(settings[run["variant"]]["epochs"])
    told = (f"{' and '.join(map(str, sorted(epochs)))} on {data}" for data, epochs in found.items())
    return f" Epochs: {', '.join(told)}." if found else ""


def _minutes(runs: Sequence[Run]) -> dict[str, float]:
    """Minutes in which the GPU worked on these runs; those side by side count once, those of another claim there.

    >>> one = {"hardware": {"gpu": "H200"}, "date": "2026-01-01T00:00:00+00:00", "seconds": 120.0}
    >>> _minutes([one, {**one, "date": "2026-01-01T00:01:00+00:00"}])
    {'gpu_minutes': 3.0}
    """
    ours = (run for run in runs if run["hardware"].get("gpu") and "taken_from" not in run)
    busy, until = 0.0, float("-inf")
    for begin, seconds in sorted((datetime.fromisoformat(run["date"]).timestamp(), run["seconds"]) for run in ours):
        busy += max(0.0, begin + seconds - max(begin, until))
        until = max(until, begin + seconds)
    return {"gpu_minutes": round(busy / 60, 1)} if busy else {}


def _command(config: ReproduceConfig, told: str, num_seeds: int, sets: Sequence[str]) -> str:
    """What repeats this, in one go; of paths only the last name, results are published.

    `told` is as it was recorded, of a portion perhaps: its seeds and sets are those of all.
    """
    if told:
        told = re.sub(r" --out \S+", "", re.sub(r"--seeds \d+", f"--seeds {num_seeds}", told))
        data = " ".join(["--data", *(f"{name}={name}" for name in sets)])
        return re.sub(r"--data( (?!--)\S+)+", data, told) if sets else told
    words = ["wellcond reproduce", config.claim, "--seeds", str(num_seeds)]
    words += ["--data", *(shlex.quote(results.without_place(word)) for word in config.data)] if config.data else []
    words += ["--epochs", str(config.epochs)] if config.epochs else []
    words += ["--html", shlex.quote(config.html.name)] if config.html else []
    return " ".join(words + (["--quick"] if config.quick else []) + (["--again"] if config.again else []))
