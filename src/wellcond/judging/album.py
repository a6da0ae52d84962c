"""What judges found in one model: the numbers, and how it looks on the first pictures of the set."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Sight:
    """A picture as it is, and what is known about it."""

    name: str
    pixels: NDArray[np.uint8]  # (H, W, 3)
    boxes: NDArray[np.float64] | None = None
    mask: NDArray[np.uint8] | None = None


@dataclass(frozen=True, kw_only=True)
class Album:
    """One model. `found[what][layer][index]` is what a judge showed (see `evaluation.Subject`)."""

    name: str
    data: str
    num_layers: int
    patch_size: tuple[int, int] = (1, 1)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    scenes: list[Sight] = field(default_factory=list)
    squares: list[Sight] = field(default_factory=list)
    found: dict[str, dict[int, dict[int, Any]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))

    def show(self, what: str, layer: int, index: int, value: Any) -> None:
        self.found[what][layer][index] = value

    def at(self, what: str, layer: int, index: int) -> tuple[int, Any] | None:
        """(layer, what was found) of that layer, or of the deepest one that is not deeper."""
        below = [known for known in self.found.get(what, {}) if 0 <= known <= layer] if layer >= 0 else [layer]
        for known in sorted(below, reverse=True):
            if index in self.found[what].get(known, {}):
                return known, self.found[what][known][index]
        return None

    def curve(self, judge: str, name: str) -> tuple[list[int], list[float]]:
        """Layers and values of a number; the plain name is the last layer's."""
        points = {}
        for key, value in self.values.get(judge, {}).items():
            what, _, layer = key.partition("@")
            if what == name:
                points[int(layer) if layer else self.num_layers - 1] = value
        return sorted(points), [points[layer] for layer in sorted(points)]
