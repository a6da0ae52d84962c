"""Rows → one sentence a person understands, and findings with their evidence. Every threshold has its reason."""

import math
from collections.abc import Iterator

from wellcond.blocks.matrices import Matrices
from wellcond.diagnosis.beginning.weights import mlp_sites
from wellcond.diagnosis.findings import rank_collapse
from wellcond.diagnosis.result import Finding
from wellcond.diagnosis.sites import Sites, blocks_in_words
from wellcond.probes.rows import Row

ORTHOGONAL = 0.02
"""log κ of W_V W_O that counts as orthogonal: float32 leaves 1e-6, rounding to bfloat16 about 0.01."""
FAINT = math.log(30)
"""log κ of W_V W_O from which on a direction is nearly lost: after two blocks a thousandth of it is left."""
EVEN = 0.05
"""How far the gain of an MLP's matrix may be from 1: what 24 of them in a row turn into a factor of 3."""
DEAD = 0.1
"""LayerScale under which a branch without its skip is hardly there. timm begins with 1e-6 to 0.1."""
LEANS = 0.15
"""Trace of W_Q W_Kᵀ over its norm and √d_h from which on it leans to the identity, mean over heads. At rank d_h it is
1 at most; independent W_Q and W_K have 0 ± 1/√(d d_h), the paper's (α, β) = (2, 0.6) with one head 0.6/√4.36 and more
with several."""
LOST = 0.5
"""Share of the first block's diagonal mass that the last one must keep."""
FLAT = 2.0
"""Times the mass of uniform attention, 1/n, under which attention has no diagonal; of so few tokens nothing is said."""
_REMEDY = "wc.init_skipless_(model) sets it"
_LACKS = {
    "value_output": "orthogonal values",
    "query_key": "attention that leans to the diagonal",
    "mlp_gain": "MLPs that keep the size of the tokens",
    "layer_scale": "a LayerScale of 1",
}
_CENTRE = 'wc.set_activation(model, "centred-gelu")'


def judge(rows: list[Row], matrices: list[Matrices], *, skipless: bool, gelu: bool) -> tuple[str, list[Finding]]:
    """(verdict, findings). Without skips what is missing is a warning; with them it is only to be known.

    `gelu`: does `set_activation` take the model?
    """
    severity = "warning" if skipless else "note"
    parts = list(_weights(Sites(rows), matrices, severity))
    wrong = [finding for good, finding in parts if not good]
    found = [finding for _, finding in parts]
    made = skipless and bool(matrices) and not wrong
    depth = list(_depth(rows, matrices, severity, gelu, made)) if any(row.num_images for row in rows) else []
    verdict = _verdict(bool(matrices), wrong, depth)
    return verdict, sorted([*found, *depth], key=lambda finding: finding.severity != "warning")


def _verdict(known: bool, wrong: list[Finding], depth: list[Finding]) -> str:
    if not known:
        text = "Its weights cannot be compared with those of a model that trains without skips."
    elif wrong:
        text = f"Not made for training without skips. It lacks {', '.join(_LACKS[finding.kind] for finding in wrong)}."
    else:
        text = (
            "Made for training without skips: values are orthogonal over all heads, attention leans to the diagonal, "
            "the MLPs keep the size of the tokens."
        )
    warnings = [finding.text for finding in depth if finding.severity == "warning"]
    where = "On these images" if wrong or not known else "Yet on these images"
    return " ".join([text, *(f"{where}: {first}" for first in warnings[:1])])


def _weights(sites: Sites, matrices: list[Matrices], severity: str) -> Iterator[tuple[bool, Finding]]:
    if not matrices:
        return
    layers = range(len(matrices))
    kappas = [_log_kappa(sites, layer, "value_output") for layer in layers]
    worst = max(kappas)
    good = worst <= ORTHOGONAL
    inside = not good and all(_log_kappa(sites, i, "value_output", "head_log_kappa") <= ORTHOGONAL for i in layers)
    yield (
        good,
        Finding(
            kind="value_output",
            severity="note" if good else severity,
            layer=None if good else kappas.index(worst),
            text="W_V W_O is orthogonal over all heads, so it neither stretches nor loses a direction."
            if good
            else "W_V W_O is orthogonal inside each head only, and over all heads it is not: directions are lost."
            if inside
            else "W_V W_O is not orthogonal: it stretches some directions of the tokens more than others."
            if worst < FAINT
            else "W_V W_O is not orthogonal: some directions of the tokens are nearly lost.",
            evidence=f"κ(W_V W_O) up to {kappa_in_words(worst)}; 1 is orthogonal",
            remedy="" if good else _REMEDY,
        ),
    )
    yield _leaning(sites, matrices, severity)
    yield _gains(sites, matrices, severity)
    small = [i for i, block in enumerate(matrices) if any(float(s.abs().mean()) < DEAD for s in block.scales)]
    if small:
        least = min(float(s.abs().mean()) for block in matrices for s in block.scales)
        yield (
            False,
            Finding(
                kind="layer_scale",
                severity=severity,
                layer=small[0],
                text="LayerScale is so small that a branch without its skip is hardly there.",
                evidence=f"{least:.1g} on average, in {blocks_in_words(small)}",
                remedy=_REMEDY,
            ),
        )


def _leaning(sites: Sites, matrices: list[Matrices], severity: str) -> tuple[bool, Finding]:
    values = [sites.value(layer, "query_key", "diagonal_dominance") or 0.0 for layer in range(len(matrices))]
    ranks = [block.query.shape[1] for block in matrices]
    low = [i for i, (value, d_h) in enumerate(zip(values, ranks, strict=True)) if value / math.sqrt(d_h) < LEANS]
    text = "W_Q W_Kᵀ leans to the identity: a token looks at itself before it looks at unrelated ones."
    if low:
        text = "W_Q W_Kᵀ does not lean to the identity: a token looks at itself no more than at others."
    least = min(values)
    wins = f"about {math.exp(least**2 / 2):.2g}" if least**2 / 2 < 20 else "any number of"
    return not low, Finding(
        kind="query_key",
        severity=severity if low else "note",
        layer=low[0] if low else None,
        text=text,
        evidence=f"trace over norm {least:.2f} to {max(values):.2f}, mean over heads"
        + ("" if low else f": the diagonal wins against {wins} unrelated tokens (√(2 ln n)), fewer of related ones"),
        remedy="wc.init_skipless_(model), with a larger β or a smaller α" if low else "",
    )


def _gains(sites: Sites, matrices: list[Matrices], severity: str) -> tuple[bool, Finding]:
    gains = {
        (layer, site): sites.value(layer, site, "gain") or 0.0
        for layer, block in enumerate(matrices)
        for site in mlp_sites(len(block.mlp))
    }
    (layer, site), worst = max(gains.items(), key=lambda item: abs(math.log(max(item[1], 1e-300))))
    good = abs(worst - 1) <= EVEN
    return good, Finding(
        kind="mlp_gain",
        severity="note" if good else severity,
        layer=None if good else layer,
        text="The matrices of the MLPs keep the mean square of what goes through them."
        if good
        else "The matrices of the MLPs change the mean square of what goes through them.",
        evidence=f"mean square out over in between {min(gains.values()):.3g} and {max(gains.values()):.3g}"
        + ("" if good else f", furthest from 1 at {site} of block {layer}"),
        remedy="" if good else _REMEDY,
    )


def _depth(rows: list[Row], matrices: list[Matrices], severity: str, gelu: bool, made: bool) -> Iterator[Finding]:
    yield from rank_collapse(Sites([row for row in rows if row.num_images]), initialized=made)
    masses = [row for row in rows if (row.site, row.quantity) == ("attention", "attention_diagonal") and row.d > FLAT]
    known = [(row.layer, row.value) for row in masses if row.value is not None]
    if len(known) > 1:
        (first, start), (last, end) = known[0], known[-1]
        flat, lost = start < FLAT / masses[0].d, end < LOST * start
        text = "Attention keeps its diagonal down to the last block."
        if flat:
            text = "Attention has no diagonal, from the first block on: every block averages its tokens."
        elif lost:
            text = "Attention loses its diagonal on the way down: later blocks average their tokens."
        yield Finding(
            kind="diagonal_lost" if flat or lost else "diagonal_kept",
            severity=severity if flat or lost else "note",
            layer=next((layer for layer, mass in known if flat or mass < LOST * start), None),
            text=text,
            evidence=f"mean mass that a token gives to itself: {start:.2f} in block {first}, {end:.2f} in block {last}"
            f"; {1 / masses[0].d:.2f} is uniform",
            remedy=_diagonal_remedy(matrices, flat, gelu) if flat or lost else "",
        )
    yield from _bound(rows)


def _diagonal_remedy(matrices: list[Matrices], flat: bool, gelu: bool) -> str:
    """Only what this model takes, and what came of it in cts-beyond."""
    if not matrices:
        return "Keep the skips (wc.restore_skips)."
    if flat:
        return _REMEDY
    ways = [_CENTRE, "a larger β"] if gelu else ["a larger β"]
    ways += [] if any(block.normalised for block in matrices) else ["wc.calibrate_(model, images)"]
    longer = ", or ".join(filter(None, [", ".join(ways[:-1]), ways[-1]]))
    return f"To keep it longer: {longer}. What trained better in cts-beyond is alpha=0.5, which loses it, too."


def _bound(rows: list[Row]) -> Iterator[Finding]:
    bounds = {row.layer: row for row in rows if row.quantity == "log_kappa_bound"}
    if not bounds:
        return
    holding = [layer for layer, row in bounds.items() if row.value is not None]
    e, b = ({row.layer: row.value for row in rows if row.quantity == name} for name in ("sigma_max_e", "sigma_min_b"))
    first = min(bounds)
    if holding:
        values = [bounds[layer].value or 0.0 for layer in holding]
        text = f"Proposition 2 bounds κ of attention's Jacobian in {blocks_in_words(holding)}."
        evidence = f"κ ≤ {kappa_in_words(min(values))} to {kappa_in_words(max(values))}"
    else:
        text = (
            "Proposition 2 gives no bound on κ of attention's Jacobian here: the part that moves attention is larger."
        )
        known = f"at least {b[first]:.3g}" if b[first] else "of which only 0 is certain"
        evidence = f"σ_max(E) {e[first]:.3g} against σ_min(B), {known}, in block {first}"
    yield Finding(
        kind="jacobian_bound",
        severity="note",
        layer=None,
        text=text,
        evidence=f"{evidence}; {len(bounds)} block{'s' * (len(bounds) > 1)}, on the first image",
        remedy="",
    )


def _log_kappa(sites: Sites, layer: int, site: str, quantity: str = "log_kappa") -> float:
    value = sites.value(layer, site, quantity)
    return math.inf if value is None else value


def kappa_in_words(log: float) -> str:
    """κ from its logarithm, in six places at most.

    >>> [kappa_in_words(x) for x in (1e-6, 0.5, 3.5, 12.0, math.inf)]
    ['1.0000', '1.65', '33.1', '2e+05', '∞']
    """
    if math.isinf(log):
        return "∞"
    if log < 1e-2:
        return f"{math.exp(log):.4f}"
    return f"{math.exp(log):.3g}" if log < 6.9 else f"{math.exp(log):.0e}"
