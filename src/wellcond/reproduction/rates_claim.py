"""cts-rates: the learning rate of each cell of cts-table1, looked for alike, on CIFAR-10 and on Tiny-ImageNet.

Rule, written down before the runs: the same grid for every cell, one seed, as many epochs as cts-table1 has; the best
is the rate with the highest top-1 of the last epoch, the smaller one of two that are equal. A cell is decided when the
three rates in the middle are measured; those further out are for cells whose best has no neighbour on one side, and it
is said where that is so. `skipless_cells.RATES` holds what is found; choosing by the validation set flatters all alike.

AdamW without skips and initialization is best at the smallest rate that was tried on either set, 1e-4; 3e-5, added
since, is its neighbour.
"""

from collections.abc import Sequence

from .claim import Judgement, Run
from .comparing import mean_row, over_seeds
from .experiments import TrainingClaim
from .skipless_cells import CELLS, EPOCHS, NAMES, cell, reached, told
from .training_page import accuracy_sections

SEEDS = 1
MIDDLE = (3e-4, 1e-3, 3e-3)
GRID = (3e-5, 1e-4, *MIDDLE, 1e-2)
LOOKED_FOR = ("cifar10", "tiny-imagenet")


def variant(data: str, name: str, rate: float) -> str:
    """Its name in the results: that of CIFAR-10, the first set, without the set.

    >>> variant("cifar10", "skip/soap", 1e-3), variant("tiny-imagenet", "skip/soap", 1e-3)
    ('skip/soap/0.001', 'tiny-imagenet/skip/soap/0.001')
    """
    return f"{name}/{rate:g}" if data == "cifar10" else f"{data}/{name}/{rate:g}"


def tried(runs: Sequence[Run], data: str, name: str) -> dict[float, float]:
    """Rate → top-1, ascending."""
    found = {rate: over_seeds(runs, variant(data, name, rate), reached) for rate in GRID}
    return {rate: values[0] for rate, values in found.items() if values}


def best_rates(runs: Sequence[Run], data: str) -> dict[str, float]:
    """Cell → its best rate; only cells of which the middle of the grid is there."""
    top1 = {name: tried(runs, data, name) for name in CELLS}
    whole = {name: found for name, found in top1.items() if set(MIDDLE) <= set(found)}
    return {name: max(found, key=lambda rate: (found[rate], -rate)) for name, found in whole.items()}


def judge_rates(runs: Sequence[Run]) -> Judgement:
    rows, said = [], []
    for data in LOOKED_FOR:
        chosen = best_rates(runs, data)
        for name in CELLS:
            found = tried(runs, data, name)
            for rate, top1 in found.items():
                alone = rate in (min(found), max(found))
                verdict = ("best, at an end of those tried" if alone else "best") if chosen.get(name) == rate else "–"
                rows.append(mean_row(f"{NAMES[data]}, {told(name)}, {rate:g}", "–", [top1], verdict))
        best = "; ".join(f"{told(name)} {rate:g}" for name, rate in chosen.items())
        said += [f"Best rates on {NAMES[data]}: {best}."] if best else []
    return Judgement(rows=rows, verdict=" ".join(said) or "Not decided: no cell is whole yet.")


CLAIM = TrainingClaim(
    name="cts-rates",
    says="Not a claim of the paper: how the learning rates of cts-table1 were chosen.",
    measures=(
        f"Top-1 of the last epoch, seed 0, for each cell at the learning rates {', '.join(f'{r:g}' for r in MIDDLE)}, "
        f"and at {', '.join(f'{r:g}' for r in GRID if r not in MIDDLE)} where the best lies beside it. The best has "
        "the highest top-1; of two equal ones it is the smaller."
    ),
    scaled_down="One seed, three rates and more.",
    experiments={
        variant(data, name, rate): cell(data, name, rate) for data in LOOKED_FOR for name in CELLS for rate in GRID
    },
    quick=tuple(variant("cifar10", name, rate) for name in ("skip/adamw", "skipless-init/soap") for rate in MIDDLE),
    judge=judge_rates,
    sections=accuracy_sections,
    epochs=EPOCHS,
)
