"""Which ε? What graying would do to the patch tokens of the user's images, and the ε that reaches a target.

log κ of the raw patch matrix, before the patch embedding ("Always Skip Attention", arXiv 2505.01996, Algorithms 1 and
2), averaged over images; graying and decompositions in float64. SVD graying makes it ε · log κ exactly; that is
measured here as well. What DCT graying does depends on the picture.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.diagnosis.result import Advice, GrayingStep
from wellcond.graying import gray_tokens, unfold_patches
from wellcond.spectral import condition_number

SWEEP = {"svd": (1.0, 0.9, 0.8, 0.7, 0.6, 0.5), "dct": (1.0, 0.97, 0.95, 0.93, 0.9, 0.85)}  # Table 3
TARGET_SHARE = 6.15 / 6.72
"""The default target as a share of the log κ before: by so much the best setting of Table 3 (ViT-B, SVD ε = 0.7)
lowers the log κ that arrives at the attention blocks. On raw patch tokens SVD reaches it at this very ε, 0.915, and
both 0.9 and 0.93 gain accuracy in that table."""
MAX_IMAGES = 16
_DIGITS = 3  # an ε is searched to 0.001


@dataclass(frozen=True)
class _Images:
    """Patch matrices (B, n, d), and which of them are finite before: means are over these, whatever graying does."""

    tokens: Tensor
    usable: Tensor  # (B,), bool

    def step(self, method: str, epsilon: float) -> GrayingStep:
        log_kappa = condition_number(gray_tokens(self.tokens, method, epsilon), log=True).double()
        finite = log_kappa.isfinite()
        among = log_kappa[finite & self.usable if self.usable.any() else finite]
        mean = float(among.mean()) if len(among) else None
        return GrayingStep(method=method, epsilon=epsilon, log_kappa=mean, num_infinite=int((~finite).sum()))


def advise(images: Tensor, patch_size: tuple[int, int], target: float | None = None) -> Advice:
    """Advice for normalised images (B, C, H, W), the first 16 of them that are finite. ValueError if it has no ground.

    `target` is a log κ; by default `TARGET_SHARE` of what the images have.
    """
    check_target(target)
    images = images[images.isfinite().flatten(1).all(-1)][:MAX_IMAGES]
    if not len(images):
        raise ValueError("every image holds NaN or inf")
    tokens = unfold_patches(images.detach().to(torch.promote_types(images.dtype, torch.float32)), patch_size)
    before = condition_number(tokens, log=True)
    all_of_them = _Images(tokens, before.isfinite())
    start = all_of_them.step("svd", 1.0)
    if target is None:
        if start.log_kappa is None:
            raise ValueError(
                "the patch matrix of every image is rank-deficient (flat, or without colour), so there is no κ that a "
                "default target could refer to; give target="
            )
        target = TARGET_SHARE * start.log_kappa
    sweep: dict[tuple[str, float], GrayingStep] = {}
    found = {}
    for method, epsilons in SWEEP.items():
        steps = {epsilon: all_of_them.step(method, epsilon) for epsilon in epsilons}
        found[method] = _largest(all_of_them, method, steps, target)
        sweep |= {(method, epsilon): steps[epsilon] for epsilon in sorted(steps, reverse=True)}
    return Advice(
        patch_size=patch_size,
        n=tokens.shape[1],
        d=tokens.shape[2],
        log_kappa=start.log_kappa,
        target=target,
        epsilon=found,
        sweep=tuple(sweep.values()),
    )


def check_target(target: float | None) -> None:
    if target is not None and not (isinstance(target, int | float) and 0 < target < float("inf")):
        raise ValueError(f"target={target!r} is no log κ; give a number above 0, e.g. 7.0")


def _largest(images: _Images, method: str, steps: dict[float, GrayingStep], target: float) -> float | None:
    """The largest ε, to 0.001, that reaches the target; None if the smallest of the sweep does not. Adds its step."""

    def reaches(epsilon: float) -> bool:
        if epsilon not in steps:
            steps[epsilon] = images.step(method, epsilon)
        mean = steps[epsilon].log_kappa
        return mean is not None and mean <= target

    swept = sorted(steps)
    inside = [epsilon for epsilon in swept if reaches(epsilon)]
    if not inside:
        return None
    low = max(inside)
    high = min((epsilon for epsilon in swept if epsilon > low), default=low)
    tried = set(swept)
    while high - low > 1.5 * 10**-_DIGITS:
        middle = round((low + high) / 2, _DIGITS)
        low, high = (middle, high) if reaches(middle) else (low, middle)
    for epsilon in set(steps) - tried - {low}:
        del steps[epsilon]
    return low
