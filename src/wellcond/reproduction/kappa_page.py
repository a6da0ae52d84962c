"""The figures of asa-kappa: κ by block with the bounds, and spectra; the content of its JSON → sections of a page."""

from typing import Any

import numpy as np

from ..report import BEFORE, DCT, SVD, Figure, Section
from .statistics import known_mean

STYLE = {  # site → name, line
    "sab_out": ("SA(X), before its skip", {"color": DCT, "width": 3}),
    "sab_sum": ("X + SA(X)", {"color": SVD, "width": 3}),
    "sab_in": ("input", {"color": BEFORE, "width": 2}),
    "ffn_out": ("MLP, before its skip", {"color": DCT, "width": 2, "dash": "dot"}),
    "ffn_sum": ("after the MLP's skip", {"color": SVD, "width": 2, "dash": "dot"}),
}
BOUND = "#b04a9a"


def sections(content: dict[str, Any]) -> list[Section]:
    """One for each variant: what it shows in words, κ by block, spectra."""
    found = []
    for row in content["rows"]:
        runs = [run for run in content["runs"] if run["variant"] == row["name"]]
        items = [_by_block(runs), *_spectra(runs)]
        n, d = runs[0]["n"], runs[0]["d"]
        found.append(Section(title=f"{row['name']}: {n} × {d}", text=_words(row), items=items))
    return found


def _words(row: dict[str, Any]) -> str:
    out, total = row["log_kappa"]["sab_out"], row["log_kappa"]["sab_sum"]
    told = [f"log κ of SA(X) is {_number(out)} and of the sum {_number(total)}, means over blocks, pictures and seeds."]
    seen = "The paper's picture appears" if row["as_in_the_paper"] else "The paper's picture does not appear"
    told.append(f"{seen}: {row['verdict']}. Rank-deficient matrices of SA(X): {row['sab_out_rank_deficient']}.")
    if out is None:
        told.append(
            "LayerNorm without a bias makes every token sum to zero, so n ≥ d tokens lack a direction, and the output "
            "of linear attention lies in the span of their columns: κ is infinite whatever the weights. Over the "
            f"singular values above the floor, log κ is {row['sab_out_above_floor']:.1f}."
        )
    if row["cubic_why_not"]:
        told.append(f"The bound of Proposition 4.1 does not apply: {row['cubic_why_not']}.")
    else:
        told.append("The bound of Proposition 4.1 is drawn in.")
    told.append(
        "That of Proposition 4.2 applies to no block: the skip carries the tokens before LayerNorm, and M is not "
        "symmetric." + ("" if row["cubic_why_not"] else " It is drawn for M = XᵀX/k, where it does.")
    )
    return " ".join(told)


def _by_block(runs: list[dict[str, Any]]) -> Figure:
    depth = len(runs[0]["log_kappa"]["sab_in"])
    data = []
    for site, (name, line) in STYLE.items():
        means = [known_mean(run["log_kappa"][site][layer] for run in runs) for layer in range(depth)]
        data.append(_line(name, means, line))
    if runs[0]["bounds"][0]["cubic"] is not None:
        cubic = [known_mean(run["bounds"][layer]["cubic"] for run in runs) for layer in range(depth)]
        data.append(_line("bound of 4.1 on SA(X)", cubic, {"color": BOUND, "width": 2}))
        names = {"out": "X M, M = XᵀX/k", "sum": "X M + X", "bound": "bound of 4.2 on X M + X"}
        for (key, name), dash in zip(names.items(), ("dash", "dashdot", "longdash"), strict=True):
            means = [known_mean(run["bounds"][i]["semidefinite"][key] for run in runs) for i in range(depth)]
            data.append(_line(name, means, {"color": BOUND, "width": 1, "dash": dash}))
    layout = {
        "xaxis": {"title": {"text": "block"}, "dtick": 1},
        "yaxis": {"title": {"text": "log κ"}, "rangemode": "tozero"},
        "hovermode": "x unified",
    }
    return Figure(data=data, layout=layout, caption="Mean over pictures and seeds. A gap: infinite on every picture.")


def _spectra(runs: list[dict[str, Any]]) -> list[Figure]:
    """Of the middle one of the blocks that are kept, first seed, first picture."""
    kept = next((run["spectra"] for run in runs if run["spectra"]), [])
    layers = sorted({spectrum["layer"] for spectrum in kept})
    if not layers:
        return []
    layer = layers[len(layers) // 2]
    chosen = [spectrum for spectrum in kept if spectrum["layer"] == layer]
    data = []
    for spectrum in chosen:
        name, line = STYLE[spectrum["site"]]
        values = np.exp(np.array(spectrum["log_sigma"]))
        data.append(_line(name, values.tolist(), line, first=1, hover="σ<sub>%{x}</sub> = %{y:.2e} σ<sub>max</sub>"))
    layout = {
        "xaxis": {"title": {"text": "number of the singular value"}},
        "yaxis": {"title": {"text": "σ / σ_max"}, "type": "log", "exponentformat": "power"},
        "hovermode": "x unified",
    }
    floor = np.exp(max(spectrum["floor"] for spectrum in chosen))
    caption = f"Singular values in block {layer} of one picture. At {floor:.0e} and under they are rounding."
    return [Figure(data=data, layout=layout, height=340, caption=caption)]


def _line(name: str, y: list[Any], line: dict[str, Any], first: int = 0, hover: str = "%{y:.2f}") -> dict[str, Any]:
    x = list(range(first, first + len(y)))
    mode = "lines" if first else "lines+markers"
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, "line": line, "hovertemplate": hover}


def _number(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.1f}"
