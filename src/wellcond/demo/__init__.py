"""`wellcond demo`: the whole story in minutes on two CPU cores, without data. Floor 9: a complete experiment.

pictures      gray generated pictures: κ falls
training      small ViTs with all skips, without the MLP's, without attention's, grayed; without any, initialized or not
side_by_side  two of them at a time

One page tells both: demo/report.html. The runs are ordinary run directories, for `wellcond report` and `wc.load`.
"""

import time

from rich.console import Console

from wellcond import runs_page
from wellcond.atomic import check_writable
from wellcond.config import DemoConfig, to_command
from wellcond.demo import pictures, training
from wellcond.runs import Run


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
        summary="Token graying on a few pictures, then one small ViT trained in six ways.",
        command=to_command("demo", config),
        first=[training.section(stories), *pictures.sections(grayed, config.size)],
    )
    path = built.write(page)
    console.print(training.table(stories))
    console.print(f"{time.perf_counter() - begun:.0f} s → {path}", soft_wrap=True, markup=False)
    console.print(
        "next, a model of timm on your images: wellcond diagnose vit_tiny_patch16_224 --data FOLDER", markup=False
    )
