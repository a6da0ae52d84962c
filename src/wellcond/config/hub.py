"""Models that leave the house: the verb `push`, and what stands beside exported weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .checks import check_at_least, check_one_of
from .data import IMAGENET_MEAN, IMAGENET_STD
from .model import ModelConfig

# Arguments of timm.create_model by which a config could make it fetch or read other weights
_NOT_EXPORTED = {"cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}


@dataclass(frozen=True, kw_only=True)
class PushConfig:
    """Publish a run on the Hugging Face hub: a model card and safetensors that timm and wc.load read.

    With --dry-run it writes the folder and uploads nothing.
    """

    run: Path
    """The run directory."""
    name: str
    """OWNER/NAME on the hub, or NAME of your own."""
    out: Path | None = None
    """Folder that is uploaded; none: hub/ in the run's directory."""
    dry_run: bool = False
    """Only write the folder; needs no network."""
    license: str | None = None
    """Licence of the weights as the hub writes it, e.g. apache-2.0; none: the card says that none is stated."""
    private: bool = False
    """Make the repository private, where it is new."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """wellcond.json: what weights alone do not say of a model, read back by `wc.load`."""

    format: Literal[1] = 1
    """Of this file."""
    model: ModelConfig
    precision: Literal["bf16", "float32", "float64"] = "float32"
    """As the run had it; bf16 has float32 weights."""
    skip_gain: float | None = None
    """Gain of the skips that are cut, of a run that was stopped while it annealed them."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Mean of each channel of the images, of pixels in 0 … 1."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Standard deviation of each channel."""
    step: int = 0
    """Steps that it was trained for."""

    def __post_init__(self) -> None:
        check_one_of("format", self.format, (1,))
        check_at_least("step", self.step, 0)
        if found := sorted(_NOT_EXPORTED & {name for name, _ in self.model.options}):
            raise ValueError(f"model.options has {found[0]!r}, which would bring other weights; leave it out")
