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
    part: str = ""  # and of the claim's, the part that begins so


SKIPLESS = "skipless, initialized, SOAP, less with skips, "
SMALLER = "skipless, initialized, alpha-0.5"
LINES = (
    Line("asa-fig1b", "Attention alone is far worse conditioned: its log κ less that with the skip",
         ("attention alone less attention + skip",), whole=True),
    Line("asa-kappa", "The same with random weights", ("n ≥ d, softmax",)),
    Line("asa-fig3-5", "The same with linear attention, trained", ("linear: attention alone less attention + skip",)),
    Line("asa-fig1c", "Attention's skip matters more than the MLP's: change of top-1 without each",
         ("CIFAR-10, no SAB skip, difference", "CIFAR-10, no FFN skip, difference"), whole=True),
    Line("asa-fig2", "Only without attention's skip training fails: last loss without each",
         tuple(f"Tiny-ImageNet, {skips}, last training loss" for skips in ("no SAB skip", "no FFN skip")),
         whole=True),
    Line("asa-fig6", "ConvMixer needs no skip: change of top-1 without it", ("CIFAR-10, difference",)),
    Line("asa-table1", "Graying by SVD is slow: step time, times the plain step",
         ("ViT-B/16, SVD, step time over the plain step",)),
    Line("asa-table1", "Graying by DCT is almost free: the same", ("ViT-B/16, DCT, step time over the plain step",)),
    Line("asa-table2", "Graying by SVD gains accuracy: change of top-1", ("softmax/svd, gain",)),
    Line("asa-table2", "Graying by DCT gains accuracy: the same", ("softmax/dct, gain",)),
    Line("asa-table2", "The same with linear attention, SVD", ("linear/svd, gain",)),
    Line("asa-table2", "The same with linear attention, DCT", ("linear/dct, gain",)),
    Line("asa-table4", "The same in Swin, DCT", ("Swin, gain",)),
    Line("asa-table4", "The same in CaiT and PVT v2, DCT", ("CaiT, gain", "PVT v2, gain")),
    Line("asa-table3", "SVD lowers log κ before attention with every ε: without, with",
         tuple(f"{variant}, κ_in" for variant in ("none", "svd/0.7")), whole=True, part="svd: "),
    Line("asa-table3", "The same by DCT",
         tuple(f"{variant}, κ_in" for variant in ("none", "dct/0.95")), whole=True, part="dct: "),
    Line("asa-fig7-8", "SVD lowers log κ of 99 % of attention's Jacobian: change",
         ("svd/0.5 less none, log κ of 99 % of it",)),
    Line("asa-fig7-8", "The same by DCT", ("dct/0.85 less none, log κ of 99 % of it",)),
    Line("cts-table1", "Skipless, initialized, SOAP beats AdamW with skips: top-1 ahead",
         (f"CIFAR-10, {SKIPLESS}AdamW",)),
    Line("cts-table1", "The same on Tiny-ImageNet, ViT-Tiny and ViT-S",
         (f"Tiny-ImageNet, {SKIPLESS}AdamW", f"Tiny-ImageNet, ViT-S, {SKIPLESS}AdamW")),
    Line("cts-beyond", "With α = 0.5 (ours) the same on CIFAR-10, on Tiny-ImageNet",
         tuple(f"{data}, SOAP, {SMALLER}, less with skips, AdamW" for data in ("CIFAR-10", "Tiny-ImageNet"))),
    Line("cts-table1", "As in the paper, on CIFAR-10, against SOAP with skips", (f"CIFAR-10, {SKIPLESS}SOAP",)),
    Line("cts-beyond", "With α = 0.5 on CIFAR-10 against SOAP with skips",
         (f"CIFAR-10, SOAP, {SMALLER}, less with skips",)),
    Line("cts-gap", "The same after 60 epochs, and as ViT-S", ("ViT-Tiny, 60 epochs, SOAP, gap", "ViT-S, SOAP, gap")),
    Line("cts-fig1", "Initialized, it trains: last loss less that without, AdamW and SOAP",
         tuple(f"CIFAR-10, skipless, initialized, {name}, less skipless, {name}" for name in ("AdamW", "SOAP"))),
    Line("cts-fig2", "DINO's dense features are better without skips: mIoU ahead, AdamW and SOAP",
         tuple(f"ViT-Tiny, {name}, mIoU of one layer, without skips less with them" for name in ("AdamW", "SOAP"))),
    Line("cts-fig3", "They find more objects: CorLoc ahead, SOAP",
         ("ViT-Tiny, SOAP, CorLoc at the end, less with skips at the end",)),
)  # fmt: skip


def cells(claims: Sequence[Read], lines: Sequence[Line] = LINES) -> list[list[str]]:
    """Rows under `HEADING`: the lines in their order, then claims that have none."""
    by_name = {claim["claim"]: claim for claim in claims}
    named = [found for line in lines if line.claim in by_name for found in _named(by_name[line.claim], line)]
    others = [claim for claim in claims if claim["claim"] not in {line.claim for line in lines}]
    return named + [found for claim in others for found in _unnamed(claim)]


def _named(claim: Read, line: Line) -> Iterator[list[str]]:
    """The line; nothing where a row of it has no number yet."""
    by_name = {row["name"]: row for row in claim["rows"] if row["value"] is not None}
    rows = [by_name[name] for name in line.rows if name in by_name]
    if len(rows) == len(line.rows):
        parts = claim["verdict"].split("; ") if line.part else [claim["verdict"]]
        said = "; ".join(part for part in parts if part.startswith(line.part))
        judged = JUDGED.search(said) if line.whole else None
        verdict = judged[0].lower() if judged else said if line.whole else _verdict(rows)
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
