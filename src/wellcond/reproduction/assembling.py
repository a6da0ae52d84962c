"""Runs → results/CLAIM.json. The file is rewritten after every run, so an interrupt loses one run at most.

Runs that the file holds already, of the same settings, are not measured again; each keeps the commit, the hardware and
the date of its own measurement. `again` measures all of them anew.
"""

import dataclasses
import shlex
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from .. import report, results
from ..atomic import check_writable
from ..config import ReproduceConfig
from .claim import Claim, Row, Run

COLUMNS = ("", "paper", "ours", "95 % interval", "verdict")


def assemble(claim: Claim, config: ReproduceConfig) -> dict[str, Any]:
    """Measure the runs that are missing, judge all, write, print. Returns the content of the file."""
    path = config.out / f"{claim.name}.json"
    check_writable(path, "out")
    settings = claim.settings(config.quick)
    kept = _kept(path, claim, config, settings)
    variants = claim.quick_variants if config.quick else claim.variants
    wanted = [(variant, seed) for seed in range(config.seeds) for variant in variants]
    runs = {key: kept[key] for key in wanted if key in kept}
    missing = [key for key in wanted if key not in kept]
    origin = results.origin(_command(config), claim.device)
    console = Console(highlight=False)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(claim.name, total=len(missing))
        for variant, seed in missing:
            progress.update(task, description=f"{claim.name} {variant}, seed {seed}")
            runs[variant, seed] = _run(claim, variant, seed, config.quick, origin)
            content = _content(claim, config, origin, settings, [runs[key] for key in wanted if key in runs])
            results.write(path, content, one_a_line=("rows", "runs"))
            progress.advance(task)
    content = _content(claim, config, origin, settings, [runs[key] for key in wanted])
    content = results.write(path, content, one_a_line=("rows", "runs"))
    console.print(_table(content))
    console.print(content["verdict"], markup=False)
    console.print(f"→ {path}", soft_wrap=True, markup=False)
    if config.html is not None:
        page(claim, content).write(config.html)
        console.print(f"→ {config.html}", soft_wrap=True, markup=False)
    return content


def page(claim: Claim, content: dict[str, Any]) -> report.Report:
    """The claim as a page: the table, and what the claim adds."""
    rows = [[row["name"], row["paper"], row["value"], interval_text(row), row["verdict"]] for row in content["rows"]]
    first = report.Section(
        title="Verdict",
        text=f"{content['verdict']} {claim.measures} Scaled down: {claim.scaled_down}",
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


def _run(claim: Claim, variant: str, seed: int, quick: bool, origin: dict[str, Any]) -> Run:
    start = time.perf_counter()
    measured = claim.measure(variant, seed, quick)
    own = {name: origin[name] for name in ("commit", "hardware", "date")}
    seconds = round(time.perf_counter() - start, 1)
    return results.finite({"variant": variant, "seed": seed, **own, "seconds": seconds, **measured})


def _kept(path: Path, claim: Claim, config: ReproduceConfig, settings: dict[str, Any]) -> dict[tuple[str, int], Run]:
    """The runs of the file that count. A quick run must not replace a real measurement."""
    old = results.read(path, {"claim", "runs", "quick", "settings"}, "claim")
    if old is None:
        return {}
    if config.quick and not old["quick"]:
        raise ValueError(f"{str(path)!r} holds full runs: a quick run would replace them. Give another --out.")
    same = (old["claim"], old["quick"], old["settings"]) == (claim.name, config.quick, results.finite(settings))
    if config.again or not same:
        return {}
    return {(run["variant"], run["seed"]): run for run in old["runs"]}


def _content(
    claim: Claim, config: ReproduceConfig, origin: dict[str, Any], settings: dict[str, Any], runs: list[Run]
) -> dict[str, Any]:
    judgement = claim.judge(runs)
    return {
        "claim": claim.name,
        "says": claim.says,
        "measures": claim.measures,
        "scaled_down": claim.scaled_down,
        "quick": config.quick,
        **origin,
        "device": claim.device,
        "images": claim.images,
        "seeds": sorted({run["seed"] for run in runs}),
        "settings": settings,
        "verdict": judgement.verdict,
        "rows": [_plain(row) for row in judgement.rows],
        "runs": runs,
    }


def _plain(row: Row) -> dict[str, Any]:
    fields = dataclasses.asdict(row)
    return {**{key: value for key, value in fields.items() if key != "more"}, **row.more}


def _table(content: dict[str, Any]) -> Table:
    seeds = len(content["seeds"])
    table = Table(title=f"{content['claim']}, {seeds} {'seed' if seeds == 1 else 'seeds'}", title_justify="left")
    for heading in COLUMNS:
        table.add_column(heading, justify="right" if heading in ("ours", "95 % interval") else "left")
    for row in content["rows"]:
        ours = "–" if row["value"] is None else f"{row['value']:.3g}"
        table.add_row(row["name"], row["paper"], ours, interval_text(row), row["verdict"])
    return table


def _command(config: ReproduceConfig) -> str:
    """What repeats this; of paths only the last name, results are published."""
    words = ["wellcond reproduce", config.claim, "--seeds", str(config.seeds)]
    words += ["--out", shlex.quote(config.out.resolve().name)]
    words += ["--html", shlex.quote(config.html.name)] if config.html else []
    return " ".join(words + (["--quick"] if config.quick else []) + (["--again"] if config.again else []))
