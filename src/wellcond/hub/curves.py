"""log κ while the model trained, as tables of a card: over epochs (median over blocks), and by block at the end."""

import math
import statistics
from collections.abc import Sequence

from ..probes.rows import SITE_WORDS, Row
from ..results import markdown
from ..runs_page.reading import Story

MAX_EPOCHS = 8  # rows of the first table


def tables(story: Story) -> str:
    """Markdown; empty where the run was not measured while it trained."""
    found = {epoch: _log_kappa(rows) for epoch, rows in sorted(story.probed.items())}
    found = {epoch: values for epoch, values in found.items() if values}
    if not found:
        return ""
    last = max(found)
    sites = [site for site in SITE_WORDS if any(site == s for _, s in found[last])]
    over = [[str(epoch), *(_median(found[epoch], site) for site in sites)] for epoch in _spread(list(found))]
    blocks = sorted({layer for layer, _ in found[last]})
    by_block = [[str(b), *(_shown(found[last].get((b, site))) for site in sites)] for b in blocks]
    heads = [SITE_WORDS[site] for site in sites]
    return "\n\n".join(
        [
            "Natural log of κ = σ_max/σ_min of the tokens, mean over a few validation images. Over epochs, median over "
            "the blocks:",
            markdown(["epoch", *heads], over),
            f"By block, at epoch {last}:",
            markdown(["block", *heads], by_block),
        ]
    )


def _log_kappa(rows: Sequence[Row]) -> dict[tuple[int, str], float]:
    """(block, site) → mean over images; infinite where no image has a finite κ."""
    return {
        (row.layer, row.site): math.inf if row.value is None else row.value
        for row in rows
        if row.quantity == "log_kappa" and (row.value is not None or row.num_infinite)
    }


def _median(values: dict[tuple[int, str], float], site: str) -> str:
    there = [value for (_, at), value in values.items() if at == site]
    return _shown(statistics.median(there) if there else None)


def _shown(value: float | None) -> str:
    return "–" if value is None else "∞" if math.isinf(value) else f"{value:.2f}"


def _spread(epochs: list[int]) -> list[int]:
    """At most `MAX_EPOCHS`, the first and the last among them."""
    if len(epochs) <= MAX_EPOCHS:
        return epochs
    step = (len(epochs) - 1) / (MAX_EPOCHS - 1)
    return [epochs[round(i * step)] for i in range(MAX_EPOCHS)]
