"""The second half of the demo: the same small ViT with all skips, without each, grayed, and without any skip.

Without any it fails; with the same options, from the weights of `init_skipless_` (Cutting the Skip, arXiv 2510.00345),
it trains. One set of hyper-parameters for all, chosen on the model with all skips (Always Skip Attention, 2505.01996,
does so in Fig. 1c): what differs is the model alone.
"""

import hashlib
import math
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from wellcond import recipes, report
from wellcond.config import GrayingConfig, InitConfig, TrainConfig, to_json
from wellcond.data.cache import open_cache
from wellcond.data.procedural import CLASSES
from wellcond.data.progress import bar
from wellcond.data.splits import Split, open_split
from wellcond.demo.side_by_side import Job, train_all
from wellcond.diagnosis.page.words import is_infinite
from wellcond.runs import Run
from wellcond.runs_page.kappa import median
from wellcond.runs_page.reading import Story, read
from wellcond.runs_page.tables import duration

CHANCE = 100 / len(CLASSES)


def base_config(seed: int) -> TrainConfig:
    """The recipe procedural-vit, on the CPU: the demo looks the same on every machine."""
    return recipes.get("procedural-vit", seed=seed, device="cpu")


def variants(base: TrainConfig) -> dict[str, TrainConfig]:
    """Name → config: with all skips, without either, grayed; without any skip, and initialized for it."""
    model = base.model
    cut = replace(model, cut_attention_skips=True, cut_mlp_skips=True)
    changed = {
        "all skips": model,
        "no MLP skip": replace(model, cut_mlp_skips=True),
        "no attention skip": replace(model, cut_attention_skips=True),
        "DCT 0.95": replace(model, graying=GrayingConfig(method="dct", epsilon=0.95)),
        "no skips": cut,
        "no skips, skipless init": replace(cut, init=InitConfig(method="skipless")),
    }
    return {name: replace(base, model=m) for name, m in changed.items()}


def quick(base: TrainConfig) -> TrainConfig:
    """Does it run? Two narrow blocks, two epochs of four steps."""
    options = dict(base.model.options) | {"embed_dim": 16, "depth": 2, "num_heads": 2}
    return replace(
        base,
        model=replace(base.model, options=tuple(options.items())),
        data=replace(base.data, train="procedural:64", val="procedural:20"),
        batch_size=16,
        epochs=2,
        log_every=2,
        monitor_images=4,
    )


def train_variants(base: TrainConfig, out: Path, console: Console) -> dict[str, Story]:
    """Each variant in its own run directory; what is there already, finished or half, is not done again."""
    folder = out / runs_folder(base)
    data = replace(base.data, cache=out / "images")
    halves: dict[Split, str] = {"val": data.val, "train": data.train}
    size = 0
    for split, name in halves.items():  # once, before several processes ask for them
        source = open_split(name, split, image_size=data.image_size)
        size = len(open_cache(source, data.image_size, data.cache, progress=bar))
    num_steps = base.epochs * (size // base.batch_size)
    jobs = {
        name: Job(config=config, out=folder / name.replace(",", "").replace(" ", "-"), num_steps=num_steps)
        for name, config in variants(replace(base, data=data)).items()
    }
    left = {name: job for name, job in jobs.items() if Run(job.out).read_summary() is None}
    if left:
        console.print(f"training {len(left)} small ViT{'' if len(left) == 1 else 's'} on {size} generated pictures")
        train_all(left, console)
    return {name: replace(read(job.out), title=name) for name, job in jobs.items()}


def runs_folder(base: TrainConfig) -> str:
    """Another seed or another version's config: other runs, and never a refusal to continue the old ones."""
    return f"runs-{hashlib.sha256(to_json(base).encode()).hexdigest()[:6]}"


def lead(stories: dict[str, Story]) -> str:
    """What is to be seen, in three sentences, by the numbers of these very runs; true whatever they are."""
    top1 = {name: f"{report.format_cell(story.last('top1'))} %" for name, story in stories.items()}
    pair = ("all skips", "no attention skip")
    whole, cut = (stories[name].last("top1") or 0.0 for name in pair)
    kept, lost = (final_log_kappa(stories[name], "sab_sum").replace("∞", "∞ (rank lost)") for name in pair)
    return (
        f"The same small ViT ends at {top1[pair[0]]} top-1 with all its skips and at {top1[pair[1]]} without those "
        f"around attention: {abs(whole - cut):.1f} points apart, where chance is {CHANCE:.0f} %. "
        f"The tokens tell why: log κ after attention is {kept} with that skip and {lost} without it. "
        f"Without any skip it ends at {top1['no skips']} from the usual weights and at "
        f"{top1['no skips, skipless init']} from those of init_skipless_; with its input grayed, which lowers κ, at "
        f"{top1['DCT 0.95']} (one seed each)."
    )


def section(stories: dict[str, Story]) -> report.Section:
    """Headline numbers."""
    items: list[tuple[str, report.Cell, str]] = []
    for name, story in stories.items():
        alone, whole = (final_log_kappa(story, site) for site in ("sab_out", "sab_sum"))
        note = f"log κ after attention: {whole}; of attention alone: {alone}"
        items.append((name, f"{report.format_cell(story.last('top1'))} %", note))
    config = next(iter(stories.values())).config
    depth, width = (dict(config.model.options).get(name) for name in ("depth", "embed_dim"))
    text = (
        f"Top-1 accuracy of one small ViT ({depth} blocks, {width} wide, {config.model.image_size} px, patch "
        f"{config.model.patch_size}) after {config.epochs} epochs on {config.data.train.partition(':')[2]} generated "
        f"pictures of {len(CLASSES)} classes (chance: {CHANCE:.0f} %). The hyper-parameters are the same for all and "
        "were chosen on the model with all skips. κ: median over blocks."
    )
    return report.Section(title="In short", text=text, items=[report.Numbers(items=items)])


def table(stories: dict[str, Story]) -> RichTable:
    """The same for the terminal."""
    shown = RichTable(title=f"trained alike; chance is {CHANCE:.0f} %", title_justify="left")
    shown.add_column("model", no_wrap=True)
    for heading in ("top-1 %", "loss", "log κ of attention alone", "log κ after attention", "time"):
        shown.add_column(heading, justify="right")
    for name, story in stories.items():
        loss = story.summary.get("loss") if story.summary else None
        kappas = [final_log_kappa(story, site) for site in ("sab_out", "sab_sum")]
        top1 = report.format_cell(story.last("top1"))
        shown.add_row(name, top1, report.format_cell(loss), *kappas, duration(story.seconds))
    return shown


def final_log_kappa(story: Story, site: str) -> str:
    """Median over blocks at the last measurement; ∞ where most blocks have no image of full rank."""
    rows = story.probed[max(story.probed)] if story.probed else []
    here = [row for row in rows if row.site == site and row.quantity == "log_kappa"]
    return report.format_cell(median([math.inf if is_infinite(row) else row.value for row in here]))
