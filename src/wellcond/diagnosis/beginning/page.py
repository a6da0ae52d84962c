"""A verification → one page: verdict, findings, by depth, W_Q W_Kᵀ as pictures, Propositions 1 and 2, every number."""

from typing import Any

from wellcond import report
from wellcond.diagnosis.beginning.result import Verification
from wellcond.diagnosis.beginning.table import cell, legend, shown_columns
from wellcond.probes.rows import Row

_LINES = (  # site, quantity, name, colour, axis
    ("attention", "attention_diagonal", "diagonal attention mass", "#bd362d", "y"),
    ("ffn_sum", "token_cosine", "token cosine after the block", report.SVD, "y"),
    ("ffn_sum", "log_kappa", "log κ of the tokens", report.BEFORE, "y2"),
)


def build(verification: Verification) -> report.Report:
    v = verification
    sections = [_verdict(v), _blocks(v), _depth(v), _pictures(v), _first(v), _second(v), _missing(v), _numbers(v)]
    return report.Report(
        title=f"How {v.model} begins",
        summary=_summary(v),
        sections=[section for section in sections if section is not None],
        command=v.command,
        versions=v.versions or None,
    )


def _summary(v: Verification) -> str:
    images = f"; {v.num_images} images of {v.image_size[0]} × {v.image_size[1]} pixels" if v.num_images else ""
    source = f" from {v.source}" if v.source and v.num_images else ""
    weights = f"; weights: {v.weights}" if v.weights else ""
    return f"Measured {v.skips}{images}{source}{weights}."


def _verdict(v: Verification) -> report.Section:
    cards = [
        report.Card(
            tone=finding.severity,
            label=finding.severity + (f" · block {finding.layer}" if finding.layer is not None else ""),
            text=finding.text,
            details=[
                (name, text) for name, text in (("evidence", finding.evidence), ("what to do", finding.remedy)) if text
            ],
        )
        for finding in v.findings
    ]
    return report.Section(title="Verdict", text=v.verdict, items=[report.Cards(items=cards)] if cards else [])


def _blocks(v: Verification) -> report.Section | None:
    columns = shown_columns(v)
    if not columns:
        return None
    rows: list[list[report.Cell]] = [[layer, *(cell(v, layer, column) for column in columns)] for layer in v.layers]
    table = report.Table(columns=["block", *(column[0] for column in columns)], rows=rows, caption=legend(columns))
    return report.Section(title="Block by block", items=[table])


def _depth(v: Verification) -> report.Section | None:
    data: list[dict[str, Any]] = []
    for site, quantity, name, colour, axis in _LINES:
        rows = _rows(v, site, quantity)
        if any(row.value is not None for row in rows):
            line = {"color": colour, "dash": "dot" if axis == "y2" else "solid"}
            data.append(
                {"type": "scatter", "mode": "lines+markers", "name": name, "line": line, "yaxis": axis,
                 "x": [row.layer for row in rows], "y": [row.value for row in rows]}
            )  # fmt: skip
    if not data:
        return None
    layout = {
        "xaxis": {"title": {"text": "block"}, "dtick": 1 if len(v.layers) <= 24 else 4},
        "yaxis": {"range": [-0.02, 1.02], "title": {"text": "mass, cosine"}},
        "yaxis2": {
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "tickmode": "auto",
            "title": {"text": "log κ"},
        },
    }
    text = (
        "Without skips tokens must stay different (cosine well under 1) down to the last block, and attention that "
        "keeps its diagonal is what keeps them so. Gaps in log κ: singular as far as the arithmetic can tell."
    )
    return report.Section(title="By depth", text=text, items=[report.Figure(data=data, layout=layout)])


def _pictures(v: Verification) -> report.Section | None:
    if not v.pictures:
        return None
    pictures = [report.StoredPicture(png=p.png, title=p.title, note=p.note) for p in v.pictures]
    text = (
        "The product whose entries weigh every pair of channels in the logits of a head; red is positive, blue "
        "negative. β brings out the diagonal, α the noise. Beside the model's are the two settings that the paper "
        "illustrates (Fig. 5): a strong diagonal, and none."
    )
    return report.Section(title="W_Q W_Kᵀ", text=text, items=[report.Gallery(pictures=pictures, columns=3)])


def _first(v: Verification) -> report.Section | None:
    names = {"logit_range": "range Δ", "logit_gap": "gap γ", "dominance_margin": "margin of Lemma 1",
             "attention_diagonal": "diagonal mass", "attention_log_kappa": "log κ of the maps"}  # fmt: skip
    if not _rows(v, "attention", "logit_gap"):
        return None
    rows: list[list[report.Cell]] = [
        [layer, *(v.value(layer, "attention", quantity) for quantity in names)] for layer in v.layers
    ]
    text = (
        "A softmax of logits that hardly differ (Δ far under 1) is nearly uniform, and its κ is about 1/Δ or more. One "
        "whose diagonal is ahead of the rest by γ has at most (n − 1)e^(−γ) of a row outside it and goes to the "
        "identity. In between lies what a model does; a negative γ says that another token is ahead on average. The "
        "margin of Lemma 1 compares the trace of W_Q W_Kᵀ with its noise, at the cosine of these tokens: above 1 the "
        "diagonal wins."
    )
    table = report.Table(columns=["block", *names.values()], rows=rows, caption="mean over rows, heads and images")
    return report.Section(title="Proposition 1: between uniform and identity", text=text, items=[table])


def _second(v: Verification) -> report.Section | None:
    names = {"sigma_max_e": "σ_max(E) ≤", "sigma_max_b": "σ_max(B) ≤", "sigma_min_b": "σ_min(B) ≥",
             "log_kappa_bound": "bound on log κ", "log_kappa_at_least": "log κ ≥", "log_kappa": "log κ"}  # fmt: skip
    if not _rows(v, "jacobian", "sigma_max_e"):
        return None
    rows: list[list[report.Cell]] = [
        [row.layer, *(v.value(row.layer, "jacobian", quantity) for quantity in names)]
        for row in _rows(v, "jacobian", "sigma_max_e")
    ]
    text = (
        "The Jacobian of self-attention is E + B: in B attention stands still, in E the values do. Where σ_max(E) < "
        "σ_min(B) its κ is at most (σ_max(B) + σ_max(E))/(σ_min(B) − σ_max(E)); elsewhere nothing is promised. κ "
        "itself is exact where the matrix is small; else Lanczos gives what it is at least."
    )
    table = report.Table(columns=["block", *names.values()], rows=rows, caption="of the first image, in float64")
    return report.Section(title="Proposition 2: κ of the Jacobian", text=text, items=[table])


def _missing(v: Verification) -> report.Section | None:
    lines = [("not measured", line) for line in v.missing] + [("image skipped", line) for line in v.skipped]
    if not lines:
        return None
    return report.Section(title="What is missing", items=[report.Table(columns=["", ""], rows=lines, wrap=True)])


def _numbers(v: Verification) -> report.Section:
    rows: list[list[report.Cell]] = [
        [row.layer, row.site, row.quantity, row.value, row.std, f"{row.n} × {row.d}"] for row in v.rows
    ]
    columns = ["block", "site", "quantity", "mean", "deviation", "matrix"]
    table = report.Table(columns=columns, rows=rows, folded=f"all {len(rows)} rows")
    return report.Section(title="Every number", items=[table])


def _rows(v: Verification, site: str, quantity: str) -> list[Row]:
    return [row for row in v.rows if (row.site, row.quantity) == (site, quantity)]
