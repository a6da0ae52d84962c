"""Does the picture of "Always Skip Attention" (arXiv 2505.01996, Fig. 1b) appear in this model?

There the output of attention, before its skip, has log κ ≈ 6 and the sums after it ≈ 3. It depends on the shape: with
n ≥ d tokens the bound κ(attention) ≤ C·κ(X)³ holds, with n < d it does not (Prop. 4.1), and κ differs by orders of
magnitude between the two.
"""

import math
import statistics

from wellcond.diagnosis.result import Finding
from wellcond.diagnosis.sites import Sites, blocks_in_words

PICTURE_GAP = 1.5
"""Half of the papers' 6 − 3: median over blocks of log κ of attention's output less the mean of the block's sums."""


def papers_picture(sites: Sites, attends: bool = True) -> Finding:
    """One finding, either way, with n, d and the regime. `attends`: are the branches attention at all?"""
    gaps = {layer: gap for layer in sites.layers if (gap := _gap(sites, layer)) is not None}
    shapes = list(dict.fromkeys(sites.shape((layer, "sab_out")) for layer in gaps))
    regimes = "; ".join(f"{n} × {d} tokens, n {'≥' if n >= d else '<'} d" for n, d in shapes)
    if not gaps:
        return _finding(
            False,
            text="The papers' picture (attention's output far worse conditioned than the sums) cannot be seen here.",
            evidence="no block has both a κ of attention's output and a κ of its sums",
            remedy="Read effective ranks and spectra instead.",
        )
    typical = statistics.median(gaps.values())
    worse = [layer for layer, gap in gaps.items() if gap >= PICTURE_GAP]
    shown = f"{typical:.2f}" if math.isfinite(typical) else ("∞" if typical > 0 else "−∞")
    evidence = (
        f"log κ of the branch less that of the sums: {shown} in the median of {len(gaps)} blocks (papers: about 3), at "
        f"least {PICTURE_GAP:g} in {blocks_in_words(worse) if worse else 'none'}; {regimes}"
    )
    if not attends:
        return _finding(
            False,
            text="The papers' picture is about attention, and this model has none.",
            evidence=evidence,
            remedy="The papers find that such a model trains without its skips as well as with them.",
        )
    if typical >= PICTURE_GAP:
        return _finding(
            True,
            text="As in the papers: attention's output is far worse conditioned than the sums after it.",
            evidence=evidence,
            remedy="What the papers say of skips and graying may apply here. They speak of trained models in float32: "
            "random weights show the picture too, and in half precision rounding alone can draw it.",
        )
    return _finding(
        False,
        text="Not as in the papers: attention's output is not far worse conditioned than the sums after it.",
        evidence=evidence,
        remedy="Measure before you rely on the papers' remedies here; with n < d, or random weights, this is common.",
    )


def _gap(sites: Sites, layer: int) -> float | None:
    """log κ of attention's output less the mean of the sums; ±inf where one side is rank-deficient, None where both."""
    out = sites.log_kappa(layer, "sab_out")
    sums = [value for site in ("sab_sum", "ffn_sum") if (value := sites.log_kappa(layer, site)) is not None]
    if out is None or not sums:
        return None
    gap = out - statistics.fmean(sums)
    return None if math.isnan(gap) else gap


def _finding(there: bool, *, text: str, evidence: str, remedy: str) -> Finding:
    kind = "as_in_the_papers" if there else "not_as_in_the_papers"
    return Finding(kind=kind, severity="note", layer=None, text=text, evidence=evidence, remedy=remedy)
