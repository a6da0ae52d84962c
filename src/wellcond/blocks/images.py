"""Are these images that the model takes? Asked before a forward pass, whose own errors speak of weights and groups.

What a model takes is read from what timm's models say of themselves: the convolution that sees the pixels, and the
size that the patch embedding was made for. Of a model that says nothing only the images themselves are looked at.
"""

from typing import Any

from timm.models.pit import ConvEmbedding
from torch import Tensor, nn


def check_images(model: nn.Module, images: Any, called: str = "images", *, finite: bool = True) -> None:
    """ValueError, with the remedy, unless `images` is a batch (B, C, H, W) of a size it takes, of finite numbers."""
    if not isinstance(images, Tensor) or images.ndim != 4:
        example = "; of a loader of pairs: (images for images, _ in loader)" if called == "a batch" else ""
        what = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else f"a {type(images).__name__}"
        raise ValueError(f"{called} is {what}; pass a tensor of images (B, C, H, W), without labels{example}")
    if not len(images):
        raise ValueError(f"{called} has shape {tuple(images.shape)}; pass at least one image")
    looked_at = finite and images.device.type == "cpu" and images.is_floating_point()  # CUDA would wait
    if looked_at and not images.isfinite().all():
        raise ValueError(f"{called} holds NaN or inf; remove or replace these values, e.g. torch.nan_to_num(images)")
    check_channels(model, images, called)
    if (size := _only_size(model)) is not None and tuple(images.shape[2:]) != size:
        raise ValueError(
            f"{called} has shape {tuple(images.shape)}, and {type(model).__name__} takes {size[0]} × {size[1]} px; "
            "resize them, or make the model with img_size= theirs"
        )
    height, width = images.shape[2:]
    p, q = (1, 1) if (height, width) == own_size(model) else _whole_patches(model)  # SigLIP: patches of 14 in 384 px
    if height % p or width % q:
        raise ValueError(
            f"{called} has shape {tuple(images.shape)}, and {type(model).__name__} cuts them into patches of {p} × {q} "
            "px; resize them to multiples of these"
        )


def check_channels(model: nn.Module, images: Tensor, called: str = "images") -> None:
    """ValueError, with the remedy, unless `images` (B, C, H, W) have as many channels as the model takes."""
    channels = _channels(model)
    if channels is not None and images.shape[1] != channels:
        remedy = f"; repeat it, images.expand(-1, {channels}, -1, -1)" if images.shape[1] == 1 else ""
        raise ValueError(
            f"{called} has shape {tuple(images.shape)}, {images.shape[1]} channels, and {type(model).__name__} takes "
            f"{channels}{remedy or '; give so many'}"
        )


def check_pixels_are_numbers(images: Tensor) -> None:
    """ValueError for bytes: they are not normalised."""
    if not images.is_floating_point():
        raise ValueError(f"images have dtype {images.dtype}; normalise them first, e.g. (images / 255 - mean) / std")


def _channels(model: nn.Module) -> int | None:
    known: Any = getattr(model, "pretrained_cfg", None)
    name = known.get("first_conv") if isinstance(known, dict) else "patch_embed.proj"  # built by its class
    try:
        first = model.get_submodule(name) if isinstance(name, str) else None
    except AttributeError:  # the model was changed since
        return None
    if isinstance(first, nn.Linear) and (patch := _flattened(model)):
        return first.in_features // (patch[0] * patch[1])
    return first.in_channels if isinstance(first, nn.Conv2d) else None


def own_size(model: nn.Module) -> tuple[int, int] | None:
    """(height, width) that its patch embedding was made for; None of embeddings that take what comes.

    Whether it takes others, too, is another question: `strict_img_size` answers it for the model as it is, and
    evaluation's Backbone for one whose positions may be interpolated.
    """
    embedding: Any = getattr(model, "patch_embed", None)
    size = getattr(embedding, "img_size", None)
    if not (hasattr(embedding, "strict_img_size") or _is_fixed(embedding)) or not isinstance(size, tuple):
        return None
    return int(size[0]), int(size[1])


def _whole_patches(model: nn.Module) -> tuple[int, int]:
    """Of a model of any size, of which its sides must be multiples; (1, 1) where it pads, or says nothing."""
    if patch := _flattened(model):
        return (1, 1) if model.embeds.dynamic_img_pad else patch  # type: ignore[union-attr]
    inner: Any = model if hasattr(model, "patch_embed") else getattr(model, "encoder", model)  # Qwen's, DeepSeek's
    embedding: Any = getattr(inner, "patch_embed", None)
    size = getattr(embedding, "patch_size", None)
    if own_size(inner) is None or getattr(embedding, "dynamic_img_pad", False) or not isinstance(size, tuple):
        return 1, 1
    return int(size[0]), int(size[1])


def _flattened(model: nn.Module) -> tuple[int, int] | None:
    """Size of the patches of NaFlexViT where it flattens them for a linear layer; None of others."""
    embeds: Any = getattr(model, "embeds", None)
    size = getattr(embeds, "patch_size", None)
    return (int(size[0]), int(size[1])) if getattr(embeds, "is_linear", False) and isinstance(size, tuple) else None


def _only_size(model: nn.Module) -> tuple[int, int] | None:
    """Of a model that, as it is, takes nothing else."""
    embedding: Any = getattr(model, "patch_embed", None)
    return own_size(model) if getattr(embedding, "strict_img_size", False) or _is_fixed(embedding) else None


def _is_fixed(embedding: Any) -> bool:
    """PiT's embedding takes any size, and its positions, which are added to the map, do not."""
    return isinstance(embedding, ConvEmbedding)
