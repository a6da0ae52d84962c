"""Figures of asa-fig1b and asa-fig3-5: log κ by block at the end of training, and its mean over blocks by epoch."""

from typing import Any

import numpy as np

from ..report import BEFORE, DCT, SVD, Figure, Section

STYLE = {
    "sab_out": ("SA(X), before its skip", {"color": DCT, "width": 3}),
    "sab_sum": ("after the SAB", {"color": SVD, "width": 3}),
    "sab_in": ("input", {"color": BEFORE, "width": 2}),
    "ffn_out": ("MLP, before its skip", {"color": DCT, "width": 2, "dash": "dot"}),
    "ffn_sum": ("after the FFN", {"color": SVD, "width": 2, "dash": "dot"}),
}


def sections(content: dict[str, Any]) -> list[Section]:
    """One for each variant."""
    found = []
    for variant in dict.fromkeys(run["variant"] for run in content["runs"]):
        runs = [run["kappa"] for run in content["runs"] if run["variant"] == variant and run["kappa"].get("sab_in")]
        if runs:
            by_block = _figure([_line(runs, site, last=True) for site in STYLE], "block")
            by_epoch = _figure([_line(runs, site, last=False) for site in STYLE], "epoch")
            found.append(Section(title=f"{variant}: log κ by block and by epoch", items=[by_block, by_epoch]))
    return found


def _line(runs: list[dict[str, Any]], site: str, last: bool) -> dict[str, Any]:
    """Means over seeds: by block after the last epoch, or over blocks by epoch."""
    length = min(len(run[site]) for run in runs)
    if last:
        values = [_mean([run[site][-1][block] for run in runs]) for block in range(len(runs[0][site][-1]))]
        x = list(range(len(values)))
    else:
        values = [_mean([value for run in runs for value in run[site][i]]) for i in range(length)]
        x = runs[0]["epoch"][:length]
    name, line = STYLE[site]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "x": x,
        "y": values,
        "line": line,
        "hovertemplate": "%{y:.2f}",
    }


def _figure(data: list[dict[str, Any]], axis: str) -> Figure:
    layout = {
        "xaxis": {"title": {"text": axis}},
        "yaxis": {"title": {"text": "log κ"}, "rangemode": "tozero"},
        "hovermode": "x unified",
    }
    what = "after the last epoch" if axis == "block" else "mean over blocks"
    return Figure(data=data, layout=layout, caption=f"Mean over pictures and seeds, {what}. A gap: infinite.")


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
