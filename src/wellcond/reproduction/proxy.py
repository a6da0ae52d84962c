"""asa-proxy: is κ of a sub-block's output a proxy for κ of its Jacobian? ("Always Skip Attention", Assumption 2.)

The paper argues about the Jacobian of a sub-block and measures the condition of its output instead. Here both are
measured, exactly and in float64, on models small enough for the whole Jacobian (n·d ≤ 2048), and beside them the
condition of the empirical tangent kernel (appendix C): the quantity that the Jacobian stands for.

A curve belongs to one block of one model: eleven inputs, four pictures as they are and grayed by SVD and by DCT as in
the paper's Table 3. A point is the mean of log κ over the pictures; the tangent kernel is that of all four. The weights
are the same for all eleven inputs. The Jacobian is that with respect to the normalised input.

At initialization LayerNorm has no bias, so its tokens sum to zero and n ≥ d of them have rank d − 1 at most. Linear
attention keeps the column space of its input: its output is then rank-deficient whatever the weights, its κ infinite,
and there is nothing to correlate. Such points are counted and left out.
"""

from typing import Any

import torch
from torch import nn

from ..blocks import adapt, normalise, record, sub_block
from ..graying import gray, ungray
from ..jacobian import jacobian_spectrum, ntk_condition
from ..spectral import condition_number
from .claim import Claim
from .models import Shape, build, pictures, train_
from .proxy_verdict import GOOD, judge, short

REGIMES = {  # the ratios n/d of ViT-Tiny at 257 × 192 and of ViT-B at 197 × 768
    "n ≥ d": Shape(side=40, patch=8, width=20, heads=2, depth=4),
    "n < d": Shape(side=24, patch=8, width=40, heads=2, depth=4),
}
QUICK = {
    "n ≥ d": Shape(side=24, patch=8, width=6, heads=2, depth=1),
    "n < d": Shape(side=16, patch=8, width=8, heads=2, depth=1),
}
GRAYINGS: list[tuple[str, float] | None] = [None]
GRAYINGS += [("svd", epsilon) for epsilon in (0.9, 0.8, 0.7, 0.6, 0.5)]
GRAYINGS += [("dct", epsilon) for epsilon in (0.97, 0.95, 0.93, 0.9, 0.85)]
PARTS = {"attention": ("sab_in", "sab_out", "attn"), "mlp": ("sab_sum", "ffn_out", "mlp")}
NUM_OUTPUTS = 64  # of the tangent kernel; its κ grows with them
STEPS, NUM_TRAINING, NUM_PICTURES = 300, 512, 4
VARIANTS = tuple(f"{r}, {a}, {w}" for r in REGIMES for a in ("softmax", "linear") for w in ("initial", "trained"))


def settings(quick: bool) -> dict[str, Any]:
    """Everything that decides a run."""
    shapes = {name: vars(shape) for name, shape in (QUICK if quick else REGIMES).items()}
    names = ["none" if g is None else f"{g[0]} {g[1]:g}" for g in _grayings(quick)]
    training = {"steps": 3 if quick else STEPS, "pictures_trained": 64 if quick else NUM_TRAINING}
    return {
        "shapes": shapes,
        "inputs": names,
        "pictures_measured": NUM_PICTURES,
        "ntk_outputs": NUM_OUTPUTS,
        **training,
    }


def measure(variant: str, seed: int, quick: bool) -> dict[str, Any]:
    """The curves of one model: for each block and sub-block log κ of output, Jacobian and tangent kernel."""
    regime, attention, weights = variant.split(", ")
    shape = (QUICK if quick else REGIMES)[regime]
    model = build(shape, attention, seed)
    found: dict[str, Any] = {"n": shape.num_tokens, "d": shape.width}
    if weights == "trained":
        chosen = settings(quick)
        images, labels = pictures(chosen["pictures_trained"], shape.side, seed)
        found["train_accuracy"] = train_(model, images, labels, chosen["steps"], seed)
    measured, _ = pictures(NUM_PICTURES, shape.side, seed, first=1_000_000)  # not among those of the training
    model.double()
    curves = {(layer, part): _Curve(layer, part) for layer in range(shape.depth) for part in PARTS}
    for graying in _grayings(quick):
        if graying is not None:
            gray(model, *graying, precision="exact")
        _add(curves, model, measured.double())
        ungray(model)
    return {**found, "curves": [curve.plain() for curve in curves.values()]}


class _Curve:
    """log κ of one sub-block of one model over the inputs."""

    def __init__(self, layer: int, part: str) -> None:
        self.layer, self.part = layer, part
        self.out: list[float] = []
        self.jacobian: list[float] = []
        self.ntk: list[float] = []

    def plain(self) -> dict[str, Any]:
        numbers = {name: [short(v) for v in getattr(self, name)] for name in ("out", "jacobian", "ntk")}
        return {"layer": self.layer, "part": self.part, **numbers}


def _add(curves: dict[tuple[int, str], _Curve], model: nn.Module, images: torch.Tensor) -> None:
    """One point on every curve: means over the images, and so infinite where one of them is."""
    with record(model) as sites, torch.no_grad():
        model(images)
        blocks = adapt(model)
        for (layer, part), curve in curves.items():
            source, site, module = PARTS[part]
            X, f = normalise(blocks[layer], part, sites[layer, source]), sub_block(blocks[layer], part)
            curve.out.append(float(condition_number(sites[layer, site], log=True).mean()))
            curve.jacobian.append(float(jacobian_spectrum(f, X, method="exact").log_kappa.mean()))
            curve.ntk.append(float(ntk_condition(getattr(blocks[layer], module), f, X, NUM_OUTPUTS).log_kappa))


def _grayings(quick: bool) -> list[tuple[str, float] | None]:
    return GRAYINGS[::5] if quick else GRAYINGS


CLAIM = Claim(
    name="asa-proxy",
    says=(
        "Always Skip Attention, Assumption 2: the condition number of a sub-block's output is a proxy for that of its "
        "Jacobian. The paper gives no number."
    ),
    measures=(
        "Spearman's rank correlation of log κ of the output and log κ of the exact Jacobian with respect to the "
        "normalised input, in float64, over blocks, inputs (procedural pictures, plain and grayed in ten ways) and "
        "seeds; the interval is a bootstrap over seeds. "
        f"Called a proxy where the whole interval lies above {GOOD}, weakly where it lies above 0, reversed where it "
        "lies under 0, else not shown. Rank-deficient points are counted and left out. Both sub-blocks together also "
        "ask whether the order of attention and MLP agrees."
    ),
    scaled_down=(
        "ViTs of 4 blocks with 26 × 20 (n ≥ d) and 10 × 40 (n < d) tokens, initial weights and 300 steps on procedural "
        "pictures; four pictures a seed."
    ),
    variants=VARIANTS,
    quick_variants=VARIANTS[1:3] + VARIANTS[6:7],
    settings=settings,
    measure=measure,
    judge=judge,
)
