"""Conditioning during training (Always Skip Attention, Fig. 4): rows of every block on one fixed batch, and a warning.

Tokens that all point the same way carry no image any more: their mean cosine is near 1 and their effective rank near 1.
That shows in the first epochs of a run without attention skips, long before its loss tells.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from wellcond.blocks import record
from wellcond.probes import Row, probe

QUANTITIES = ("log_kappa", "effective_rank", "token_cosine")
COSINE, RANK = 0.995, 1.5


def check(model: nn.Module, images: Tensor) -> None:
    """ValueError where the blocks are none that can be measured: else a run would end so after its first epoch."""
    try:
        with record(model, images=images.to(next(model.parameters()))):
            pass
    except ValueError as error:
        raise ValueError(f"{error}; or train without measuring it: --monitor-every 0") from None


def measure(model: nn.Module, images: Tensor) -> list[Row]:
    """Rows of the token sites of every block; the model is left as it was."""
    return probe(model, [images], quantities=QUANTITIES, attention=False)


def mean_log_kappa(rows: Sequence[Row]) -> float | None:
    """Mean over blocks of log κ of what enters attention: Table 3's κ_in."""
    values = [r.value for r in rows if r.quantity == "log_kappa" and r.site == "sab_in" and r.value is not None]
    return sum(values) / len(values) if values else None


def collapse(rows: Sequence[Row]) -> str | None:
    """A warning in words where a block's output has lost its directions; None where none has."""
    for row in rows:
        if row.site != "ffn_sum" or row.value is None or min(row.n, row.d) < 4:
            continue
        if row.quantity == "token_cosine" and row.value >= COSINE:
            return f"the tokens after block {row.layer} all point the same way (mean cosine {row.value:.3f})"
        if row.quantity == "effective_rank" and row.value <= RANK:
            return f"the tokens after block {row.layer} span hardly more than one direction (rank {row.value:.2f})"
    return None
