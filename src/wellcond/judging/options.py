"""The options of `wellcond evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Judge a trained run; the numbers go into its evaluation.json, too."""

    run: Path
    """The run directory: the --out of wellcond train."""
    judges: Annotated[tuple[Literal["accuracy"], ...], tyro.conf.arg(name="with")] = ("accuracy",)
    """Which judges: accuracy (top-1 and top-5)."""
    data: str | None = None
    """Other pictures than the run's own: a folder with train/ and val/, parquet shards, …"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where there is one."""
    batch_size: int = 256
    """Images at once."""

    def __post_init__(self) -> None:
        if not self.judges:
            raise ValueError("with names no judge; say --with accuracy")
        if self.batch_size < 1:
            raise ValueError(f"batch size is {self.batch_size}; choose 1 or more")
