"""asa-kappa: κ of the attention's output against κ of the sums, by block ("Always Skip Attention", Figs. 1b and 3).

The paper's picture: log κ of SA(X) is about 6 and that of the other three sums of a block about 3, on a trained
ViT-Tiny. Here on random weights (timm's initialization), for linear and for softmax attention, with more tokens than
width (257 × 192, a ViT-Tiny of 64 pixels in patches of 4) and with fewer (197 × 768, ViT-B/16 at 224 pixels), in
float64, so that rounding hides nothing above 1e-13 of the largest singular value.

A fifth variant has one head with orthogonal weights and random LayerNorm biases: there Proposition 4.1 applies with
C = 1, as the paper has it, and both sides fit into float64 (with Gaussian weights neither does). With biases of zero
LayerNorm's tokens sum to zero, so n ≥ d of them are rank-deficient, and so is what linear attention makes of them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attention import LinearAttention
from ..blocks import SITES, adapt, normalise, record
from ..blocks.adapted import Adapted
from ..spectral import spectrum
from .claim import Claim, Judgement, Row, Run
from .kappa_bounds import cubic_bound, semidefinite_case
from .kappa_page import sections
from .models import Shape, build, pictures
from .statistics import mean_interval

TINY = Shape(side=64, patch=4, width=192, heads=3, depth=12)
BASE = Shape(side=224, patch=16, width=768, heads=12, depth=12)
ONE_HEAD = "n ≥ d, linear, one orthogonal head"
SHAPES = {
    "n ≥ d, linear": TINY,
    "n ≥ d, softmax": TINY,
    "n < d, linear": BASE,
    "n < d, softmax": BASE,
    ONE_HEAD: replace(TINY, heads=1),
}
_QUICK = Shape(side=16, patch=4, width=12, heads=3, depth=2), Shape(side=16, patch=8, width=24, heads=3, depth=2)
QUICK = {name: _QUICK[shape is BASE] for name, shape in SHAPES.items()} | {ONE_HEAD: replace(_QUICK[0], heads=1)}
NUM_PICTURES = 2
NORM_BIAS, WEIGHT_STD = 0.1, 0.02  # of the variant with one head; the second is timm's
AS_IN_THE_PAPER = "SA(X) far above, as in the paper"
FAR = 1.0  # a gap of log κ from which "far above" is said: a factor e


def settings(quick: bool) -> dict[str, Any]:
    shapes = {name: vars(shape) for name, shape in (QUICK if quick else SHAPES).items()}
    return {"shapes": shapes, "pictures": NUM_PICTURES, "norm_bias": NORM_BIAS, "weight_std": WEIGHT_STD}


def measure(variant: str, seed: int, quick: bool) -> dict[str, Any]:
    """log κ by block and site, spectra of three blocks, and the bounds."""
    shape = (QUICK if quick else SHAPES)[variant]
    model = build(shape, "softmax" if "softmax" in variant else "linear", seed).double()
    if variant == ONE_HEAD:
        _redraw_(model, seed)
    images, _ = pictures(NUM_PICTURES, shape.side, seed)
    sink = _Spectra({0, shape.depth // 2, shape.depth - 1} if seed == 0 else set())
    with record(model, sink), torch.no_grad():
        model(images.double())
        bounds = [_bounds(block, sink.inputs[layer], shape) for layer, block in enumerate(adapt(model))]
    return {"n": shape.num_tokens, "d": shape.width, **sink.plain(), "bounds": bounds}


def _redraw_(model: nn.Module, seed: int) -> None:
    """LayerNorm biases at random; W_Q, W_K, W_V, W_O orthogonal, of the norm that timm's have."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.bias.data.copy_(NORM_BIAS * draw(*module.bias.shape))
        elif isinstance(module, LinearAttention):
            for W in (*module.qkv.weight.data.chunk(3), module.proj.weight.data):
                W.copy_(WEIGHT_STD * len(W) ** 0.5 * torch.linalg.qr(draw(*W.shape)).Q)


def _bounds(block: Adapted, X: Tensor, shape: Shape) -> dict[str, Any]:
    X = normalise(block, "attention", X)
    bound, why = cubic_bound(block.attn, X)
    found: dict[str, Any] = {"cubic": bound, "cubic_why_not": why}
    if not why:
        found["semidefinite"] = {name: round(v, 4) for name, v in semidefinite_case(X, shape.k).items()}
    return found


class _Spectra:
    """The sink of the recording."""

    def __init__(self, shown: set[int]) -> None:
        self.shown = shown
        self.log_kappa: dict[str, list[float | None]] = {site: [] for site in SITES}
        self.num_infinite: dict[str, list[int]] = {site: [] for site in SITES}
        self.above_floor: list[float] = []  # of sab_out: log σ_max/σ_r, r the last singular value above the floor
        self.spectra: list[dict[str, Any]] = []
        self.inputs: list[Tensor] = []

    def __call__(self, layer: int, site: str, X: Tensor) -> None:
        if site == "sab_in":
            self.inputs.append(X)
        sigma, floor = spectrum(X)
        deficient = sigma[:, -1] <= floor
        logs = (sigma[:, 0] / sigma[:, -1]).log()[~deficient]
        self.log_kappa[site].append(round(float(logs.mean()), 4) if len(logs) else None)
        self.num_infinite[site].append(int(deficient.sum()))
        if site == "sab_out":
            last = sigma.gather(1, (sigma > floor[:, None]).sum(1, keepdim=True) - 1)[:, 0]
            self.above_floor.append(round(float((sigma[:, 0] / last).log().mean()), 4))
        if layer in self.shown and site in ("sab_in", "sab_out", "sab_sum"):
            relative = torch.maximum(sigma[0], floor[0]).log() - sigma[0, 0].log()
            logs = [round(v, 3) for v in relative.tolist()]
            floor_of = round(float(floor[0].log() - sigma[0, 0].log()), 3)
            self.spectra.append({"layer": layer, "site": site, "log_sigma": logs, "floor": floor_of})

    def plain(self) -> dict[str, Any]:
        counts = {"num_infinite": self.num_infinite, "sab_out_above_floor": self.above_floor}
        return {"log_kappa": self.log_kappa, **counts, "spectra": self.spectra}


def judge(runs: Sequence[Run]) -> Judgement:
    """A row for each variant: by how much log κ of the attention's output exceeds that of the sum, mean over blocks."""
    rows = [
        _row(v, [run for run in runs if run["variant"] == v]) for v in dict.fromkeys(run["variant"] for run in runs)
    ]
    appears = [row.name for row in rows if row.more["as_in_the_paper"]]
    others = [f"{row.name} ({row.verdict})" for row in rows if row.name not in appears]
    told = (
        "With random weights, SA(X) is far worse conditioned than the sum, as in the paper, in: "
        f"{'; '.join(appears) or 'none'}."
    )
    if others:
        told += f" The paper's picture does not appear in: {'; '.join(others)}."
    return Judgement(rows=rows, verdict=told)


def _row(variant: str, runs: Sequence[Run]) -> Row:
    gaps = [_gap(run) for run in runs]
    known = [gap for gap in gaps if gap is not None]
    sites = {site: _mean([v for run in runs for v in run["log_kappa"][site]]) for site in SITES}
    infinite = sum(sum(run["num_infinite"]["sab_out"]) for run in runs)
    num_matrices = sum(NUM_PICTURES * len(run["num_infinite"]["sab_out"]) for run in runs)
    value, interval = (_mean(known), mean_interval(known)) if len(known) == len(gaps) else (None, None)
    bounds = [bound for run in runs for bound in run["bounds"]]
    more: dict[str, Any] = {"log_kappa": sites, "sab_out_rank_deficient": f"{infinite} of {num_matrices}"}
    more["sab_out_above_floor"] = _mean([value for run in runs for value in run["sab_out_above_floor"]])
    more["cubic_bound"] = _mean([bound["cubic"] for bound in bounds])
    more["cubic_why_not"] = bounds[0]["cubic_why_not"]
    verdict = _verdict(value, interval, infinite)
    more["as_in_the_paper"] = verdict == AS_IN_THE_PAPER
    return Row(
        name=variant,
        paper="≈ 3 (6 against 3)",
        value=value,
        interval=None if interval is None else (round(interval[0], 4), round(interval[1], 4)),
        values=gaps,
        verdict=verdict,
        more=more,
    )


def _gap(run: Run) -> float | None:
    """Mean of log κ(sab_out) − log κ(sab_sum) over the blocks where both are finite on every picture.

    None where those are fewer than half: leaving the worst out of the mean must stay an exception.
    """
    gaps = []
    for layer, (out, total) in enumerate(zip(run["log_kappa"]["sab_out"], run["log_kappa"]["sab_sum"], strict=True)):
        if not run["num_infinite"]["sab_out"][layer] + run["num_infinite"]["sab_sum"][layer]:
            gaps.append(out - total)
    return round(float(np.mean(gaps)), 4) if 2 * len(gaps) >= len(run["log_kappa"]["sab_out"]) else None


def _verdict(value: float | None, interval: tuple[float, float] | None, infinite: int) -> str:
    if value is None:
        return f"{'SA(X)' if infinite else 'the sum'} is rank-deficient, κ infinite: no gap to compare"
    if interval is None:
        return "no interval: one seed"
    low, high = interval
    if low >= FAR:
        return AS_IN_THE_PAPER
    if low > 0:
        return "SA(X) above the sum, but not far"
    return "reversed: the sum is worse" if high < 0 else "not shown"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return round(float(np.mean(known)), 4) if known else None


CLAIM = Claim(
    name="asa-kappa",
    says=(
        "Always Skip Attention, Figs. 1b and 3: the output of self-attention before its skip is far worse conditioned "
        "than the sums of the block, log κ ≈ 6 against ≈ 3 on a trained ViT-Tiny."
    ),
    measures=(
        "log κ of all tokens at five sites of each block, in float64, on procedural pictures; the number is log κ of "
        "SA(X) less log κ of the sum after it, mean over blocks, and its interval that of the mean over seeds (t). "
        f"Far above where the whole interval is {FAR:g} or more. Blocks whose SA(X) is rank-deficient to float64 "
        "are counted and left out; where they are more than half there is no number."
    ),
    scaled_down=f"Random weights instead of trained ones, {NUM_PICTURES} procedural pictures a seed.",
    variants=tuple(SHAPES),
    quick_variants=tuple(SHAPES),
    settings=settings,
    measure=measure,
    judge=judge,
    sections=sections,
)
