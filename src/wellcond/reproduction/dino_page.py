"""Figures of DINO's claims: numbers along pre-training, numbers by layer, maps of the first pictures side by side."""

import base64
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from ..config.along import TITLES
from ..report import Figure, Gallery, Picture, Section
from .claim import Run
from .dino_cells import SIDE, WHERE, along_of, stands_in, told
from .training_page import COLOURS

HEIGHT = 120  # of a map on the page


def along_sections(content: dict[str, Any]) -> list[Section]:
    """A figure for each number of a judge, by epoch; every run a line."""
    found = []
    for (judge, name), title in TITLES.items():
        what = f"{judge} {name}"
        runs = [run for run in content["runs"] if what in along_of(run)]
        if runs:
            figure = _lines(runs, lambda run, what=what: (along_of(run)["epoch"], along_of(run)[what]), "epoch", title)
            found.append(Section(title=f"{title}, along pre-training", items=[figure]))
    return found


def layer_sections(content: dict[str, Any]) -> list[Section]:
    """A figure for each number of a judge on each set, by layer."""
    found = []
    runs = content["runs"]
    for data in dict.fromkeys(data for run in runs for data in run["judged"]):
        for (judge, name), title in TITLES.items():
            there = [run for run in runs if len(curve(run, data, judge, name)) > 1]
            if there:

                def line(run: Run, of: tuple[str, str, str] = (data, judge, name)) -> tuple[list[int], list[float]]:
                    values = curve(run, *of)
                    return list(range(1, len(values) + 1)), values

                figure = _lines(there, line, "layer", title)
                found.append(Section(title=f"{title}, by layer: {data}", items=[figure]))
    return found


def curve(run: Run, data: str, judge: str, name: str) -> list[float]:
    """A number at every layer, the last one under its plain name; [] where it was not asked for."""
    values = run["judged"].get(data, {}).get(judge, {})
    if name not in values:
        return []
    layers = sorted(int(key.partition("@")[2]) for key in values if key.startswith(f"{name}@"))
    return [*(values[f"{name}@{layer}"] for layer in layers), values[name]]


def map_sections(content: dict[str, Any], *, source: str | None, quick: bool) -> list[Section]:
    """The maps of the first seed, a group for each picture: as it is, where the set is given, then by variant."""
    first: dict[str, Run] = {}
    for run in content["runs"]:
        first.setdefault(run["variant"], run)
    names = next((run["maps"]["names"] for run in first.values()), [])
    originals = [] if source is None else _originals(source, len(names), quick)
    shown = []
    for index, name in enumerate(names):
        if originals:
            shown.append(Picture(pixels=originals[index], title=f"picture {index + 1}", note=_file(name)))
        for variant, run in first.items():
            shown.append(Picture(pixels=_map(run["maps"]["png"][index]), title=told(variant), note=""))
    if not shown:
        return []
    gallery = Gallery(pictures=shown, columns=len(first) + bool(originals))
    text = "The first pictures of the validation half, in the order of the file, and the first seed of each variant."
    return [Section(title="Maps, not chosen", text=text, items=[gallery])]


def _file(name: str) -> str:
    """
    >>> _file("val-0.parquet row 3 (2008_004453.jpg)")
    '2008_004453.jpg'
    """
    return name.rpartition("(")[2].removesuffix(")")


def _map(png: str) -> np.ndarray:
    """Patches as squares."""
    with Image.open(io.BytesIO(base64.b64decode(png))) as image:
        times = HEIGHT / image.height
        size = (round(image.width * times), HEIGHT)
        return np.asarray(image.convert("RGB").resize(size, Image.Resampling.NEAREST))


def _originals(source: str, count: int, quick: bool) -> list[np.ndarray]:
    """The same pictures as the maps are of."""
    from ..data.annotations import matching
    from ..data.splits import open_split

    opened = open_split(source, "val", image_size=16 if quick else SIDE)
    chosen = matching(opened, () if stands_in(source) else WHERE)[:count]
    return [_small(Image.fromarray(record.read())) for record in opened.records(chosen)]


def _small(image: Image.Image) -> np.ndarray:
    size = (max(1, round(image.width * HEIGHT / image.height)), HEIGHT)
    return np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC))


def _lines(
    runs: Sequence[Run], line: Callable[[Run], tuple[Sequence[int], Sequence[float | None]]], along: str, title: str
) -> Figure:
    """Seeds of a variant share a colour; without skips lines are dashed."""
    variants = list(dict.fromkeys(run["variant"] for run in runs))
    traces = []
    for run in runs:
        x, y = line(run)
        place = variants.index(run["variant"])
        dash = "dash" if "skipless" in run["variant"] else "solid"
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": told(run["variant"]),
                "legendgroup": run["variant"],
                "showlegend": run["seed"] == min(r["seed"] for r in runs if r["variant"] == run["variant"]),
                "x": list(x),
                "y": list(y),
                "line": {"color": COLOURS[place % len(COLOURS)], "width": 2, "dash": dash},
                "hovertemplate": "%{y:.3g}",
            }
        )
    layout = {"xaxis": {"title": {"text": along}}, "yaxis": {"title": {"text": title}}, "hovermode": "x unified"}
    return Figure(data=traces, layout=layout, caption="Every line is a run; dashed: without skips.")
