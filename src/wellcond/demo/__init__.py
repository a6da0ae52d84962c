"""`wellcond demo`: the whole story in minutes on two CPU cores, without data. Floor 9: a complete experiment.

pictures      gray generated pictures: κ falls
training      small ViTs with all skips, without the MLP's, without attention's, grayed; without any, initialized or not
side_by_side  two of them at a time

One page tells both: demo/report.html. The runs are ordinary run directories, for `wellcond report` and `wc.load`.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from wellcond import report, runs_page
from wellcond.atomic import check_writable
from wellcond.config import DemoConfig, to_command
from wellcond.demo import pictures, training
from wellcond.invoked import typed
from wellcond.runs import Run

STORY = {  # section → what the page calls it, in the order of the story; the others follow as they come
    "In short": "What the skips are worth",
    "Accuracy": "The same, epoch by epoch",
    "κ by block, at the end": "What the skips do: κ by block, at the end",
    "κ over epochs": "κ over epochs",
    "What graying does": "What graying does, before any training",
    "Their spectra": "Their spectra",
    "How much graying": "How much graying",
    "Pictures": "What the grayed model was trained on",
}
QUICK = "The quick version: it shows that the demo runs; a few steps of tiny models tell nothing of skips or graying."


def run(config: DemoConfig) -> None:
    """Write `report.html` into the output folder and print the tables."""
    page = config.out / runs_page.PAGE
    check_writable(page, "out")
    if Run(config.out).exists():
        raise ValueError(f"out is {str(config.out)!r}, a run, whose {page.name} would be lost; name another folder")
    console = Console(highlight=False)
    begun = time.perf_counter()
    grayed = pictures.gray_pictures(config.count, config.size, config.seed)
    console.print(pictures.table(grayed))
    base = training.base_config(config.seed)
    stories = training.train_variants(training.quick(base) if config.quick else base, config.out, console)
    built, _ = runs_page.build(
        list(stories.values()),
        title="Why attention needs its skip, what graying does, and how to train without skips",
        summary=f"{training.lead(stories)} {QUICK if config.quick else ''}".strip(),
        command=to_command("demo", config),
        first=[training.section(stories), *pictures.sections(grayed, config.size)],
    )
    path = replace(built, sections=as_a_story(built.sections)).write(page)
    console.print(training.table(stories))
    if config.quick:
        console.print(QUICK)
    console.print(f"{time.perf_counter() - begun:.0f} s → {path}", soft_wrap=True, markup=False)
    following = f"next, a model of timm (on your images with --data FOLDER):\n{typed('wellcond')} diagnose"
    console.print(f"{following} vit_tiny_patch16_224", soft_wrap=True, markup=False)


def as_a_story(sections: Sequence[report.Section]) -> list[report.Section]:
    """First what is to be seen, then why, then what graying does; tables and machines last."""
    order = list(STORY)
    known = sorted((s for s in sections if s.title in STORY), key=lambda section: order.index(section.title))
    return [replace(s, title=STORY[s.title]) for s in known] + [s for s in sections if s.title not in STORY]
