"""The mean loss over a set, for objectives that have no labels to count."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from wellcond.blocks.modes import evaluating


@torch.no_grad()
def sum_losses(
    objective: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor, bool]],
    *,
    forward: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """(2,) float64: the sum of all images' losses, and how many they were.

    Batches are (images, targets, whether they count); `forward` stands in for the objective's call, which in evaluation
    mode gives the loss of each image. The objective is then left as it was.
    """
    total: Tensor | None = None
    with evaluating(objective):
        for images, targets, counts in batches:
            losses = (forward or objective)(images, targets).double()
            found = torch.stack([losses.sum(), losses.new_full((), len(losses))]) * counts
            total = found if total is None else total + found
    if total is None:
        raise ValueError("there are no images to evaluate on; check the validation source")
    return total
