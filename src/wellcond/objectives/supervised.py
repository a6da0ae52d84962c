"""Cross-entropy with labels, hard or soft (mixup, CutMix, smoothing): both papers' main objective."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from wellcond.objectives.objective import Objective


class Supervised(Objective):
    """images (B, C, H, W), targets (B,) classes or (B, K) probabilities → mean of −Σ_k target_k log p_k.

    Without targets it returns the logits, so that evaluation goes the same way as training (compiled, sharded).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.model(images)
        if logits.dtype.itemsize < 4:  # under autocast
            logits = logits.float()
        return logits if targets is None else (functional.cross_entropy(logits, targets), {})
