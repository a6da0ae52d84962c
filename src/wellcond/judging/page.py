"""Albums of several models → one page: numbers, curves by layer, and what each found in its pictures.

These are the same for all where the data are; each model's are drawn as it saw them, of its own size.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import report
from ..config.along import TITLES
from . import drawing
from .album import Album, Sight
from .words import legend

MULTI = -1  # the layer that stands for multi-scale
COLOURS = ("#3b7ddd", "#e08a2c", "#2a9d6f", "#b45cc4", "#8a94a6", "#c0392b")


def build(albums: Sequence[Album], *, command: str = "") -> report.Report:
    """The page of all models."""
    sections = [report.Section(title="Numbers", text=legend(albums), items=numbers(albums))]
    if figures := curves(albums):
        text = "A layer is the output of a block, counted from 0; its features go through the model's final norm."
        sections.append(report.Section(title="By layer", text=text, items=figures))
    sections += [
        *_shown(albums, "object", "Objects found", _object, "scenes",
                "TokenCut on the keys of a layer's attention, no labels: red is the box it finds, green a true one; "
                "what it leaves out is dark."),
        *_shown(albums, "segments", "Segmentation", _segments, "squares",
                "A linear head on frozen patch features. White is void, which does not count."),
        *_shown(albums, "pca", "PCA maps", _colours, "scenes",
                "The first three principal components of a picture's own patches as red, green and blue."),
    ]  # fmt: skip
    names = ", ".join(album.name for album in albums)
    return report.Report(
        title=f"What {names} learned" if len(albums) == 1 else f"What {len(albums)} models learned",
        summary=f"{names}, on {', '.join(dict.fromkeys(album.data for album in albums))}.",
        sections=sections,
        command=command,
    )


def numbers(albums: Sequence[Album]) -> list[report.Table]:
    """One row for each number, one column for each model; those of earlier layers are folded."""
    rows: dict[tuple[str, str], None] = {}
    for album in albums:
        rows |= dict.fromkeys((judge, name) for judge, values in album.values.items() for name in values)
    columns = ["judge", "what", *(album.name for album in albums)]
    tables = []
    for folded in ("", "Every layer"):
        wanted = [(judge, name) for judge, name in rows if ("@" in name) == bool(folded)]
        cells = [[judge, name, *(a.values.get(judge, {}).get(name) for a in albums)] for judge, name in wanted]
        if cells:
            tables.append(report.Table(columns=columns, rows=cells, folded=folded))
    return tables


def curves(albums: Sequence[Album]) -> list[report.Figure]:
    """One figure for each number of a judge that looked at several layers."""
    figures = []
    for (judge, name), title in TITLES.items():
        lines = []
        for album, colour in zip(albums, COLOURS * len(albums), strict=False):
            layers, values = album.curve(judge, name)
            if len(layers) > 1:
                line = {"type": "scatter", "mode": "lines+markers", "x": layers, "y": values}
                lines.append(line | {"name": report.plotly_text(album.name), "line": {"color": colour}})
        if lines:
            axes = {"xaxis": {"title": {"text": "layer"}, "dtick": 1}, "yaxis": {"title": {"text": title}}}
            figures.append(report.Figure(data=lines, layout=axes | {"showlegend": len(albums) > 1}, height=320))
    return figures


Draw = Callable[[Album, Sight, Any], np.ndarray]


def _shown(albums: Sequence[Album], what: str, title: str, draw: Draw, where: str, text: str) -> list[report.Section]:
    """A gallery with one group for each picture: as it is, then what each model found; a slider for the layer."""
    layers = sorted({layer for album in albums for layer in album.found.get(what, {})} - {MULTI})
    layers += [MULTI] if any(MULTI in album.found.get(what, {}) for album in albums) else []
    sights: list[Sight] = next((getattr(album, where) for album in albums if getattr(album, where)), [])
    if not layers or not sights:
        return []
    names = ["multi-scale" if layer == MULTI else str(layer) for layer in layers]
    pictures = []
    for index, sight in enumerate(sights):
        pictures.append(report.Picture(pixels=_truth(sight, what), title=_short(sight.name), note=_note(what)))
        for album in albums:
            pictures += _versions(album, what, layers, index, draw, where)
    deepest = layers.index(max(layers))
    several = [report.Choice(name="layer", options=names, control="slider", start=deepest)] if len(layers) > 1 else []
    gallery = report.Gallery(pictures=pictures, columns=1 + len(albums), choices=several)
    return [report.Section(title=title, text=text, items=[gallery])]


def _versions(
    album: Album, what: str, layers: Sequence[int], index: int, draw: Draw, where: str
) -> list[report.Picture]:
    """One picture for each layer; a shallower model shows its last."""
    found, own = [], getattr(album, where)  # boxes count the pixels of the model's own picture
    for option, layer in enumerate(layers):
        there = album.at(what, layer, index)
        if there is None:
            pixels, note = np.zeros((drawing.SIDE, drawing.SIDE, 3), np.uint8), "not judged"
        else:
            pixels = draw(album, own[index], there[1])
            note = "multi-scale" if there[0] == MULTI else f"layer {there[0]}"
        when = {"layer": option} if len(layers) > 1 else {}
        found.append(report.Picture(pixels=pixels, title=_short(album.name), note=note, when=when))
    return found


def _object(album: Album, sight: Sight, value: Any) -> np.ndarray:
    box, mask = value
    return drawing.with_object(sight.pixels, box, mask, [] if sight.boxes is None else sight.boxes)


def _segments(album: Album, sight: Sight, value: Any) -> np.ndarray:
    return drawing.with_classes(sight.pixels, value)


def _colours(album: Album, sight: Sight, value: Any) -> np.ndarray:
    return drawing.as_colours(value, sight.pixels, album.patch_size)


def _truth(sight: Sight, what: str) -> np.ndarray:
    if what == "segments" and sight.mask is not None:
        return drawing.with_classes(sight.pixels, sight.mask)
    if what == "object":
        return drawing.with_truth(sight.pixels, [] if sight.boxes is None else sight.boxes, sight.mask)
    return drawing.small(sight.pixels)[0]


def _note(what: str) -> str:
    return {"object": "true boxes and mask", "segments": "true classes"}.get(what, "the picture")


def _short(name: str, limit: int = 40) -> str:
    return name if len(name) <= limit else f"{name[: limit // 2]}…{name[-limit // 2 :]}"
