"""Figures of asa-fig1b and asa-fig3-5: log κ by block of the trained model, and its mean over blocks by epoch."""

from typing import Any

import numpy as np

from ..probes.rows import SITE_WORDS
from ..report import BEFORE, DCT, SVD, Figure, Section

STYLE = {
    "sab_out": {"color": DCT, "width": 3},
    "sab_sum": {"color": SVD, "width": 3},
    "sab_in": {"color": BEFORE, "width": 2},
    "ffn_out": {"color": DCT, "width": 2, "dash": "dot"},
    "ffn_sum": {"color": SVD, "width": 2, "dash": "dot"},
}


def sections(content: dict[str, Any]) -> list[Section]:
    """One for each variant."""
    found = []
    for variant in dict.fromkeys(run["variant"] for run in content["runs"]):
        runs = [run for run in content["runs"] if run["variant"] == variant]
        by_block = _figure([_by_block(runs, site) for site in STYLE], "block", "The trained model in float64.")
        items = [by_block]
        if curves := [run["kappa"] for run in runs if run["kappa"].get("sab_in")]:
            words = "Mean over blocks, while it trained, in float32. A gap: infinite to that arithmetic."
            items.append(_figure([_by_epoch(curves, site) for site in STYLE], "epoch", words))
        found.append(Section(title=f"{variant}: log κ by block and by epoch", items=items))
    return found


def _by_block(runs: list[dict[str, Any]], site: str) -> dict[str, Any]:
    blocks = range(len(runs[0]["trained"][site]))
    return _line(site, list(blocks), [_mean([run["trained"][site][block] for run in runs]) for block in blocks])


def _by_epoch(curves: list[dict[str, Any]], site: str) -> dict[str, Any]:
    length = min(len(curve[site]) for curve in curves)
    values = [_mean([value for curve in curves for value in curve[site][i]]) for i in range(length)]
    return _line(site, curves[0]["epoch"][:length], values)


def _line(site: str, x: list[int], y: list[float | None]) -> dict[str, Any]:
    trace = {"type": "scatter", "mode": "lines+markers", "name": SITE_WORDS[site], "line": STYLE[site]}
    return trace | {"hovertemplate": "%{y:.2f}", "x": x, "y": y}


def _figure(data: list[dict[str, Any]], axis: str, words: str) -> Figure:
    layout = {
        "xaxis": {"title": {"text": axis}},
        "yaxis": {"title": {"text": "log κ"}, "rangemode": "tozero"},
        "hovermode": "x unified",
    }
    return Figure(data=data, layout=layout, caption=f"Mean over pictures and seeds. {words}")


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
