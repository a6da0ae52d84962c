"""Ranks that share the weights: each keeps the state of its share and moves it; then the weights go round.

Under DDP all ranks have all gradients, so the statistics, bases and moments of a weight are needed by one rank alone,
its owner (ZeRO, Rajbhandari et al. 2019, arXiv 1910.02054, §5.1; with preconditioners Shi et al. 2023, arXiv
2309.06497, which sends updates where we send weights). Whose a weight is depends on shapes and turns only: products,
refreshes (step by step, for every step waits for the slowest rank) and bytes are all shared out evenly.

What is sent, with R ranks, P bytes of weights and L bytes in the largest share: one all-gather in each step, by which a
rank receives (R − 1) L, or (R − 1)/R P of equal shares; half of what DDP's ring all-reduce moves for the gradients.
Nothing else: bases stay where they are. For as long as it takes there is a copy of the weights. A checkpoint collects
the state, stack by stack.

Weights and not updates are sent, so every rank has the owner's bits, whatever its own arithmetic is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from wellcond.optim.soap.stacks import Stack, rotated_sides
from wellcond.optim.soap.turns import Work, deal

_ALIGNED = 16  # bytes; a multiple of every element's


def work_of(shape: torch.Size, max_precondition_dim: int, frequency: int, phases: Mapping[str, int]) -> Work:
    """What a weight costs, by kind and step; `phases` are the turns of its bases.

    >>> work_of(torch.Size([4, 3]), 10, 5, {"left": 0, "right": 2})
    {('weights', 0): 12, ('products', 0): 84, ('refresh', (5, 0)): 12.8, ('refresh', (5, 2)): 5.4}
    """
    sides, size = rotated_sides(shape, max_precondition_dim), shape.numel()
    found: dict[tuple[str, Any], float] = {("weights", 0): size, ("products", 0): size * sum(sides.values())}
    for name, n in sides.items():
        key = "refresh", (frequency, phases[name])
        found[key] = found.get(key, 0) + n**3 / frequency
    return found


class Sharing:
    """This rank among those of `group`, which all hold the same weights in the same order."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.num_ranks = group, dist.get_rank(group), dist.get_world_size(group)
        self.shares: list[list[nn.Parameter]] = []
        self.num_bytes = 0

    def owners(self, work: Mapping[nn.Parameter, Work]) -> dict[nn.Parameter, int]:
        return dict(zip(work, deal(list(work.values()), self.num_ranks), strict=True))

    def plan(self, stacks: Sequence[Stack]) -> None:
        """What each rank will send."""
        shares = [[p for s in stacks if s.owner == rank for p in s.parameters] for rank in range(self.num_ranks)]
        self.shares = [_widest_first(share) for share in shares]
        longest = max(sum(t.nbytes for t in share) for share in self.shares)
        self.num_bytes = -(-longest // _ALIGNED) * _ALIGNED

    @torch.no_grad()
    def send_round_(self) -> None:
        """The weights of every rank to all ranks, as bytes, in one message."""
        if not self.num_bytes:
            return
        shares = [[p.detach() for p in share] for share in self.shares]
        device = next(t.device for share in shares for t in share)
        own = torch.empty(self.num_bytes, dtype=torch.uint8, device=device)
        every = torch.empty(self.num_ranks * self.num_bytes, dtype=torch.uint8, device=device)
        _copy_(_slots(own, shares[self.rank]), shares[self.rank])
        dist.all_gather_into_tensor(every, own, group=self.group)
        received = [_slots(row, share) for row, share in zip(every.split(self.num_bytes), shares, strict=True)]
        del shares[self.rank], received[self.rank]
        _copy_([t for share in shares for t in share], [slot for slots in received for slot in slots])

    def whole(self, stack: Stack) -> Stack:
        """The stack with its content, a copy on the ranks that do not keep it; all ranks must ask (a collective)."""
        found = stack if stack.kept else Stack(stack.parameters, stack.max_precondition_dim)
        tensors = _widest_first(found.tensors())
        row = torch.empty(sum(t.nbytes for t in tensors), dtype=torch.uint8, device=stack.device)
        if stack.kept:
            _copy_(_slots(row, tensors), tensors)
        dist.broadcast(row, group_src=stack.owner, group=self.group)
        if not stack.kept:
            _copy_(tensors, _slots(row, tensors))
        return found


def _widest_first(tensors: list[Any]) -> list[Any]:
    """Bytes in this order have every element at a multiple of its size."""
    return sorted(tensors, key=lambda t: -t.element_size())


def _slots(row: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Where these tensors lie in their bytes."""
    sizes = [t.nbytes for t in tensors]
    parts = row[: sum(sizes)].split(sizes)
    return [part.view(t.dtype).view(t.shape) for part, t in zip(parts, tensors, strict=True)]


def _copy_(targets: list[Tensor], sources: list[Tensor]) -> None:
    if targets:
        foreach: Any = torch  # its fused list operations have no public names
        foreach._foreach_copy_(targets, sources)
