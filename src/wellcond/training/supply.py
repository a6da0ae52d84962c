"""What the loop asks of data, in one place; `wellcond.data` answers it, and so can a test with a tensor.

Everything about step t is a function of (config, t), so "where was the sampler" is the step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from wellcond.config import TrainConfig
from wellcond.training.processes import Processes

Inputs = Mapping[str, Tensor]
Contents = Mapping[str, dict[str, Any]]  # of "train" and of "val", as contents.py writes them


class Supply(Protocol):
    """Batches of one process. B is its share of the global batch."""

    steps_per_epoch: int
    num_classes: int
    classes: Sequence[str]  # their names, in the order of the labels; none where nobody named them
    fingerprint: str  # of the training images: a resumed run must find the same
    val_fingerprint: str  # and of the validation images: its numbers must go on
    contents: Contents  # of both; none: they are known by their fingerprints only

    def indices(self, step: int) -> Tensor:
        """Sample indices of the whole global batch, on the CPU."""
        ...

    def inputs(self, step: int) -> Inputs:
        """What decides this process's batch: tensors of fixed shapes, (B, …) or 0-d, on the device, without a wait.

        Among them "keys" (B,), those of `data.randomness`: dropped paths hang on them, or, without them, on chance.
        """
        ...

    def prepare(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """Augmented images, and labels or what else the objective takes: a pure tensor function of `inputs` or of a
        chunk of them."""
        ...

    def validation(self) -> Iterable[tuple[Tensor, Tensor]]:
        """This process's share of the validation set: images, labels (below 0: padding); for objectives without labels
        images and targets with fixed randomness."""
        ...

    def fixed_images(self, count: int) -> Tensor:
        """The first validation images: the same ones on every process."""
        ...

    def close(self) -> None: ...


OpenSupply = Callable[[TrainConfig, Processes], Supply]
