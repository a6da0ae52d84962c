"""Images ⇄ patch matrices, and graying as a module: images (B, C, H, W) → images.

A patch matrix has a row for each patch, n = (H/p)·(W/p) in reading order, and d = p·p·C columns. Inside a patch the
order is (row, column, channel), `order="rows"`, or (channel, row, column), `order="channels"`: columns permuted, so
SVD graying does not see the difference and DCT graying does.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from wellcond.graying.dct import Rescale
from wellcond.graying.tokens import check_settings, grayed, is_differentiated


def unfold_patches(images: Tensor, patch_size: int | tuple[int, int], order: str = "rows") -> Tensor:
    """Images (B, C, H, W) → patch matrices (B, n, p·p·C).

    >>> unfold_patches(torch.arange(16.0).reshape(1, 1, 4, 4), 2)[0]
    tensor([[ 0.,  1.,  4.,  5.],
            [ 2.,  3.,  6.,  7.],
            [ 8.,  9., 12., 13.],
            [10., 11., 14., 15.]])
    """
    p, q = _pair(patch_size)
    check_order(order)
    if images.ndim != 4:
        raise ValueError(f"images have shape {tuple(images.shape)}; expected (batch, channels, height, width)")
    check_divisible(images, (p, q))
    B, C, H, W = images.shape
    tiles = images.reshape(B, C, H // p, p, W // q, q)
    tiles = tiles.permute(0, 2, 4, 3, 5, 1) if order == "rows" else tiles.permute(0, 2, 4, 1, 3, 5)
    return tiles.reshape(B, (H // p) * (W // q), p * q * C)


def fold_patches(
    tokens: Tensor, image_shape: tuple[int, int, int], patch_size: int | tuple[int, int], order: str = "rows"
) -> Tensor:
    """Patch matrices (B, n, p·p·C) → images (B, C, H, W), image_shape = (C, H, W); undoes `unfold_patches`."""
    p, q = _pair(patch_size)
    check_order(order)
    C, H, W = _image_shape(image_shape)
    expected = ((H // p) * (W // q), p * q * C)
    if tokens.ndim != 3 or tuple(tokens.shape[1:]) != expected or H % p or W % q:
        raise ValueError(
            f"tokens of shape {tuple(tokens.shape)} do not fold into {C}×{H}×{W} images of {p}×{q} patches; "
            f"expected (batch, {expected[0]}, {expected[1]})"
        )
    B = tokens.shape[0]
    if order == "rows":
        tiles = tokens.reshape(B, H // p, W // q, p, q, C).permute(0, 5, 1, 3, 2, 4)
    else:
        tiles = tokens.reshape(B, H // p, W // q, C, p, q).permute(0, 3, 1, 4, 2, 5)
    return tiles.reshape(B, C, H, W)


class TokenGraying(nn.Module):
    """Gray the patches of each image: (B, C, H, W) → same shape, dtype and memory format. No parameters, no state.

    Images are normalised pixels (after mean and std). Arithmetic is float32 or better, under autocast too. The
    default "fast" is meant for training; see `gray_tokens` for the settings.

    >>> TokenGraying(patch_size=2, method="svd", epsilon=0.7)(torch.randn(1, 3, 4, 4)).shape
    torch.Size([1, 3, 4, 4])
    """

    def __init__(
        self,
        patch_size: int | tuple[int, int] = 16,
        method: str = "dct",
        epsilon: float = 0.95,
        *,
        rescale: Rescale = True,
        precision: str = "fast",
        order: str = "rows",
    ):
        super().__init__()
        check_settings(method, epsilon, rescale, precision)
        check_order(order)
        self.patch_size, self.order = _pair(patch_size), order
        self.method, self.epsilon, self.precision = method, float(epsilon), precision
        self.rescale: Rescale = rescale

    def forward(self, images: Tensor) -> Tensor:
        if isinstance(images, Proxy):
            return as_one_node(self, images)
        check_pixels(images)
        # the order does not change SVD graying, and (channel, row, column) moves longer runs of memory
        order = self.order if self.method == "dct" else "channels"
        tokens = unfold_patches(images, self.patch_size, order)
        # half precision is lifted before the arithmetic and lowered once, after it
        tokens = grayed(tokens, "images", self.method, self.epsilon, self.rescale, self.precision)
        _, C, H, W = images.shape
        out = fold_patches(tokens, (C, H, W), self.patch_size, order)
        if not images.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last):
            out = out.contiguous(memory_format=torch.channels_last)
        return out

    def extra_repr(self) -> str:
        return (
            f"patch_size={self.patch_size}, method={self.method!r}, epsilon={self.epsilon}, rescale={self.rescale!r}, "
            f"precision={self.precision!r}, order={self.order!r}"
        )


def as_one_node(module: Any, images: Proxy) -> Any:
    """A module that torch.fx (`create_feature_extractor`) does not look into: graying asks more than a Proxy knows."""
    tracer: Any = images.tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), (images,), {})


def check_pixels(images: Tensor) -> None:
    expected = "(batch, channels, height, width)"
    if not isinstance(images, Tensor):
        raise ValueError(f"images are a {type(images).__name__}; pass a torch.Tensor {expected}")
    if images.is_nested:  # its shape cannot be asked for
        raise ValueError("images are nested; pass those of one size stacked, or one by one")
    if images.layout is not torch.strided:
        raise ValueError(f"images are {images.layout}; pass images.to_dense()")
    if images.ndim != 4 or not images.shape[1]:
        raise ValueError(f"images have shape {tuple(images.shape)}; expected {expected}")
    if not images.is_floating_point():
        raise ValueError(f"images have dtype {images.dtype}; normalise them first, e.g. (images / 255 - mean) / std")
    if is_differentiated(images):
        raise ValueError(
            "images require a gradient, and graying passes none on; use images.detach() or ungray the model"
        )


def check_divisible(images: Tensor, patch_size: tuple[int, int]) -> None:
    (H, W), (p, q) = images.shape[2:], patch_size
    if H % p or W % q or not H or not W:
        raise ValueError(
            f"images of {H}×{W} are not divisible into {p}×{q} patches; crop or resize them to "
            f"{max(H // p, 1) * p}×{max(W // q, 1) * q}, or choose another patch_size"
        )


def check_order(order: str) -> None:
    if order not in ("rows", "channels"):
        raise ValueError(
            f'order={order!r} is unknown; use "rows" (row, column, channel) or "channels" (channel, row, column)'
        )


def _pair(patch_size: int | tuple[int, int]) -> tuple[int, int]:
    pair = tuple(patch_size) if isinstance(patch_size, (tuple, list)) else (patch_size, patch_size)
    if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
        raise ValueError(f"patch_size={patch_size!r} is no patch; use a positive integer or a pair of them")
    return pair


def _image_shape(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    sides = tuple(shape) if isinstance(shape, (tuple, list)) else ()
    if len(sides) != 3 or not all(isinstance(side, (int, torch.SymInt)) and side > 0 for side in sides):
        raise ValueError(f"image_shape={shape!r} is no shape of an image; use (channels, height, width)")
    return sides
