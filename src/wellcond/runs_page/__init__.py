"""Run directories → one page: what differed, how it went, how its blocks were conditioned. Floor 7.

reading    a run directory in whatever state it is; what cannot be read is named
groups     equal configs up to the seed, their colours
names      what a run is called: its folder, and what was typed that sets it apart
tables     runs, means over seeds, commands and machines
curves     loss, accuracy, judges along the way
kappa      conditioning by block and epoch
cards      collapse, skipped steps, rollbacks
pictures   validation images before and after graying

It knows the files, not the loop: a run is shown while it trains, on another machine, or years later.
"""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from wellcond import report
from wellcond.atomic import check_writable
from wellcond.config import ReportConfig
from wellcond.runs import CONFIG
from wellcond.runs_page import cards, curves, kappa, pictures, tables
from wellcond.runs_page.groups import Group, group
from wellcond.runs_page.reading import NoRun, Story, read

PAGE = "report.html"


def run(config: ReportConfig) -> None:
    """`wellcond report runs/*`: write the page and say where it is."""
    stories, troubles = gather(config.runs)
    out = config.out or (stories[0].path / PAGE if len(config.runs) == len(stories) == 1 else Path(PAGE))
    check_writable(out, "out", suffix=".html")
    command = shlex.join(["wellcond", "report", *map(str, config.runs), *(["--out", str(out)] if config.out else [])])
    page, troubles = build(stories, troubles, command=command)
    page.write(out)
    console = Console(highlight=False, soft_wrap=True)
    for line in troubles:
        console.print(f"left out: {line}", markup=False)
    console.print(f"{len(stories)} run{'' if len(stories) == 1 else 's'} → {out}", markup=False)


def write_page(run_directory: Path | str) -> Path:
    """report.html of one run, into its directory: what training does at its end."""
    path = Path(run_directory)
    page, _ = build([read(path)], command=shlex.join(["wellcond", "report", str(path)]))
    return page.write(path / PAGE)


def gather(paths: Iterable[Path]) -> tuple[list[Story], list[str]]:
    """The runs there, also one folder down, and what is no run; ValueError where there is none at all."""
    stories: list[Story] = []
    troubles: list[str] = []
    for path in dict.fromkeys(paths):
        if not path.exists():
            raise ValueError(f"{str(path)!r} does not exist; name run directories: the --out of wellcond train")
        inside = [] if (path / CONFIG).exists() else sorted(p.parent for p in path.glob(f"*/{CONFIG}"))
        for directory in inside or [path]:
            try:
                stories.append(read(directory))
            except NoRun as error:
                troubles.append(str(error))
    if not stories:
        raise ValueError(f"there is no run to report; {'; '.join(troubles)}; name the --out of a training run")
    return stories, troubles


def build(
    stories: Sequence[Story], troubles: Sequence[str] = (), *, title: str = "", summary: str = "", command: str = "",
    first: Sequence[report.Section] = (),
) -> tuple[report.Report, list[str]]:  # fmt: skip
    """The page, with the sections `first` before its own; and all that is missing, in lines."""
    groups = group(stories)
    missing = [*troubles, *(line for story in stories for line in story.troubles)]
    sections = [
        *_runs(stories, groups), *_curves(groups), *_kappa(groups), *_pictures(groups, missing), *_made(stories)
    ]  # fmt: skip
    if missing:
        table = report.Table(columns=[""], rows=[[line] for line in missing], wrap=True)
        sections.append(report.Section(title="What is missing", items=[table]))
    names = ", ".join(dict.fromkeys(story.config.recipe for story in stories))
    versions = next((s.starts[-1].get("versions") for s in stories if s.starts), None)
    page = report.Report(
        title=title or (stories[0].name if len(stories) == 1 else f"{len(stories)} runs of {names}"),
        summary=summary or _summary(stories, groups),
        sections=[*first, *sections],
        command=command,
        versions={str(k): str(v) for k, v in versions.items() if v} if isinstance(versions, dict) else None,
    )
    return page, missing


def _summary(stories: Sequence[Story], groups: Sequence[Group]) -> str:
    config = stories[0].config
    models = ", ".join(dict.fromkeys(s.config.model.name for s in stories))
    data = ", ".join(dict.fromkeys(s.config.data.train for s in stories))
    done = sum(s.summary is not None for s in stories)
    state = "" if done == len(stories) else f" {done} of {len(stories)} done."
    several = f" {len(groups)} configs, {len(stories)} runs." if len(stories) > 1 else f" Seed {config.seed}."
    return f"{models} on {data}, {config.data.image_size} px.{several}{state}"


def _runs(stories: Sequence[Story], groups: Sequence[Group]) -> list[report.Section]:
    items = [tables.means(groups), tables.runs(stories)]
    sections = [report.Section(title="Runs", items=[item for item in items if item is not None])]
    if found := cards.build(stories):
        sections.append(report.Section(title="Warnings", items=[found]))
    return sections


def _curves(groups: Sequence[Group]) -> list[report.Section]:
    labelled = any("top1" in row for g in groups for story in g.stories for row in story.evals)
    figures = {
        "Accuracy" if labelled else "Validation": curves.accuracy(groups),
        "Judges along the way": curves.judges(groups),
        "Training": curves.training(groups),
    }
    return [report.Section(title=title, items=[figure]) for title, figure in figures.items() if figure is not None]


def _kappa(groups: Sequence[Group]) -> list[report.Section]:
    probed = kappa.Probed(groups)
    if not probed:
        return []
    text = (
        "κ = σ_max / σ_min of the tokens at a place in a block, log is natural; means over the same few validation "
        "images at every measurement. The skip around attention (②) adds what the branch alone (①) has lost."
    )
    over = kappa.over_epochs(probed)
    return [
        report.Section(title="κ by block, at the end", text=text, items=[kappa.by_block(probed)]),
        *([report.Section(title="κ over epochs", items=[over])] if over else []),
        report.Section(title="Every epoch and block", items=[kappa.maps(probed)]),
    ]


def _pictures(groups: Sequence[Group], missing: list[str]) -> list[report.Section]:
    if all(g.config.model.graying.method == "none" for g in groups):
        return []
    found = pictures.galleries(groups, missing)
    text = "Validation images, and what the grayed models see of them."
    return [report.Section(title="Pictures", text=text, items=found)] if found else []


def _made(stories: Sequence[Story]) -> list[report.Section]:
    items = tables.environment(stories)
    return [report.Section(title="How it was made", items=items)] if items else []
