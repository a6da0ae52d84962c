"""How exact the timed path was: the same graying, the same batch, under the same autocast, against float64.

Two errors, because graying inside a model never shows its pixels (the last DCT product can be folded into
the patch embedding): that of the grayed tokens, from ``TokenGraying`` of the same precision; and, inside a
model, that of the patch embedding's output, beside what bf16 alone does to the embedding of exactly grayed
pixels.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import oracle
from .variants import Variant

Autocast = Callable[[], AbstractContextManager]


class Accuracy:
    """Errors on the first ``count`` pictures of ``batch``; float64 results are computed once per method."""

    def __init__(self, batch: Tensor, *, patch_size: int, count: int, autocast: Autocast):
        self.batch, self.patch_size, self.autocast = batch, patch_size, autocast
        self.count = min(count, len(batch))
        self.tokens = oracle.tokens_of(batch[: self.count], patch_size)
        self.expected: dict[str, Tensor] = {}
        self.known: dict[tuple[str, str], dict[str, float]] = {}

    def expected_tokens(self, variant: Variant) -> Tensor:
        assert variant.method is not None
        assert variant.epsilon is not None
        if variant.method not in self.expected:
            self.expected[variant.method] = oracle.gray(self.tokens, variant.method, variant.epsilon)
        return self.expected[variant.method]

    def of_tokens(self, variant: Variant, graying: nn.Module) -> dict[str, float]:
        """Errors of ``graying``, run on the whole batch as in the timing."""
        assert variant.method
        key = (variant.method, variant.precision)
        if key not in self.known:
            with torch.no_grad(), self.autocast():
                grayed = graying(self.batch)[: self.count]
            result = oracle.tokens_of(grayed, self.patch_size)
            self.known[key] = oracle.matrix_errors(result, self.expected_tokens(variant), self.tokens)
        return self.known[key]

    def of_embedding(self, variant: Variant, model: nn.Module) -> dict[str, float]:
        """Relative errors of the patch embedding's output (B, n, D), the worst over pictures."""
        embedding: nn.Module = model.patch_embed  # pyright: ignore[reportAssignmentType]
        projection: nn.Conv2d = embedding.proj  # pyright: ignore[reportAssignmentType]
        expected = self.expected_tokens(variant)
        W = projection.weight.detach().cpu().double()
        exact = expected @ W.permute(2, 3, 1, 0).reshape(-1, len(W)) + _bias(projection).cpu().double()
        pixels = oracle.images_of(expected, self.batch.shape[-1], self.patch_size).to(self.batch)
        with torch.no_grad(), self.autocast():
            got = embedding(self.batch[: self.count])
            rounded = functional.conv2d(pixels, projection.weight, _bias(projection), stride=self.patch_size)
        return {
            "error_embedding": _relative(got, exact),
            "error_embedding_rounding": _relative(rounded.flatten(2).transpose(1, 2), exact),
        }


def _bias(projection: nn.Conv2d) -> Tensor:
    if projection.bias is None:
        return projection.weight.new_zeros(projection.out_channels)
    return projection.bias.detach()


def _relative(result: Tensor, expected: Tensor) -> float:
    difference = torch.linalg.matrix_norm(result.cpu().double() - expected)
    return (difference / torch.linalg.matrix_norm(expected)).max().item()
