"""Which weights are one stack, which rank keeps it, and when its bases have their turn: all from shapes and groups."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from wellcond.optim.soap.renewing import Place
from wellcond.optim.soap.sharing import Sharing, work_of
from wellcond.optim.soap.stacks import Stack, alike, rotated_sides
from wellcond.optim.soap.turns import spread

Groups = list[dict[str, Any]]


class Layout:
    """Weights of one group that are alike are one stack; with ranks that share, one for each of their owners."""

    def __init__(self, max_precondition_dim: int, stagger: bool, sharing: Sharing | None) -> None:
        self.max_precondition_dim, self.stagger, self.sharing = max_precondition_dim, stagger, sharing
        # with the number of their group: torch replaces groups on loading
        self.alike: list[tuple[int, list[nn.Parameter]]] = []
        self.stacks: list[tuple[int, Stack]] = []

    def extend(self, groups: Groups) -> None:
        """Stacks of the groups that have none yet; the others, and whose they are, stay."""
        begun = 1 + max((number for number, _ in self.alike), default=-1)
        late = list(enumerate(groups))[begun:]
        fresh = [(number, members) for number, group in late for members in alike(group["params"])]
        self.alike += fresh
        owners = self._owners(fresh, groups)
        for number, members in fresh:
            for owner in sorted({owners[p] for p in members}):
                part = [p for p in members if owners[p] == owner]
                kept = self.sharing is None or owner == self.sharing.rank
                self.stacks.append((number, Stack(part, self.max_precondition_dim, owner=owner, kept=kept)))
        if self.sharing is not None:
            self.sharing.plan([stack for _, stack in self.stacks])

    def _owners(self, fresh: list[tuple[int, list[nn.Parameter]]], groups: Groups) -> dict[nn.Parameter, int]:
        if self.sharing is None:
            return {p: 0 for _, members in fresh for p in members}
        phases, cap = self.phases(groups), self.max_precondition_dim
        work = {}
        for number, members in fresh:
            frequency = groups[number]["precondition_frequency"]
            work |= {p: work_of(p.shape, cap, frequency, phases[p]) for p in members}
        return self.sharing.owners(work)

    def kept(self, groups: Groups) -> Iterator[tuple[dict[str, Any], Stack]]:
        """The stacks that this rank keeps, with their groups."""
        return ((groups[number], stack) for number, stack in self.stacks if stack.kept)

    def phases(self, groups: Groups) -> dict[nn.Parameter, dict[str, int]]:
        """The turn of each basis, by weight and side: the same on any number of ranks."""
        found: dict[nn.Parameter, dict[str, int]] = {p: {} for _, members in self.alike for p in members}
        by_frequency: dict[int, list[tuple[nn.Parameter, str, int]]] = {}
        for number, members in self.alike:
            sides = by_frequency.setdefault(groups[number]["precondition_frequency"], [])
            for p in members:
                sides += [(p, side, n) for side, n in rotated_sides(p.shape, self.max_precondition_dim).items()]
        for frequency, sides in by_frequency.items():
            costs = [n**3 for *_, n in sides]
            phases = spread(costs, frequency) if self.stagger else [0] * len(costs)
            for (p, side, _), phase in zip(sides, phases, strict=True):
                found[p][side] = phase
        return found

    def turns(self, groups: Groups) -> dict[Stack, list[tuple[Place, int]]]:
        """The bases that this rank keeps, with their phases."""
        phases, found = self.phases(groups), {}
        for _, stack in self.kept(groups):
            weights = enumerate(stack.parameters)
            found[stack] = [(Place(stack, side, i), phases[p][side]) for i, p in weights for side in stack.sides]
        return found
