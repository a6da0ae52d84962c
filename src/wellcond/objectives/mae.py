"""Masked autoencoder: encode the visible patches, paint the hidden ones (He et al., "Masked Autoencoders Are Scalable
Vision Learners", arXiv 2111.06377, §3).

    visible patches + class token → the model's own blocks → decoder, with a mask token for each hidden patch → pixels

The encoder keeps what the model is: with or without skips, with linear attention, grayed. Graying takes the whole image
before masking; with `visible` the matrix of the visible patches alone, so that nothing hidden leaks into it. What is
painted are always the ungrayed pixels, each patch with mean 0 and deviation 1, and only hidden patches count.

Legend: B images, n patches of p·p·C pixels, k of them visible, P prefix tokens, D width, W width of the decoder.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wellcond.config import MAEConfig
from wellcond.graying import gray_tokens, unfold_patches
from wellcond.graying.models import graying_of
from wellcond.objectives import vit
from wellcond.objectives.decoder import Decoder
from wellcond.objectives.objective import Objective
from wellcond.objectives.permuting import permute, take


class MAE(Objective):
    """images (B, C, H, W), order (B, n): a permutation of the patches, of which the first k are visible."""

    def __init__(self, model: nn.Module, config: MAEConfig) -> None:
        super().__init__()
        self.model: vit.ViT = vit.check_plain(model, "mae")
        self.config = config
        self.patch_size: tuple[int, int] = tuple(self.model.patch_embed.patch_size)
        self.num_visible = count_visible(self.model.patch_embed.num_patches, config.mask)
        if config.visible:
            check_visible(self.model)
        self.decoder = Decoder(self.model, config)

    def forward(self, images: Tensor, order: Tensor) -> Any:
        order = torch.cat(split(order, self.num_visible), 1)
        restore = torch.argsort(order, 1)
        x, kept = self.encode(images, order, restore)
        painted = self.decoder(x, kept, order, restore)
        losses = painting_loss(painted, self.targets(images), restore >= self.num_visible)
        return (losses.mean(), {}) if self.training else losses

    def encode(self, images: Tensor, order: Tensor, restore: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
        """(B, P + k, D) after the final norm, and the blocks' outputs that the decoder asks for."""
        x = self.embed_visible(images, order, restore)
        x = torch.cat([vit.prefix_tokens(self.model, len(x)), x], 1)
        x, kept = vit.run_blocks(self.model, x, self.decoder.sources)
        return self.model.fc_norm(x), kept  # models that pool patches have their final norm there

    def embed_visible(self, images: Tensor, order: Tensor, restore: Tensor) -> Tensor:
        """(B, k, D) with positions."""
        k = self.num_visible
        if not self.config.visible:
            return permute(vit.embed_patches(self.model, images), order, restore)[:, :k]
        graying, conv = graying_of(self.model), self.model.patch_embed.proj
        assert graying is not None
        X = take(unfold_patches(images, self.patch_size), order[:, :k])
        X = gray_tokens(X, graying.method, graying.epsilon, rescale=graying.rescale, precision=graying.precision)
        weight = conv.weight.permute(0, 2, 3, 1).flatten(1)  # (row, column, channel), as `unfold_patches`
        x = self.model.patch_embed.norm(functional.linear(X, weight, conv.bias))
        positions = vit.patch_positions(self.model).expand(len(x), -1, -1)
        return x + permute(positions, order, restore)[:, :k]

    def targets(self, images: Tensor) -> Tensor:
        """(B, n, p·p·C): what is to be painted."""
        patches = unfold_patches(images, self.patch_size)
        return normalise_patches(patches) if self.config.normalise else patches


def painting_loss(painted: Tensor, targets: Tensor, hidden: Tensor) -> Tensor:
    """(B,): squared error, mean over a patch's pixels, then over an image's hidden patches; float32 or better."""
    painted = painted.float() if painted.dtype.itemsize < 4 else painted
    errors = (painted - targets).square().mean(-1)
    weights = hidden.to(errors.dtype)
    return (errors * weights).sum(1) / weights.sum(1)


def normalise_patches(patches: Tensor) -> Tensor:
    """Each patch with mean 0 and (unbiased) variance 1; one without contrast stays 0."""
    centred = patches - patches.mean(-1, keepdim=True)
    return centred / (patches.var(-1, keepdim=True) + 1e-6).sqrt()


def split(order: Tensor, num_visible: int) -> tuple[Tensor, Tensor]:
    """(B, k) and (B, n − k): visible and hidden patches, each in reading order.

    >>> [part.tolist() for part in split(torch.tensor([[2, 0, 3, 1]]), 2)]
    [[[0, 2]], [[1, 3]]]
    """
    return order[:, :num_visible].sort(1).values, order[:, num_visible:].sort(1).values


def count_visible(num_patches: int, mask: float) -> int:
    """⌊n (1 − mask)⌋; ValueError where nothing is left to see or to paint.

    >>> count_visible(100, 0.9)
    10
    """
    count = int(round(num_patches * (1 - mask), 6))  # 1 − 0.9 is a little less than 0.1
    if not 0 < count < num_patches:
        raise ValueError(
            f"mae.mask is {mask}, which shows {count} of {num_patches} patches; choose it so that some are seen and "
            "some are hidden"
        )
    return count


def check_visible(model: Any) -> None:
    graying = graying_of(model)
    if graying is None:
        raise ValueError("mae.visible says what is grayed, but the model has no graying; gray it, or leave it out")
    if graying.order != "rows":
        raise ValueError(f"mae.visible grays patches in the order 'rows', and the model's is {graying.order!r}")
