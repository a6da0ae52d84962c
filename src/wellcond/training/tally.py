"""What the host knows of a run: counted from the numbers of its steps, saved with the weights, written as rows.

A row depends on the numbers of its steps only, never on when they arrived, so an interrupted run writes the same bytes.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from wellcond.training.records import Record


@dataclass(kw_only=True)
class Window:
    """Sums over the good steps since the last row."""

    count: int = 0
    loss: float = 0.0
    grad_norm: float = 0.0
    metrics: list[float] = field(default_factory=list)

    def add(self, record: Record) -> None:
        self.count += 1
        self.loss += record.loss
        self.grad_norm += record.grad_norm
        self.metrics = [a + b for a, b in zip(self.metrics or [0.0] * len(record.metrics), record.metrics, strict=True)]

    def means(self, names: tuple[str, ...]) -> dict[str, float | None]:
        sums = {"loss": self.loss, "grad_norm": self.grad_norm, **dict(zip(names, self.metrics, strict=False))}
        return {name: value / self.count if self.count else None for name, value in sums.items()}


@dataclass(kw_only=True)
class Tally:
    """`step`: steps done; `skipped`: of them without an update; `streak`: of these the last ones in a row."""

    step: int = 0
    skipped: int = 0
    streak: int = 0
    window: Window = field(default_factory=Window)
    loss: float | None = None
    means: dict[str, float | None] = field(default_factory=dict)  # of the last row
    evaluation: dict[str, float] = field(default_factory=dict)
    epoch_end_due: bool = False  # stopped between an epoch's last step and what follows it

    def add(self, record: Record) -> None:
        self.streak = self.streak + 1 if record.bad else 0
        self.skipped += record.bad
        if not record.bad:
            self.window.add(record)

    def close_window(self, names: tuple[str, ...]) -> dict[str, float | None]:
        """Means since the last row; the next window begins."""
        means = self.window.means(names)
        self.loss = means["loss"] if means["loss"] is not None else self.loss
        self.window, self.means = Window(), means
        return means

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> "Tally":
        return cls(**{**state, "window": Window(**state["window"])})
