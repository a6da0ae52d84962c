"""cts-rates: the learning rate of each cell of cts-table1, looked for alike.

Rule, written down before the runs: the same grid for every cell, one seed, CIFAR-10, as many epochs as cts-table1 has;
the best is the rate with the highest top-1 of the last epoch, the smaller one of two that are equal. A best rate at an
end of the grid is said to be there. `skipless_cells.RATES` holds what is found, also for the other sets; choosing by
the validation set flatters every cell alike.
"""

from collections.abc import Sequence

from ..config import ReproduceConfig
from .claim import Claim, Judgement, Run
from .comparing import by_seed, mean_row
from .experiments import TrainingClaim
from .skipless_cells import CELLS, EPOCHS, SETS, cell, reached, told
from .training_page import accuracy_sections

SEEDS = 1
GRID = (3e-4, 1e-3, 3e-3)


def best_rates(runs: Sequence[Run]) -> dict[str, float]:
    """Cell → its best rate; only cells of which the whole grid is there."""
    found = {}
    for name in CELLS:
        top1 = {rate: list(by_seed(runs, f"{name}/{rate:g}", reached).values()) for rate in GRID}
        if all(top1.values()):
            found[name] = max(GRID, key=lambda rate: (top1[rate][0], -rate))
    return found


def judge_rates(runs: Sequence[Run]) -> Judgement:
    chosen = best_rates(runs)
    rows = []
    for name in CELLS:
        for rate in GRID:
            if values := list(by_seed(runs, f"{name}/{rate:g}", reached).values()):
                best = chosen.get(name) == rate
                verdict = ("best, at an end of the grid" if rate in (GRID[0], GRID[-1]) else "best") if best else "–"
                rows.append(mean_row(f"{told(name)}, {rate:g}", "–", values[:1], verdict))
    found = "; ".join(f"{told(name)} {rate:g}" for name, rate in chosen.items())
    return Judgement(rows=rows, verdict=f"Best rates: {found}." if found else "Not decided: no cell is whole yet.")


RATES_CLAIM = TrainingClaim(
    name="cts-rates",
    says="Not a claim of the paper: how the learning rates of cts-table1 were chosen.",
    measures=(
        f"Top-1 of the last epoch on CIFAR-10, seed 0, for each cell at the learning rates "
        f"{', '.join(f'{rate:g}' for rate in GRID)}. The best has the highest top-1, of two equal ones the smaller."
    ),
    scaled_down="One seed, one set, three rates.",
    experiments={f"{name}/{rate:g}": cell(SETS["cifar10"], name, rate) for name in CELLS for rate in GRID},
    quick=tuple(f"{name}/{rate:g}" for name in ("skip/adamw", "skipless-init/soap") for rate in GRID),
    judge=judge_rates,
    sections=accuracy_sections,
    epochs=EPOCHS,
)


def claim(options: ReproduceConfig) -> Claim:
    return RATES_CLAIM.claim(options)
