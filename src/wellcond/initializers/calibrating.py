"""A temperature for every block, found on a batch so that attention stays as diagonal as it should, over depth.

Without skips tokens grow alike from block to block, their logits come closer together, and attention, diagonal in the
first block, flattens; that mixes them further ("Cutting the Skip", Proposition 1, read down the blocks). A larger
temperature in the later blocks holds it. One forward pass: each block is set when the tokens of those before reach it.

The mean mass that a token gives to itself is not monotone in τ: where some tokens prefer others, it falls again once
the softmax is nearly hard. The smallest τ of a grid that reaches the target is refined; if none does, the best stays.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.blocks import adapted_blocks, attention_map, normalise, record
from wellcond.blocks.depth import as_number
from wellcond.blocks.images import check_images, check_pixels_are_numbers
from wellcond.blocks.matrices import check_finite, matrices_of
from wellcond.blocks.modes import evaluating, uncached_autocast
from wellcond.initializers.drawing import LARGEST

_STEP = 2**0.5  # of the grid
_HALVINGS = 7  # of a step: τ to a third of a per cent


def calibrate_(
    model: nn.Module, images: Tensor, *, target: float | None = None, limits: tuple[float, float] = (0.25, 4.0)
) -> list[float]:
    """Scale W_Q of every block so that the mean diagonal attention mass on `images` is `target`; returns the τ's.

    `init_skipless_(model, temperature=τ's, …)` gives the same model again, without the images.

    - `images`: normalised as the model takes them, (B, C, H, W); brought to its device and dtype.
    - `target`: mass in (0, 1); None: that of the first block as it is.
    - `limits`: smallest and largest τ. A block that reaches the target nowhere between them gets its best τ. Far above
      4 the softmax is nearly hard, and its gradients vanish.

    The model keeps its skips, or their absence; it runs in eval mode without gradients and is otherwise as it was.
    Call it on a model whose skips are cut: with skips other tokens reach the blocks.
    """
    check_images(model, images)
    check_pixels_are_numbers(images)
    goal = None if target is None else _share(target)
    grid = _grid(limits)
    matrices = matrices_of(model, to_write=True)
    check_finite(model)
    for block in matrices:
        if block.normalised:
            raise ValueError(
                f"block {block.name!r} normalises its queries and keys: a factor on W_Q changes nothing there, "
                "so nothing can be calibrated; leave it out"
            )
    found: list[float] = []

    def set_block(layer: int, site: str, X: Tensor) -> None:
        nonlocal goal
        if site != "sab_in" or layer != len(found):
            return
        block, W_Q = blocks[layer], matrices[layer].query
        Y, own = normalise(block, "attention", X), W_Q.clone()

        def mass(tau: float) -> float:
            W_Q.copy_(tau * own)
            return float(attention_map(block, Y).diagonal(dim1=-2, dim2=-1).double().mean())

        try:
            found.append(1.0 if goal is None else _solve(mass, goal, grid))
            goal = mass(1.0) if goal is None else goal
        finally:
            W_Q.copy_(own)
        W_Q.mul_(found[-1])

    images = images.to(matrices[0].query)
    # with a cache autocast would go on with the first W_Q that it has cast
    with evaluating(model), uncached_autocast(images.device.type), record(model, set_block), torch.no_grad():
        blocks = adapted_blocks(model)
        model(images)
    return found


def _solve(mass: Callable[[float], float], goal: float, grid: list[float]) -> float:
    """The smallest τ with that mass, between two of the grid; where there is none, the τ of the grid with most."""
    reached: list[float] = []
    for number, tau in enumerate(grid):
        reached.append(mass(tau))
        if reached[-1] >= goal:
            return _between(mass, goal, grid[number - 1], tau) if number else tau
    return grid[max(range(len(grid)), key=lambda i: reached[i])]


def _between(mass: Callable[[float], float], goal: float, low: float, high: float) -> float:
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if mass(middle) >= goal else (middle, high)
    return high


def _grid(limits: Any) -> list[float]:
    pair = isinstance(limits, tuple | list) and len(limits) == 2
    low, high = (as_number(limit) for limit in limits) if pair else (0.0, 0.0)
    if not 1 / LARGEST <= low <= high <= LARGEST:
        raise ValueError(f"limits is {limits!r}; give the smallest and the largest temperature, e.g. (0.25, 4)")
    grid = [low]
    while grid[-1] * _STEP < high:
        grid.append(grid[-1] * _STEP)
    return [*grid, high] if high > low else grid


def _share(target: Any) -> float:
    if not 0 < as_number(target) < 1:
        raise ValueError(f"target is {target!r}; give a diagonal mass in (0, 1), for example 0.9, or None")
    return float(target)
