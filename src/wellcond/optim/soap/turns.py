"""Work spread evenly, as a pure function of its costs: bases over steps, weights over ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

Work = Mapping[tuple[str, Any], float]  # (kind, when) → cost


def spread(costs: Sequence[int], num_bins: int) -> list[int]:
    """The bin of each piece of work: the dearest first, each into the bin that has least (Graham's LPT rule).

    >>> spread([1, 8, 3, 4], 2)
    [1, 0, 1, 1]
    """
    loads, bins = [0] * num_bins, [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):  # stable: equal costs keep their order
        lightest = min(range(num_bins), key=loads.__getitem__)
        bins[i] = lightest
        loads[lightest] += costs[i]
    return bins


def deal(work: Sequence[Work], num_ranks: int) -> list[int]:
    """The rank of each piece of work that has several kinds, some of them in certain steps only.

    Every kind in every step lasts as long as its slowest rank. The dearest piece first, each goes to the rank where
    the sum of these longest times grows least; of several, to the one that has least. All kinds count alike: which of
    them is slow is up to the machine.

    >>> deal([{("refresh", step): 5} for step in (0, 0, 1, 1)], 2)
    [0, 1, 0, 1]
    """
    totals: dict[str, float] = {}
    for piece in work:
        for (kind, _), cost in piece.items():
            totals[kind] = totals.get(kind, 0) + cost
    # whole numbers: rounding must not decide between equals
    shares = [{key: round(1e9 * cost / totals[key[0]]) for key, cost in piece.items() if cost} for piece in work]
    loads: list[dict[tuple[str, Any], int]] = [{} for _ in range(num_ranks)]
    longest: dict[tuple[str, Any], int] = {}
    owners = [0] * len(work)

    def growth(rank: int, piece: Mapping[tuple[str, Any], int]) -> tuple[int, int]:
        load = loads[rank]
        more = sum(max(0, load.get(key, 0) + cost - longest.get(key, 0)) for key, cost in piece.items())
        return more, sum(load.values())

    for i in sorted(range(len(work)), key=lambda i: -sum(shares[i].values())):  # stable
        owners[i] = min(range(num_ranks), key=lambda rank: growth(rank, shares[i]))
        load = loads[owners[i]]
        for key, cost in shares[i].items():
            load[key] = load.get(key, 0) + cost
            longest[key] = max(longest.get(key, 0), load[key])
    return owners


def is_due(turn: int, phase: int, frequency: int) -> bool:
    """Is a basis, built at turn 0, refreshed at `turn`? Every `frequency` turns, never before the first of them.

    Earlier the statistics of a long matrix have fewer directions than rows, and a basis of them is arbitrary.

    >>> [t for t in range(30) if is_due(t, phase=3, frequency=10)]
    [13, 23]
    """
    return turn >= frequency and (turn - phase) % frequency == 0
