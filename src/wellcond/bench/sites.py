"""The rows of every site as one would compute them without us, and log κ in float64 to judge both by.

Nothing here uses `wellcond.spectral`; only the sites themselves come from `wellcond.blocks.record`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..blocks import record

NUM_CHECKED = 4  # images that are decomposed in float64 on the CPU
Place = tuple[int, str]


@torch.no_grad()
def through_svdvals(model: nn.Module, images: Tensor) -> dict[Place, float]:
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
def in_float64(model: nn.Module, images: Tensor) -> dict[Place, float]:
    """Mean log κ of every site, from the same activations in float64 on the CPU."""
    found: dict[Place, float] = {}

    def measure(layer: int, site: str, X: Tensor) -> None:
        sigma = torch.linalg.svdvals(X.cpu().double())
        found[layer, site] = (sigma[..., 0] / sigma[..., -1]).log().mean().item()

    with record(model, measure):
        model(images)
    return found


def errors(found: dict[Place, float | None], reference: dict[Place, float]) -> dict[str, Any]:
    """The largest |Δ log κ| over the sites that are finite in both, and how many of them are not."""
    differences = [abs(value - reference[place]) for place, value in found.items() if value is not None]
    return {
        "error_log_kappa": max(differences, default=None),
        "num_sites": len(found),
        "num_infinite": len(found) - len(differences),
    }
