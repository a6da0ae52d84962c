"""Which images are measured: always the same, so that a curve shows the model change and not the images.

Given by the user, or the first of the first batch that the model is trained on, caught by a hook that is removed at
once. A hook on what `torch.compile` has swallowed is not called; the wrapper that it returns has hooks of its own.
"""

from typing import Any

import torch
from torch import Tensor, nn

from wellcond.blocks.images import check_images


class FirstBatch:
    """A forward pre-hook that keeps the first images of a pass with gradients, once. Copies of the model do not."""

    def __init__(self, model: nn.Module, num_images: int) -> None:
        self.images: Tensor | None = None
        self.num_images = num_images
        self.handle: Any = model.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or self.images is not None:
            return
        images = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.ndim == 4), None)
        if images is None or not len(images) or _capturing(images.device):
            return
        self.images = images[: self.num_images].detach().clone()
        self.remove()

    def remove(self) -> None:
        self.handle.remove()

    def __reduce__(self) -> Any:
        return _nothing_kept, ()


def nothing(_module: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """The hook of a copy."""


def _nothing_kept() -> Any:
    return nothing


def check(images: Any, model: nn.Module) -> Tensor:
    """The user's own images, copied; ValueError if they are none, or none that the model takes."""
    if not isinstance(images, Tensor) or images.ndim != 4 or not len(images):
        what = repr(images) if isinstance(images, str) else f"a {type(images).__name__}"
        what = f"of shape {tuple(images.shape)}" if isinstance(images, Tensor) else what
        raise ValueError(f"images is {what}; pass a number of images, or a tensor of them (B, C, H, W)")
    check_images(model, images)
    return images.detach().clone()


def fitting(images: Tensor, model: nn.Module) -> Tensor:
    """On the device and, if not integers, in the dtype of the model: autocast may have hidden a difference."""
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    if parameter is None:
        return images
    dtype = parameter.dtype if images.is_floating_point() else images.dtype
    return images.to(parameter.device, dtype, non_blocking=True)


def _capturing(device: torch.device) -> bool:
    """Is a CUDA graph being captured? What it computes is not there before the graph is replayed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
