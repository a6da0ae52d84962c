"""The rows of every site as one would compute them without us, and log κ in float64 to judge both by.

Nothing here uses `wellcond.spectral`; only the sites themselves come from `wellcond.blocks.record`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..blocks import record

NUM_CHECKED = 4  # images that are decomposed in float64 on the CPU
Place = tuple[int, str]


@torch.no_grad()
def through_svdvals(model: nn.Module, images: Tensor) -> dict[Place, float | None]:
    """log κ, both ranks, cosine and kurtosis of every site from `torch.linalg.svdvals`; returns mean log κ.

    A block's input is the output of the block before: it is decomposed once, as `probe` does.
    """
    found: dict[Place, Tensor] = {}

    def measure(layer: int, site: str, X: Tensor) -> None:
        if site == "sab_in" and layer > 0:
            return
        sigma = torch.linalg.svdvals(X)
        p = sigma / sigma.sum(-1, keepdim=True)
        units = nn.functional.normalize(X, dim=-1)
        centred = X - X.mean((-2, -1), keepdim=True)
        squares = centred.square().mean((-2, -1))
        numbers = [
            (sigma[..., 0] / sigma[..., -1]).log(),
            (-torch.xlogy(p, p).sum(-1)).exp(),
            (sigma / sigma[..., :1]).square().sum(-1),
            units.sum(-2).square().sum(-1),
            centred.pow(4).mean((-2, -1)) / squares.square(),
        ]
        found[layer, site] = torch.stack(numbers).mean(-1)

    with record(model, measure):
        model(images)
    values = torch.stack(list(found.values())).cpu()
    return {place: float(row[0]) for place, row in zip(found, values, strict=True)}


@torch.no_grad()
def in_float64(model: nn.Module, image: Tensor) -> dict[Place, float]:
    """log κ of every site of one image (1, C, H, W), from the same activations in float64 on the CPU."""
    found: dict[Place, float] = {}

    def measure(layer: int, site: str, X: Tensor) -> None:
        sigma = torch.linalg.svdvals(X[0].cpu().double())
        found[layer, site] = (sigma[0] / sigma[-1]).log().item()

    with record(model, measure):
        model(image)
    return found


def errors(model: nn.Module, images: Tensor, by: Callable[[Tensor], dict[Place, float | None]]) -> dict[str, Any]:
    """The largest |Δ log κ| of `by` over sites and the first images, where it is finite, and how often it is not."""
    differences, num_infinite = [0.0], 0
    for image in images[:NUM_CHECKED].split(1):
        reference = in_float64(model, image)
        for place, value in by(image).items():
            if value is None:
                num_infinite += 1
            else:
                differences.append(abs(value - reference[place]))
    return {"error_log_kappa": max(differences), "num_checked": len(differences) - 1, "num_infinite": num_infinite}
