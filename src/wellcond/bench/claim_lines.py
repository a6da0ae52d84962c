"""The claims in README, a line each in plain words; every number and verdict is that of results/.

`LINES` only names rows. A claim that is measured but not named here has a line for each row with a number of the paper
and an interval, in the words of its file, so that nothing stays out because nobody wrote a sentence for it.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

HEADING = ("claim", "paper", "ours, ± 95 %", "verdict")
JUDGED = re.compile("not reproduced|reproduced|not shown|not decided|too few seeds", re.IGNORECASE)
Read = Mapping[str, Any]  # a results file, or a row of it


class Line(NamedTuple):
    claim: str
    words: str
    rows: tuple[str, ...]
    whole: bool = False  # the verdict is that of the claim, not of the row


SKIPLESS = "skipless, initialized, SOAP, less with skips, "
SMALLER = "skipless, initialized, alpha-0.5"
LINES = {
    "See": (
        Line("asa-fig1b", "Attention alone is far worse conditioned than with its skip: Δ log κ",
             ("attention alone less attention + skip",), whole=True),
        Line("asa-fig3-5", "The same of linear attention", ("linear: attention alone less attention + skip",)),
        Line("asa-kappa", "The same with random weights", ("n ≥ d, softmax",)),
        Line("asa-fig2", "Training fails without attention's skip, not without the MLP's: last loss of each",
             tuple(f"Tiny-ImageNet, {skips}, last training loss" for skips in ("no SAB skip", "no FFN skip")),
             whole=True),
        Line("asa-fig1c", "Attention's skip matters more than the MLP's: Δ top-1 without each",
             ("CIFAR-10, no SAB skip, difference", "CIFAR-10, no FFN skip, difference"), whole=True),
        Line("asa-fig6", "ConvMixer needs no skip: Δ top-1 without it", ("CIFAR-10, difference",)),
    ),
    "Fix": (
        Line("asa-table1", "Graying costs time: ViT-B's step over the plain one, SVD; DCT",
             tuple(f"ViT-B/16, {method}, step time over the plain step" for method in ("SVD", "DCT"))),
        Line("asa-table3", "It lowers log κ before attention: none; SVD; DCT",
             tuple(f"{variant}, κ_in" for variant in ("none", "svd/0.7", "dct/0.95")), whole=True),
        Line("asa-fig7-8", "It lowers log κ of attention's Jacobian (99 % of it): Δ, SVD; DCT",
             tuple(f"{variant} less none, log κ of 99 % of it" for variant in ("svd/0.5", "dct/0.85"))),
        Line("asa-table2", "It raises accuracy: Δ top-1, SVD; DCT",
             tuple(f"softmax/{method}, gain" for method in ("svd", "dct"))),
        Line("asa-table2", "The same with linear attention",
             tuple(f"linear/{method}, gain" for method in ("svd", "dct"))),
        Line("asa-table4", "The same in Swin, DCT", ("Swin, gain",)),
        Line("asa-table4", "The same in CaiT; PVT v2, DCT", ("CaiT, gain", "PVT v2, gain")),
    ),
    "Cut": (
        Line("cts-fig1", "Without skips, the initialization lowers the last loss: Δ, AdamW; SOAP",
             tuple(f"CIFAR-10, skipless, initialized, {name}, less skipless, {name}" for name in ("AdamW", "SOAP"))),
        Line("cts-table1", "With SOAP it beats AdamW with skips: Δ top-1, CIFAR-10; Tiny-ImageNet",
             tuple(f"{data}, {SKIPLESS}AdamW" for data in ("CIFAR-10", "Tiny-ImageNet"))),
        Line("cts-beyond", "The same with α = 0.5, which is ours",
             tuple(f"{data}, SOAP, {SMALLER}, less with skips, AdamW" for data in ("CIFAR-10", "Tiny-ImageNet"))),
        Line("cts-table1", "It beats SOAP with skips, too: Δ top-1, CIFAR-10; Tiny-ImageNet",
             tuple(f"{data}, {SKIPLESS}SOAP" for data in ("CIFAR-10", "Tiny-ImageNet"))),
        Line("cts-gap", "The same with α = 0.5, CIFAR-10: ViT-Tiny; ViT-S",
             ("ViT-Tiny, SOAP, gap", "ViT-S, SOAP, gap")),
        Line("cts-fig2", "DINO's dense features are better without skips: Δ mIoU, AdamW; SOAP",
             tuple(f"ViT-Tiny, {name}, mIoU of one layer, without skips less with them" for name in ("AdamW", "SOAP"))),
        Line("cts-fig3", "They find more objects: Δ CorLoc, SOAP",
             ("ViT-Tiny, SOAP, CorLoc at the end, less with skips at the end",)),
    ),
}  # fmt: skip


def cells(claims: Sequence[Read], lines: Mapping[str, Sequence[Line]] = LINES) -> list[list[str]]:
    """Rows under `HEADING`: the lines, each job's after its name, then claims that have none."""
    by_name = {claim["claim"]: claim for claim in claims}
    rows = []
    for job, of_job in lines.items():
        found = [row for line in of_job if line.claim in by_name for row in _named(by_name[line.claim], line)]
        rows += [[f"**{job}**", "", "", ""], *found] if found else []
    named = {line.claim for of_job in lines.values() for line in of_job}
    return rows + [row for claim in claims if claim["claim"] not in named for row in _unnamed(claim)]


def _named(claim: Read, line: Line) -> Iterator[list[str]]:
    """The line; nothing where a row of it has no number yet."""
    by_name = {row["name"]: row for row in claim["rows"] if row["value"] is not None}
    rows = [by_name[name] for name in line.rows if name in by_name]
    if len(rows) == len(line.rows):
        judged = JUDGED.search(claim["verdict"]) if line.whole else None
        verdict = judged[0].lower() if judged else _verdict(rows)
        verdict += ", one seed" if judged and not any(row["interval"] for row in rows) else ""
        yield _cells(claim, line.words, rows, verdict.replace("SA(X)", "attention"))


def _verdict(rows: Sequence[Read]) -> str:
    """That of each row, or the one they share.

    >>> _verdict([{"verdict": "lower"}, {"verdict": "lower"}]), _verdict([{"verdict": "lower"}, {"verdict": "higher"}])
    ('lower', 'lower; higher')
    """
    said = [row["verdict"] for row in rows]
    return said[0] if len(set(said)) == 1 else "; ".join(said)


def _unnamed(claim: Read) -> Iterator[list[str]]:
    for row in claim["rows"]:
        if row["interval"] and row["verdict"] != "–" and any(map(str.isdigit, row["paper"])):
            yield _cells(claim, row["name"], [row], row["verdict"])


def _cells(claim: Read, words: str, rows: Sequence[Read], verdict: str) -> list[str]:
    papers = "; ".join(row["paper"].partition(" (")[0] for row in rows)
    return [f"{words} (`{claim['claim']}`)", papers, "; ".join(ours(r["value"], r["interval"]) for r in rows), verdict]


def ours(value: float, interval: Sequence[float] | None) -> str:
    """The value ± the farther end of its interval, to two digits of that; three digits where there is none.

    >>> ours(12.128, [11.327, 12.929]), ours(-54.017, [-91.406, -16.627]), ours(0.97387, [0.96569, 0.98710])
    ('12.13 ± 0.80', '-54 ± 37', '0.974 ± 0.013')
    >>> ours(-3.62, None), ours(-0.005, [-2.6, 2.6])
    ('-3.62', '0.0 ± 2.6')
    """
    half = max(abs(end - value) for end in interval) if interval else 0.0
    if not half:
        return f"{value:.3g}"
    decimals = max(0, 1 - math.floor(math.log10(half)))
    return f"{value:z.{decimals}f} ± {half:.{decimals}f}"
