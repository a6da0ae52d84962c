"""Rows → what to know about the model, in plain words, with the evidence and the fix that applies.

Blocks count from 0, as in the rows. Every threshold is a constant with its reason.
"""

import math
from collections.abc import Iterator

from wellcond.diagnosis.picture import papers_picture
from wellcond.diagnosis.result import Advice, Finding
from wellcond.diagnosis.sites import Sites, blocks_in_words
from wellcond.probes.rows import Measured, Place, in_words

COLLAPSED_COSINE = 0.95
"""Mean cosine of two tokens from which on they count as one. Uncorrelated tokens have 0; at 0.95 the common direction
holds 95 % of every token's energy, and attention, which tells tokens apart by the rest, has a twentieth left."""
COLLAPSED_RANK = 0.05
"""Share of the way from rank 1 to full rank that the effective rank must keep. It counts small singular values
generously (it is the entropy of σ, not of σ²), so that a twentieth means that hardly any direction is left."""
SKIP_GAP = 2.0
"""log κ of attention's output less that of its sum with the skip. Two are a factor of 7; the paper's Fig. 1b has 3."""
HEAVY_TAILS = 20.0
"""Kurtosis. 3 is a Gaussian, 6 a Laplacian; 1/p if a share p of the entries holds all energy: at 20 a twentieth."""
WELL_CONDITIONED = 3.0
"""log κ of the input under which graying has nothing to do: that of the sums in Fig. 1b. Photographs have more: 6.5 at
64 px in patches of 8, 8.4 at 224 px in patches of 16, in the median of `results/bench-graying.json`."""
_HALF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # relative rounding of one entry

_BEFORE_ANY_BLOCK = "Look at the images, which may hold NaN themselves, and at the patch embedding; then "


def findings(
    measured: Measured, advice: Advice | None, *, arithmetic: str = "float32", graying: str = "", attends: bool = True
) -> list[Finding]:
    """All of them, warnings first. `graying` says how the model grays its input already, if it does; `attends`: are the
    first branches attention?"""
    sites = Sites(measured.rows)
    found = [
        *_not_finite(sites, measured),
        *rank_collapse(sites),
        *(_attention_ill_conditioned(sites) if attends else ()),
        *_numerical_floor(sites, arithmetic),
        *_heavy_tails(sites),
        *_graying(advice, graying),
        papers_picture(sites, attends),
    ]
    return sorted(found, key=lambda finding: finding.severity != "warning")


def _not_finite(sites: Sites, measured: Measured) -> Iterator[Finding]:
    order = {place: i for i, place in enumerate(sites.places)}
    for place in sorted(measured.not_finite, key=lambda place: order.get(place, 0))[:1]:
        count, (layer, site) = measured.not_finite[place], place
        total = sites.rows[layer, site, sites.quantity_at(place)].num_images
        yield Finding(
            kind="not_finite",
            severity="warning",
            layer=layer,
            text=f"Activations are NaN or infinite from block {layer} on.",
            evidence=f"first in {in_words(place)}, on {count} of {total} images; those are left out of its rows",
            remedy=(_BEFORE_ANY_BLOCK if site == "sab_in" else "Look ")
            + "for an overflow (float16 holds numbers up to 65504: use bfloat16 or float32) or for broken weights, "
            "and do not trust what is measured behind it.",
        )


def rank_collapse(sites: Sites, *, initialized: bool = False) -> Iterator[Finding]:
    """`initialized`: its weights are those of `init_skipless_` already, so that they are no remedy."""
    outputs = [place for place in sites.outputs() if min(sites.shape(place)) > 1]
    collapsed = {place[0]: reason for place in outputs if (reason := _collapse(sites, place))}
    if not collapsed:
        return
    first = min(collapsed)
    entry = (first, "sab_in")
    if first == outputs[0][0] and entry in sites.places and (reason := _collapse(sites, entry)):
        text = "The tokens are all alike before the first block: the images, or the patch embedding, are to blame."
        remedy = "Pass pictures that differ from patch to patch, and look at the weights of the patch embedding."
    elif initialized:
        reason = collapsed[first]
        text = f"After block {first} its tokens come out (nearly) all alike; wc.SOAP trains such models all the same."
        remedy = "Train it with wc.SOAP, as in cts-table1; it trained better with alpha=0.5, which leaves them alike."
    else:
        reason = collapsed[first]
        text = f"Rank collapse at block {first}: its tokens come out (nearly) all alike."
        remedy = (
            "Keep the skips (wc.restore_skips) or raise their gains. If they are cut on purpose, begin with "
            "wc.init_skipless_; where tokens come out alike even then, wc.SOAP trains it all the same, best with "
            "alpha=0.5. wc.set_activation(model, 'centred-gelu') keeps them apart, but trained worse (cts-beyond)."
        )
    lasting = blocks_in_words(list(collapsed))
    yield Finding(
        kind="rank_collapse",
        severity="warning",
        layer=first,
        text=text,
        evidence=f"{reason}; collapsed after {lasting} of {len(outputs)}",
        remedy=remedy,
    )


def _collapse(sites: Sites, place: Place) -> str:
    """Why the tokens there count as collapsed, or nothing."""
    cosine, rank = (sites.value(*place, name) for name in ("token_cosine", "effective_rank"))
    full = min(sites.shape(place))
    if cosine is not None and cosine >= COLLAPSED_COSINE:
        return f"mean cosine of two tokens {cosine:.3f} (1: all alike) in {in_words(place)}"
    if rank is not None and full > 1 and (rank - 1) / (full - 1) <= COLLAPSED_RANK:
        return f"effective rank {rank:.2f} of {full} in {in_words(place)}"
    return ""


def _attention_ill_conditioned(sites: Sites) -> Iterator[Finding]:
    gaps = {}
    for layer in sites.layers:
        out, total = sites.log_kappa(layer, "sab_out"), sites.log_kappa(layer, "sab_sum")
        if out is not None and total is not None and math.isfinite(total) and out - total >= SKIP_GAP:
            gaps[layer] = (out, total)
    if not gaps:
        return
    worst = max(gaps, key=lambda layer: gaps[layer][0] - gaps[layer][1])
    out, total = gaps[worst]
    yield Finding(
        kind="attention_ill_conditioned",
        severity="note",
        layer=worst,
        text=f"The output of attention is ill-conditioned in {blocks_in_words(list(gaps))}; the skip carries it.",
        evidence=f"worst in block {worst}: log κ {_shown(out)} of attention alone, {_shown(total)} after its skip",
        remedy="Keep the attention skips: without them this κ is what the next block gets. Graying the input lowers "
        "it; to train without skips, initialize for it.",
    )


def _numerical_floor(sites: Sites, arithmetic: str) -> Iterator[Finding]:
    places = [p for p in sites.places if (row := sites.rows.get((*p, "log_kappa"))) and row.floor_count > 0]
    if places:
        worst = max(places, key=lambda p: sites.rows[*p, "log_kappa"].floor_count)
        row = sites.rows[*worst, "log_kappa"]
        yield Finding(
            kind="numerical_floor",
            severity="note",
            layer=places[0][0],
            text=f"κ is at the numerical floor at {len(places)} of {len(sites.places)} sites: rank-deficient as far as "
            "the arithmetic can tell.",
            evidence=f"most in {in_words(worst)}: {row.floor_count:.1f} of {min(row.n, row.d)} singular "
            f"values at the floor, κ infinite on {row.num_infinite} of {row.num_images} images",
            remedy="Compare effective ranks and spectra there, not κ; a model in float64 (--double, or "
            "model.double()) has a lower floor. A mean of log κ is over the other images only.",
        )
    for name, rounding in _HALF.items():
        if arithmetic.startswith(name):
            limit = -math.log(rounding)
            yield Finding(
                kind="numerical_floor",
                severity="note",
                layer=None,
                text=f"The model computes in {name}: log κ above about {limit:.1f} may be its rounding.",
                evidence=f"an entry is rounded by up to {rounding:.1e} of its size, which alone fills the small "
                "singular values",
                remedy="Diagnose the model in float32 (model.float(), no autocast) to see what lies under it.",
            )


def _heavy_tails(sites: Sites) -> Iterator[Finding]:
    values = {place: value for place in sites.places if (value := sites.value(*place, "kurtosis")) is not None}
    heavy = [place for place, value in values.items() if value >= HEAVY_TAILS]
    if not heavy:
        return
    worst = max(heavy, key=lambda place: values[place])
    yield Finding(
        kind="heavy_tails",
        severity="note",
        layer=heavy[0][0],
        text=f"Activations are heavy-tailed at {len(heavy)} of {len(values)} sites: a few entries dominate.",
        evidence=f"kurtosis {values[worst]:.0f} in {in_words(worst)} (Gaussian: 3)",
        remedy="Quantize by channel, not by tensor, and keep these sites in 16 bits or more.",
    )


def _graying(advice: Advice | None, graying: str) -> Iterator[Finding]:
    if advice is None or advice.log_kappa is None:
        return
    reached = {step.method: step for step in advice.sweep if step.epsilon == advice.epsilon[step.method]}
    reached = {method: step for method, step in reached.items() if step.epsilon < 1 and step.log_kappa is not None}
    if graying:
        text = f"The model grays its input already: {graying}."
        remedy = "Nothing to do; wc.gray(model, …) replaces the setting, wc.ungray(model) removes it."
    elif advice.log_kappa < WELL_CONDITIONED:
        text = f"The input is well conditioned as it is (log κ {advice.log_kappa:.2f}): graying has little to do."
        remedy = "Leave the input as it is."
    elif reached:
        step = reached.get("dct") or reached["svd"]
        text = (
            f"Graying would lower the input's log κ from {advice.log_kappa:.2f} to {step.log_kappa:.2f} at "
            f"ε = {step.epsilon:g} ({step.method.upper()})."
        )
        remedy = f'Train or fine-tune with wc.gray(model, method="{step.method}", epsilon={step.epsilon:g}).'
    else:
        text = f"No ε of the paper's range brings the input's log κ from {advice.log_kappa:.2f} to the target."
        remedy = "Ask for a higher target, or leave the input as it is."
    options = [
        f"{method.upper()} ε = {step.epsilon:g} → {step.log_kappa:.2f}" for method, step in sorted(reached.items())
    ]
    yield Finding(
        kind="graying",
        severity="note",
        layer=None,
        text=text,
        evidence=f"patch matrices {advice.n} × {advice.d}, log κ {advice.log_kappa:.2f}; target {advice.target:.2f}: "
        + (", ".join(options) or "not reached"),
        remedy=remedy,
    )


def _shown(log_kappa: float) -> str:
    return f"{log_kappa:.1f}" if math.isfinite(log_kappa) else "∞"
