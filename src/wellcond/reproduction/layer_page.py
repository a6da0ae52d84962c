"""Figures of asa-fig1b and asa-fig3-5: log κ by block of the trained model, and its mean over blocks by epoch.

First the grayings of an attention side by side after its skip (Figs. 4 and 5), then every site of each variant.
"""

from typing import Any

from ..probes.rows import SITE_WORDS
from ..report import BEFORE, DCT, SVD, Figure, Section
from .statistics import known_mean

STYLE = {
    "sab_out": {"color": DCT, "width": 3},
    "sab_sum": {"color": SVD, "width": 3},
    "sab_in": {"color": BEFORE, "width": 2},
    "ffn_out": {"color": DCT, "width": 2, "dash": "dot"},
    "ffn_sum": {"color": SVD, "width": 2, "dash": "dot"},
}
GRAYINGS = {"none": {"color": BEFORE, "width": 2}, "svd": {"color": SVD, "width": 2}, "dct": {"color": DCT, "width": 2}}
TRAINED = "The trained model in float64."
TRAINING = "Mean over blocks, while it trained, in float32. A gap: infinite to that arithmetic."
Runs = list[dict[str, Any]]
Line = dict[str, Any]


def sections(content: dict[str, Any]) -> list[Section]:
    runs: dict[str, Runs] = {}
    for run in content["runs"]:
        runs.setdefault(run["variant"], []).append(run)
    return _grayings(runs) + [_every_site(variant, of_variant) for variant, of_variant in runs.items()]


def _grayings(runs: dict[str, Runs]) -> list[Section]:
    """One for each attention that was grayed."""
    found = []
    for attention in dict.fromkeys(variant.partition("/")[0] for variant in runs):
        present = {name: runs[f"{attention}/{name}"] for name in GRAYINGS if f"{attention}/{name}" in runs}
        if len(present) > 1:
            by_epoch = [_by_epoch(of, "sab_sum", name, GRAYINGS[name]) for name, of in present.items() if _watched(of)]
            by_block = [_by_block(of, "sab_sum", name, GRAYINGS[name]) for name, of in present.items()]
            items = [_figure(by_epoch, "epoch", TRAINING, zero=False), _figure(by_block, "block", TRAINED, zero=False)]
            title = f"{attention}: log κ of {SITE_WORDS['sab_sum']}, with and without graying"
            found.append(Section(title=title, items=items))
    return found


def _every_site(variant: str, runs: Runs) -> Section:
    items = [_figure([_by_block(runs, site, SITE_WORDS[site], STYLE[site]) for site in STYLE], "block", TRAINED)]
    if _watched(runs):
        lines = [_by_epoch(runs, site, SITE_WORDS[site], STYLE[site]) for site in STYLE]
        items.append(_figure(lines, "epoch", TRAINING))
    return Section(title=f"{variant}: log κ by block and by epoch", items=items)


def _watched(runs: Runs) -> Runs:
    """Those in which κ was measured along the way."""
    return [run for run in runs if run["kappa"].get("sab_in")]


def _by_block(runs: Runs, site: str, name: str, style: dict[str, Any]) -> Line:
    blocks = range(len(runs[0]["trained"][site]))
    means = [known_mean(run["trained"][site][block] for run in runs) for block in blocks]
    return _line(name, style, list(blocks), means)


def _by_epoch(runs: Runs, site: str, name: str, style: dict[str, Any]) -> Line:
    curves = [run["kappa"] for run in _watched(runs)]
    length = min(len(curve[site]) for curve in curves)
    values = [known_mean(value for curve in curves for value in curve[site][i]) for i in range(length)]
    return _line(name, style, curves[0]["epoch"][:length], values)


def _line(name: str, style: dict[str, Any], x: list[int], y: list[float | None]) -> Line:
    trace = {"type": "scatter", "mode": "lines+markers", "name": name, "line": style}
    return trace | {"hovertemplate": "%{y:.2f}", "x": x, "y": y}


def _figure(data: list[Line], axis: str, words: str, *, zero: bool = True) -> Figure:
    layout = {
        "xaxis": {"title": {"text": axis}},
        "yaxis": {"title": {"text": "log κ"}, "rangemode": "tozero" if zero else "normal"},
        "hovermode": "x unified",
    }
    return Figure(data=data, layout=layout, caption=f"Mean over pictures and seeds. {words}")
