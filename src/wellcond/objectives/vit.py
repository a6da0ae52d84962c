"""timm's plain ViT in pieces: patches, prefix tokens, blocks. What MAE leaves out of it and DINO makes smaller.

Put together again, the pieces are the model's own `forward_features`; they run its own modules, so graying at the
patch embedding, gains of the skips and linear attention hold.

Legend: B images, n patches, P prefix tokens (class, registers), D width.
"""

from collections.abc import Collection
from typing import Any, cast

import torch
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed import resample_abs_pos_embed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

ViT = Any  # a VisionTransformer, whose modules type checkers take for tensors


def check_plain(model: nn.Module, objective: str) -> ViT:
    """The same model; ValueError, with the reason, where it is not a plain ViT."""
    kind: Any = type(model)
    embed = getattr(model, "patch_embed", None)
    embedding = getattr(embed, "original", type(embed))  # of a grayed one
    reason = ""
    if not isinstance(model, VisionTransformer) or kind.forward_features is not VisionTransformer.forward_features:
        reason = "it is no plain ViT of timm"
    elif kind._pos_embed is not VisionTransformer._pos_embed or embedding is not PatchEmbed:
        reason = "its patch embedding or its positions are not the plain ViT's"
    elif model.pos_embed is None:
        reason = "it has no position embedding"
    elif not isinstance(model.patch_drop, nn.Identity) or model.attn_pool is not None:
        reason = "it drops patches or pools by attention"
    if reason:
        raise ValueError(
            f"objective {objective} cannot train {kind.__name__}: {reason}; use e.g. vit_small_patch16_224"
        )
    return model


def embed_patches(model: ViT, images: Tensor, resample: Tensor | None = None) -> Tensor:
    """(B, C, H, W) → (B, n, D): embedded, with positions, of another size than the model's by `resampling`."""
    x = model.patch_embed.proj(images).flatten(2).mT  # not patch_embed itself, which insists on one size
    return model.patch_embed.norm(x) + patch_positions(model, resample)


def patch_positions(model: ViT, resample: Tensor | None = None) -> Tensor:
    """(1, n, D)."""
    positions: Tensor = model.pos_embed[:, num_embedded_prefix(model) :]
    if resample is None:
        return positions
    with torch.autocast(positions.device.type, enabled=False):  # as exact as the positions themselves
        return resample @ positions


def prefix_tokens(model: ViT, batch_size: int) -> Tensor:
    """(B, P, D): class token, then registers, with positions where the model gives them any."""
    tokens = [t for t in (model.cls_token, model.reg_token) if t is not None]
    if not tokens:
        return model.pos_embed.new_zeros(batch_size, 0, model.embed_dim)
    x = torch.cat(tokens, 1)
    if count := num_embedded_prefix(model):
        x = x + model.pos_embed[:, :count]
    return x.expand(batch_size, -1, -1)


def run_blocks(model: ViT, x: Tensor, kept: Collection[int] = ()) -> tuple[Tensor, dict[int, Tensor]]:
    """(B, P + n, D) through all blocks and the final norm; also what the blocks numbered in `kept` gave."""
    x = model.norm_pre(model.pos_drop(x))
    found: dict[int, Tensor] = {}
    for i, block in enumerate(model.blocks):
        x = block(x)
        if i in kept:
            found[i] = x
    return model.norm(x), found


def features(model: ViT, images: Tensor, resample: Tensor | None = None) -> Tensor:
    """(B, D): what the model's head reads, of images of the model's size or another."""
    x = embed_patches(model, images, resample)
    x, _ = run_blocks(model, torch.cat([prefix_tokens(model, len(x)), x], 1))
    return model.forward_head(x, pre_logits=True)


def resampling(model: ViT, image_size: int) -> Tensor | None:
    """(n', n): positions of images of another size as a linear map of the model's; None for the model's own size.

    timm's bicubic interpolation of the unit vectors. As a matrix product its gradient is one, too, the same bits every
    time, which torch's interpolation does not promise on a GPU.
    """
    height, width = model.patch_embed.patch_size
    old, new = model.patch_embed.grid_size, (image_size // height, image_size // width)
    if tuple(old) == new:
        return None
    unit, interpolate = torch.eye(old[0] * old[1])[None], cast(Any, resample_abs_pos_embed)
    return interpolate(unit, list(new), list(old), num_prefix_tokens=0)[0].to(model.pos_embed)


def num_embedded_prefix(model: ViT) -> int:
    """How many prefix tokens have a position of their own."""
    return 0 if model.no_embed_class else model.num_prefix_tokens
