"""New bases in the place of old ones: those of one size at once, each rank of a group its share."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from wellcond.optim.soap.bases import first_basis, next_basis
from wellcond.optim.soap.stacks import Stack
from wellcond.optim.soap.turns import spread


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

    @property
    def cost(self) -> int:
        return len(self.gram) ** 3


def places_of(stack: Stack) -> list[Place]:
    return [Place(stack, side, i) for i in range(len(stack.parameters)) for side in stack.sides]


def renew_(places: Sequence[Place], how: str, group: dist.ProcessGroup | None) -> None:
    """Put the next bases into their places, the same bits on all ranks; `how` is "first", or as in `next_basis`."""
    owners, rank = [0] * len(places), 0
    if group is not None:
        owners, rank = spread([p.cost for p in places], dist.get_world_size(group)), dist.get_rank(group)
    orders = _compute_([place for place, owner in zip(places, owners, strict=True) if owner == rank], how)
    for place, owner in zip(places, owners, strict=True):
        order = orders.get(place)
        if group is not None:
            if order is None:
                order = torch.empty(len(place.gram), dtype=torch.int64, device=place.gram.device)
            dist.broadcast(place.basis, group_src=owner, group=group)
            if how != "first":
                dist.broadcast(order, group_src=owner, group=group)
        if how != "first":
            assert order is not None
            place.stack.sort_(place.side, place.index, order)


def _compute_(places: Sequence[Place], how: str) -> dict[Place, Tensor]:
    """The bases of this rank, in place; and which direction of the old basis each new one comes from."""
    by_size: dict[tuple, list[Place]] = {}
    for place in places:
        by_size.setdefault((len(place.gram), place.gram.dtype, place.gram.device), []).append(place)
    orders: dict[Place, Tensor] = {}
    for members in by_size.values():
        A = torch.stack([place.gram for place in members])
        if how == "first":
            bases = first_basis(A)
        else:
            bases, found = next_basis(A, torch.stack([place.basis for place in members]), how)
            orders |= dict(zip(members, found, strict=True))
        for place, basis in zip(members, bases, strict=True):
            place.basis.copy_(basis)
    return orders
