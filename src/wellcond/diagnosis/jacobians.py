"""Jacobian of the attention of one block on one image, as it is and grayed ("Always Skip Attention", Figs. 7 and 8).

With respect to the normalised input, in float64 at the point that the model has computed in its own arithmetic. Up to
2048 inputs and outputs all singular values are computed; beyond that Lanczos gives the largest ones, an estimate of how
the others are spread, an upper bound for the smallest, and so a lower bound for κ.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.blocks import adapt, normalise, record, sub_block
from wellcond.blocks.adapted import Adapted
from wellcond.diagnosis.result import JacobianCurve
from wellcond.graying import TokenGraying
from wellcond.jacobian import JacobianSpectrum, jacobian_spectrum

# (method, ε) of Figs. 7 and 8
GRAYINGS = (("svd", 0.9), ("svd", 0.7), ("svd", 0.5), ("dct", 0.95), ("dct", 0.9), ("dct", 0.85))
NUM_STEPS = 48  # of Lanczos; half of its values have settled by then
LARGE = 65_536  # inputs; from there on half the steps: a step costs as much as seven passes through the block


def attention_curves(
    model: nn.Module, image: Tensor, patch_size: tuple[int, int] | None, reached: set[int]
) -> tuple[list[JacobianCurve], list[str]]:
    """(curves of the block in the middle, why some are missing) for one image (1, C, H, W) as the model takes it.

    `reached`: the layers that images come to; a model may hold another that it does not call, such as a teacher.
    Without a patch size there is only the curve of the image as it is. The model must be kept by the caller.
    """
    images = [image]
    settings: list[tuple[str | None, float | None]] = [(None, None)]
    missing: list[str] = []
    if patch_size is not None:
        try:
            images += [_grayed(image, patch_size, method, epsilon) for method, epsilon in GRAYINGS]
            settings += GRAYINGS
        except ValueError as error:
            missing.append(f"Jacobians of grayed images: {error}")
    layer, block = middle_block(adapt(model, image), reached)
    where = f"Jacobian of the attention of block {layer}"
    if block is None:
        return [], ["Jacobian: no block has attention that reads normalised tokens and writes to all of them"]
    try:
        spectrum = _spectrum(model.eval(), layer, block, torch.cat(images))
    except ValueError as error:
        return [], [f"{where}: {str(error).splitlines()[0]}"]
    except RuntimeError as error:  # torch's own: a dtype or a derivative that the block does not have
        what = f"{type(block.attn).__name__} is not computed, or not differentiated, in float64"
        return [], [f"{where}: its {what} ({str(error).splitlines()[0]})"]
    return [_curve(spectrum, i, layer, *setting) for i, setting in enumerate(settings)], missing


def middle_block(blocks: list[Adapted], reached: set[int]) -> tuple[int, Adapted | None]:
    """(layer, block) in the middle of those that have attention on a normalised input; (-1, None) without any.

    Class-attention stages write to one token; blocks that normalise after the branch, or not at all, have no
    normalised input.
    """
    fit = [i for i in sorted(reached) if blocks[i].reads_normalised and blocks[i].carries_patches]
    return (fit[len(fit) // 2], blocks[fit[len(fit) // 2]]) if fit else (-1, None)


def _grayed(image: Tensor, patch_size: tuple[int, int], method: str, epsilon: float) -> Tensor:
    return TokenGraying(patch_size, method, epsilon, precision="exact")(image.double()).to(image.dtype)


def _spectrum(model: nn.Module, layer: int, block: Adapted, images: Tensor) -> JacobianSpectrum:
    sites: dict[str, Tensor] = {}

    def keep(at: int, site: str, X: Tensor) -> None:
        if (at, site) == (layer, "sab_in"):
            sites[site] = X.detach()

    with torch.no_grad(), record(model, keep):
        model(images)
        X = normalise(block, "attention", sites["sab_in"])
    assert block._context is not None
    shape, args, kwargs = block._context
    block._context = (shape, tuple(_double(a) for a in args), {name: _double(a) for name, a in kwargs.items()})
    steps = NUM_STEPS // 2 if X[0].numel() > LARGE else NUM_STEPS
    return jacobian_spectrum(
        sub_block(block, "attention"), X, module=block, dtype=torch.float64, num_values=steps // 2, max_steps=steps
    )


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _curve(
    spectrum: JacobianSpectrum, image: int, layer: int, method: str | None, epsilon: float | None
) -> JacobianCurve:
    lower, upper = spectrum.kappa_bounds
    first, last = spectrum.ranks
    shown = (
        {}
        if spectrum.complete
        else {
            "nodes": tuple(spectrum.nodes[image].tolist()),
            "ranks": tuple(((first + last) / 2)[image].tolist()),
        }
    )
    return JacobianCurve(
        layer=layer,
        part="attention",
        method=method,
        epsilon=epsilon,
        sigma=tuple(spectrum.sigma[image].tolist()),
        error=tuple(spectrum.error[image].tolist()),
        sigma_min=float(spectrum.sigma_min[image]),
        sigma_min_lower=float(spectrum.sigma_min_lower[image]),
        floor=float(spectrum.floor[image]),
        log_kappa=_finite(spectrum.log_kappa[image]),
        kappa_at_least=_finite(lower[image]),
        kappa_at_most=_finite(upper[image]),
        complete=spectrum.complete,
        n=spectrum.n,
        d=spectrum.d,
        **shown,
    )


def _finite(value: Tensor) -> float | None:
    return float(value) if math.isfinite(value) else None
