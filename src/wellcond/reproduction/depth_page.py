"""Figures of cts-init-depth: a quantity by block, at the start (solid) and after training (dotted)."""

from typing import Any

from ..report import Figure, Section
from .statistics import known_mean
from .training_page import COLOURS

TITLES = {
    "attention_diagonal": "Mass that a token gives to itself",
    "token_cosine": "Cosine between tokens",
    "log_kappa": "log κ of the tokens",
}


def sections(content: dict[str, Any]) -> list[Section]:
    """One figure for each quantity."""
    found = []
    variants = list(dict.fromkeys(run["variant"] for run in content["runs"]))
    for quantity, title in TITLES.items():
        traces = []
        for number, variant in enumerate(variants):
            runs = [run["depth"] for run in content["runs"] if run["variant"] == variant]
            for when, dash in (("start", "solid"), ("end", "dot")):
                values = [known_mean(values) for values in zip(*(run[when][quantity] for run in runs), strict=True)]
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "lines+markers",
                        "name": f"{variant}, {'start' if when == 'start' else 'trained'}",
                        "x": list(range(len(values))),
                        "y": values,
                        "line": {"color": COLOURS[number % len(COLOURS)], "width": 2, "dash": dash},
                        "hovertemplate": "%{y:.3g}",
                    }
                )
        layout = {"xaxis": {"title": {"text": "block"}}, "yaxis": {"title": {"text": title}}, "hovermode": "x unified"}
        figure = Figure(data=traces, layout=layout, caption="Mean over pictures and seeds; a gap: infinite.")
        found.append(Section(title=f"{title}, by block", items=[figure]))
    return found
