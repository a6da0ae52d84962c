"""What judges may be told. Plain numbers: no torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Options of the judges; each default is named in the judge's own file."""

    layers: Literal["last", "all"] | tuple[int, ...] = "last"
    k: int = 20
    temperature: float = 0.07
    pool: Literal["auto", "class", "mean"] = "auto"
    probe_epochs: int = 50
    segmentation_epochs: int = 20
    segmentation_rate: float = 1e-3
    batch_size: int = 256
    """Pictures of different sizes at once."""
    pictures: int = 8
    """How many, the first of the set, are shown and taken for PCA maps."""
