"""Rows, looked up by place: (layer, site)."""

import math

from wellcond.probes.rows import Place, Row, is_token_site


class Sites:
    """The rows of the token sites, by (layer, site, quantity), in order of depth."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = {(row.layer, row.site, row.quantity): row for row in rows}
        places = dict.fromkeys((row.layer, row.site) for row in rows if is_token_site(row.site))
        self.places: list[Place] = sorted(places, key=lambda place: place[0])  # within a block as it computes them
        self.layers = sorted({layer for layer, _ in self.places})

    def quantity_at(self, place: Place) -> str:
        """Any quantity that has a row there."""
        return next(quantity for layer, site, quantity in self.rows if (layer, site) == place)

    def shape(self, place: Place) -> tuple[int, int]:
        """n, d."""
        row = self.rows[*place, self.quantity_at(place)]
        return row.n, row.d

    def value(self, layer: int, site: str, quantity: str) -> float | None:
        row = self.rows.get((layer, site, quantity))
        return None if row is None else row.value

    def log_kappa(self, layer: int, site: str) -> float | None:
        """Mean over the images; inf if all are rank-deficient; None if unknown, or if one token has no other."""
        row = self.rows.get((layer, site, "log_kappa"))
        if row is None or min(row.n, row.d) < 2:
            return None
        if row.value is not None:
            return row.value
        return math.inf if row.floor_count > 0 else None

    def outputs(self) -> list[Place]:
        """Where each block ends."""
        last = [(layer, "ffn_sum" if (layer, "ffn_sum") in self.places else "sab_sum") for layer in self.layers]
        return [place for place in last if place in self.places]


def blocks_in_words(layers: list[int]) -> str:
    """
    >>> blocks_in_words([0, 1, 2, 5]), blocks_in_words([3])
    ('blocks 0–2, 5', 'block 3')
    """
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    words = ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"block{'s' if len(layers) > 1 else ''} {words}"
