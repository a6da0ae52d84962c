"""New bases in the place of old ones: those of one size at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.optim.soap.bases import first_basis, next_basis
from wellcond.optim.soap.stacks import Stack


@dataclass(frozen=True)
class Place:
    """Where one basis lives: the side of one weight of a stack."""

    stack: Stack
    side: str
    index: int

    @property
    def gram(self) -> Tensor:
        return self.stack.sides[self.side].gram[self.index]

    @property
    def basis(self) -> Tensor:
        return self.stack.sides[self.side].basis[self.index]


def renew_(places: Sequence[Place], how: str) -> None:
    """Put the next bases into their places; `how` is "first", or as in `next_basis`."""
    by_size: dict[tuple, list[Place]] = {}
    for place in places:
        by_size.setdefault((len(place.gram), place.gram.dtype, place.gram.device), []).append(place)
    for members in by_size.values():
        A = torch.stack([place.gram for place in members])
        if how == "first":
            bases = first_basis(A)
        else:
            bases, orders = next_basis(A, torch.stack([place.basis for place in members]), how)
            for place, order in zip(members, orders, strict=True):
                place.stack.sort_(place.side, place.index, order)
        for place, basis in zip(members, bases, strict=True):
            place.basis.copy_(basis)
