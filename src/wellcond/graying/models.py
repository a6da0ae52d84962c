"""Graying inside a model: at its patch embedding, so that every way into the model sees it.

The module that reads the pixels changes its class to a grayed subclass of it and keeps everything else: parameters,
state-dict keys, object identity. A class is part of what `torch.compile` guards on and what `copy.deepcopy`
copies; hooks are not guarded on, and a compiled model would go on without them.

A patch embedding that is one convolution with kernel = stride takes the grayed patch matrix directly, without folding
it back into an image; for the DCT its last product moves into the weight: (C D_d) W = C (D_d W).
"""

import functools
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from wellcond.graying.dct import Rescale, dct_coefficients
from wellcond.graying.images import TokenGraying, check_pixels, unfold_patches
from wellcond.graying.tokens import gray_tokens
from wellcond.spectral import check_matrices

Model = TypeVar("Model", bound=nn.Module)


def gray(
    model: Model,
    method: str = "dct",
    epsilon: float = 0.95,
    *,
    rescale: Rescale = True,
    precision: str = "fast",
    order: str = "rows",
) -> Model:
    """Gray the input tokens of a timm model, in training and in evaluation; returns the same object.

    Parameters and state-dict keys stay as they are, so checkpoints move both ways. A second call replaces the settings.
    The patches are those of the stride of the patch embedding, also where its convolution overlaps (PVT v2).
    """
    reader, patch_size = _pixel_reader(model)
    graying = TokenGraying(patch_size, method, epsilon, rescale=rescale, precision=precision, order=order)
    ungray(model)
    reader.__class__ = _grayed_class(type(reader), _is_linear_in_patches(reader))
    # not a submodule: the model's own tree of modules stays what it was
    object.__setattr__(reader, "graying", graying)
    return model


def ungray(model: Model) -> Model:
    """Undo `gray`; returns the same object."""
    for module in model.modules():
        if isinstance(module, _Grayed):
            module.__class__ = module.original
            object.__delattr__(module, "graying")
    return model


class _Grayed:
    """Mixed into the class of the module that reads the pixels."""

    graying: TokenGraying
    original: type

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().forward(self.graying(x), *args, **kwargs)  # type: ignore[misc]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copied and pickled by the original class, which can be imported; the grayed one is made on the spot."""
        return _empty, (self.original, isinstance(self, _GrayedPatchConv)), self.__dict__


class _GrayedPatchConv(_Grayed):
    """A convolution with kernel = stride, as the linear map of patches that it is."""

    def forward(self, x: Tensor) -> Tensor:
        g, weight, bias = self.graying, self.weight, self.bias  # type: ignore[attr-defined]
        check_pixels(x)
        tokens = unfold_patches(x, g.patch_size, g.order)
        grid = (x.shape[2] // g.patch_size[0], x.shape[3] // g.patch_size[1])
        flat = (weight.permute(0, 2, 3, 1) if g.order == "rows" else weight).reshape(weight.shape[0], -1)
        if g.method == "dct" and not (g.epsilon == 1 and g.rescale is not False) and x.numel():
            check_matrices(tokens, "images")
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                tokens, D = dct_coefficients(tokens, g.epsilon, g.rescale, g.precision)
            with torch.autocast(x.device.type, enabled=False):
                flat = (flat.to(D.dtype) @ D.mT).to(weight.dtype)
            tokens = tokens.to(x.dtype)
        else:
            tokens = gray_tokens(tokens, g.method, g.epsilon, rescale=g.rescale, precision=g.precision)
        y = functional.linear(tokens, flat, bias)
        return y.mT.reshape(y.shape[0], weight.shape[0], *grid)


@functools.cache
def _grayed_class(original: type, linear_in_patches: bool) -> type:
    mixin = _GrayedPatchConv if linear_in_patches else _Grayed
    return type(f"Grayed{original.__name__}", (mixin, original), {"original": original, "__module__": __name__})


def _empty(original: type, linear_in_patches: bool) -> nn.Module:
    """A grayed module before its state arrives: whatever in the state refers back to the module finds this one."""
    return object.__new__(_grayed_class(original, linear_in_patches))


def _is_linear_in_patches(reader: nn.Module) -> bool:
    """Is it exactly a convolution over non-overlapping patches, nothing more (no subclass, no parametrisation)?"""
    return type(reader) is nn.Conv2d and _is_patchwise(reader)


def _is_patchwise(conv: nn.Module) -> bool:
    return (
        isinstance(conv, nn.Conv2d)
        and conv.kernel_size == conv.stride
        and conv.kernel_size != (1, 1)
        and conv.padding in ((0, 0), "valid")
        and conv.dilation == (1, 1)
        and conv.groups == 1
    )


def _pixel_reader(model: nn.Module) -> tuple[nn.Module, tuple[int, int]]:
    """The module that turns pixels into tokens, and its patch size; ValueError for a model that has none."""
    name = type(model).__name__
    embed = _named(model, "patch_embed")
    if embed is None:
        stem = _named(model, "stem")
        convs = [] if stem is None else [module for module in stem.modules() if isinstance(module, nn.Conv2d)]
        if len(convs) == 1 and _is_patchwise(convs[0]):  # ConvMixer, MLP-Mixer
            return convs[0], convs[0].stride  # type: ignore[return-value]
        what = "a convolutional stem that mixes pixels across patches" if stem is not None else "no patch embedding"
        raise ValueError(
            f"{name} has {what}: there are no raw patch tokens to gray; use a model with patch_embed, e.g. a ViT"
        )
    if hasattr(embed, "backbone"):
        raise ValueError(
            f"{name} is a hybrid: its patch embedding reads the features of a convolutional stem "
            f"({type(embed.backbone).__name__}), not pixels; "
            "gray a model without that stem, or put TokenGraying(patch_size=…) in front of it"
        )
    kind = getattr(embed, "original", type(embed)).__name__
    if kind == "ConvPatchEmbed":  # XCiT: 3×3 convolutions of stride 2 up to the patch size
        return embed, (embed.patch_size, embed.patch_size)  # type: ignore[return-value]
    convs = [module for module in embed.modules() if isinstance(module, nn.Conv2d)]
    if len(convs) != 1:
        raise ValueError(
            f"{name}'s patch embedding ({kind}) has {len(convs)} convolutions where one was expected; "
            "put TokenGraying(patch_size=…) in front of the model instead"
        )
    return convs[0], convs[0].stride  # type: ignore[return-value]


def _named(model: nn.Module, name: str) -> nn.Module | None:
    """The outermost module of that name, also inside a wrapper (DDP, a compiled model, features_only)."""
    found = [(path.count("."), module) for path, module in model.named_modules() if path.rsplit(".", 1)[-1] == name]
    return min(found, key=lambda pair: pair[0])[1] if found else None
