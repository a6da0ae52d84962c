"""A bar: a number that a row of a results file must reach, and whether it does."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bar:
    """``quantity`` of the rows of ``part`` on ``device`` that match ``where`` must keep ``limit``.

    ``best=True``: one of the rows has to reach it, of those that are exact enough (``meets_error``). This is
    the bar of a training step, where graying may sit inside the model, before it, or ahead on a side stream.
    ``best=False``: all have to; the worst is shown.
    """

    name: str
    part: str
    device: str
    quantity: str
    limit: float
    sense: str = "at most"
    aim: float | None = None
    best: bool = False
    where: Mapping[str, Any] = field(default_factory=dict)

    def judge(self, rows: Sequence[Mapping[str, Any]], parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The bar, the row that decides it, and ``met``: null (with ``why``) where nothing counts."""
        origin = parts.get(f"{self.part}-{self.device}")
        verdict: dict[str, Any] = {"name": self.name, "quantity": self.quantity, "sense": self.sense}
        verdict |= {"limit": self.limit, "aim": self.aim, "value": None, "row": None, "met": None}
        if origin is None:
            return verdict | {"why": f"part {self.part} was not measured on {self.device}"}
        rows = [r for r in rows if self._concerns(r)]
        if not rows:
            return verdict | {"why": "no such row was measured"}
        wrong = [r for r in rows if not _is_finite(r.get(self.quantity))]
        if wrong and not self.best:
            return verdict | {"row": wrong[0]["name"], "met": False, "why": "a row failed or is not a number"}
        rows = [r for r in rows if r not in wrong]
        if self.best:
            exact_enough = [r for r in rows if r.get("meets_error") is not False]
            if not exact_enough:
                return verdict | {"met": False, "why": "every row misses its error bar"}
            rows = exact_enough
        sign = 1 if self.sense == "at most" else -1
        choose = min if self.best else max
        decisive = choose(rows, key=lambda r: sign * r[self.quantity])
        value = decisive[self.quantity]
        verdict |= {"value": value, "row": decisive["name"]}
        if origin["quick"]:
            return verdict | {"why": "a quick run shows that the benchmark works, not a speed"}
        if origin.get("images") == "procedural":
            return verdict | {"why": "only real photographs count: give --data"}
        return verdict | {"met": bool(sign * value <= sign * self.limit)}

    def _concerns(self, row: Mapping[str, Any]) -> bool:
        here = row["part"] == self.part and row["device"] == self.device and (self.quantity in row or "failed" in row)
        return here and all(row.get(k) in (v if isinstance(v, tuple) else (v,)) for k, v in self.where.items())


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
