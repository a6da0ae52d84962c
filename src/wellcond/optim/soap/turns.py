"""Work spread evenly, as a pure function of its costs: bases over steps, and those of one step over ranks."""

from collections.abc import Sequence


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


def is_due(turn: int, phase: int, frequency: int) -> bool:
    """Is a basis, built at turn 0, refreshed at `turn`? Every `frequency` turns, never before the first of them.

    Earlier the statistics of a long matrix have fewer directions than rows, and a basis of them is arbitrary.

    >>> [t for t in range(30) if is_due(t, phase=3, frequency=10)]
    [13, 23]
    """
    return turn >= frequency and (turn - phase) % frequency == 0
