"""A verification on the terminal: the verdict, a line for each block, the findings."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from wellcond.diagnosis.beginning.result import Verification
from wellcond.diagnosis.beginning.verdict import kappa_in_words
from wellcond.diagnosis.table import remarks

Write = Callable[[float], str]

# heading, site, quantity, how it is written
COLUMNS: tuple[tuple[str, str, str, Write], ...] = (
    ("V·O", "value_output", "log_kappa", kappa_in_words),
    ("Q·K", "query_key", "diagonal_dominance", "{:.2f}".format),
    ("fc1", "fc1", "gain", "{:.2f}".format),
    ("fc2", "fc2", "gain", "{:.2f}".format),
    ("diag", "attention", "attention_diagonal", "{:.2f}".format),
    ("cos", "ffn_sum", "token_cosine", "{:.2f}".format),
    ("log κ", "ffn_sum", "log_kappa", "{:.1f}".format),
    ("κ(J) ≥", "jacobian", "log_kappa_at_least", kappa_in_words),
    ("≤", "jacobian", "log_kappa_bound", kappa_in_words),
)
LEGEND = {  # by heading; only of columns that are there
    "V·O": "V·O: κ of W_V W_O, 1 is orthogonal.",
    "Q·K": "Q·K: trace over norm of W_Q W_Kᵀ, how far it leans to the identity.",
    "fc1": "fc1, fc2: mean square out over in.",
    "diag": "diag: attention that a token gives to itself.",
    "cos": "cos, log κ: of the tokens after the block (1: all alike).",
    "κ(J) ≥": "κ(J): of attention's Jacobian on the first image, at least, and at most by Proposition 2 "
    "(∞: it does not say).",
}


def renderable(verification: Verification) -> Any:
    """Something that rich can print."""
    height, across = verification.image_size
    seen = f", {verification.num_images} images of {height} × {across}" if verification.num_images else ""
    columns = shown_columns(verification)
    title = f"{verification.model}, {verification.skips}{seen}"
    table = Table(title=Text(title), caption=Text(legend(columns)), title_justify="left", caption_justify="left")
    table.add_column("block", justify="right")
    for heading, *_ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for layer in verification.layers:
        table.add_row(str(layer), *(cell(verification, layer, column) for column in columns))
    verdict = Text(verification.verdict, style="bold")
    return Group(verdict, Text(""), table, *remarks(verification.findings, verification.missing))


def shown_columns(verification: Verification) -> list[tuple[str, str, str, Write]]:
    there = {(row.site, row.quantity) for row in verification.rows}
    last = "ffn_sum" if ("ffn_sum", "log_kappa") in there else "sab_sum"  # ConvMixer's blocks have no MLP
    columns = [(name, last if site == "ffn_sum" else site, what, write) for name, site, what, write in COLUMNS]
    return [column for column in columns if column[1:3] in there]


def legend(columns: Sequence[tuple[str, str, str, Write]]) -> str:
    """What the headings mean."""
    shown = {heading for heading, *_ in columns}
    return " ".join(text for heading, text in LEGEND.items() if heading in shown)


def cell(verification: Verification, layer: int, column: tuple[str, str, str, Write]) -> str:
    _, site, quantity, write = column
    rows = [row for row in verification.rows if (row.layer, row.site, row.quantity) == (layer, site, quantity)]
    if not rows:
        return ""
    if rows[0].value is not None:
        return write(rows[0].value)
    return "∞" if rows[0].num_infinite and "kappa" in quantity else "–"  # the cosine of a single token is no number
