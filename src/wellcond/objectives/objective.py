"""What the loop asks of an objective beyond its loss; most ask for nothing.

In training `objective(images, targets)` → (loss, metrics). In evaluation mode an objective without labels gives the
loss of each image, (B,), and a supervised one without targets the logits.
"""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

Mean = Callable[[Tensor], Tensor]  # over processes


class Objective(nn.Module):
    """Owns the model (its child `model`), heads and teachers."""

    model: nn.Module

    def backbones(self) -> list[nn.Module]:
        """The model, and copies that must stay the same function of their weights."""
        return [self.model]

    def numbers(self, step: int, *, steps_per_epoch: int, epochs: int) -> dict[str, float]:
        """Schedules of its own, pure functions of the step: the values of 0-d buffers of these names in this step."""
        return {}

    def frozen(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Parameters that this step's update leaves as they are where the 0-d tensor beside them is above 0."""
        return []

    def settle_(self, good: Tensor, mean: Mean) -> dict[str, Tensor]:
        """After the update of a step, inside the captured graph; `good` is 0 where the step was skipped, else 1.

        Returns metrics of the whole batch that are no means of those of its parts.
        """
        return {}

    def collapse(self, means: Mapping[str, float | None], epoch: int, epochs: int) -> str | None:
        """A warning in words where the means of the last steps show that nothing is learned; None where they do not.

        After epoch `epoch` of `epochs`.
        """
        return None
