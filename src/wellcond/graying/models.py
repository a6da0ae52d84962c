"""Graying inside a model: at its patch embedding, so that every way into the model sees it.

The module that reads the pixels takes a grayed subclass of its own class (`wellcond.subclassing`). timm's patch
embedding around it, which asserts, becomes one that says what is wrong with an image, and what to do.

A patch embedding that is one convolution with kernel = stride takes the grayed patch matrix directly, without folding
it back into an image; for the DCT its last step moves into the weight: (C B) W = C (B W).
"""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn import functional

from wellcond.graying.dct import Rescale, arithmetic, cosines, half_gray_dct, without_autocast
from wellcond.graying.images import TokenGraying, as_one_node, check_divisible, check_pixels, unfold_patches
from wellcond.graying.tokens import grayed
from wellcond.spectral import check_matrices
from wellcond.subclassing import InFront, subclass

Model = TypeVar("Model", bound=nn.Module)
PIT = "ConvEmbedding"  # of overlapping patches, for positions of one size


def gray(
    model: Model,
    method: str = "dct",
    epsilon: float = 0.95,
    *,
    rescale: Rescale = True,
    precision: str = "fast",
    order: str = "rows",
) -> Model:
    """Gray the input tokens of a model of timm or transformers, in training and in evaluation; returns the same object.

    The settings are those of `gray_tokens` and `TokenGraying`; the default precision is "fast", as for training. The
    patches are those of the stride of the patch embedding, also where its convolution overlaps (PVT v2). Parameters
    and state-dict keys stay as they are, so checkpoints move both ways. A second call replaces the settings.
    timm's `set_input_size(patch_size=…)` builds a new patch embedding: gray again after it. An adapter (LoRA) put
    around the convolution that reads the pixels afterwards sees them ungrayed: leave that convolution out.
    """
    _check_module(model)
    reader, patch_size = _pixel_reader(model)
    graying = TokenGraying(patch_size, method, epsilon, rescale=rescale, precision=precision, order=order)
    _check_forward(reader)
    ungray(model)
    reader.__class__ = subclass(_GrayedPatchConv if _is_linear_in_patches(reader) else _Grayed, type(reader))
    # not a submodule: the model's own tree of modules stays what it was
    object.__setattr__(reader, "graying", graying)
    for module in model.modules():
        timms = getattr(module, "proj", None) is reader and hasattr(module, "strict_img_size")  # timm's PatchEmbed
        if timms or (type(module).__name__ == PIT and getattr(module, "conv", None) is reader):
            module.__class__ = subclass(_Telling, type(module))
            object.__setattr__(reader, "told", True)
    return model


def ungray(model: Model) -> Model:
    """Undo `gray`; returns the same object."""
    _check_module(model)
    for module in model.modules():
        if isinstance(module, _Changed):
            kind = type(module)
            if "original" not in vars(kind):  # torch's parametrisations put a class of their own over ours
                raise ValueError(f"the patch embedding became a {kind.__name__} after gray; undo that first")
            if isinstance(module, _Grayed):
                _check_forward(module)
                for name in ("graying", "told"):
                    vars(module).pop(name, None)
            module.__class__ = module.original
    return model


def _check_module(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; pass a module, e.g. timm.create_model({str(model)!r})")


def _check_forward(reader: nn.Module) -> None:
    """A forward of the object itself hides that of its class: graying would have no effect, and no end."""
    if "forward" in vars(reader):
        raise ValueError(
            "the patch embedding has a forward of its own, as accelerate's hooks put there; take it away first"
        )


def patch_size_of(model: nn.Module) -> tuple[int, int]:
    """The patches that `gray` would gray; ValueError, with the reason, for a model that has none."""
    height, width = _pixel_reader(model)[1]
    return int(height), int(width)


def grid_of(model: nn.Module, height: int, width: int) -> tuple[int, int]:
    """Patches in a column and in a row of images of that size; overlapping ones (PiT) may be fewer than H/p · W/q."""
    reader, (p, q) = _pixel_reader(model)
    if not isinstance(reader, nn.Conv2d) or isinstance(reader.padding, str):
        return height // p, width // q
    sides = zip((height, width), reader.padding, reader.kernel_size, reader.stride, strict=True)
    h, w = ((side + 2 * padding - kernel) // stride + 1 for side, padding, kernel, stride in sides)
    return h, w


def graying_of(model: nn.Module) -> TokenGraying | None:
    """The graying that the model has, if any."""
    return next((module.graying for module in model.modules() if isinstance(module, _Grayed)), None)


class _Changed(InFront):
    """Mixed into the class of a module of the patch embedding."""

    _prefix = "Grayed"


class _Telling(_Changed):
    """timm's patch embedding, with reasons for images that do not fit."""

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(x, Proxy):
            return super().forward(x)  # type: ignore[misc]
        check_pixels(x)
        size = self.img_size  # type: ignore[attr-defined]
        if size is not None and (self.original.__name__ == PIT or self.strict_img_size):  # type: ignore[attr-defined]
            if tuple(x.shape[2:]) != tuple(size):
                given, taken = (f"{height}×{width}" for height, width in (x.shape[2:], size))
                raise ValueError(
                    f"images are {given}, and the model takes {taken}; resize them, or create it for those"
                )
        elif not getattr(self, "dynamic_img_pad", False):  # Swin v2 CR has an embedding of its own, which never pads
            check_divisible(x, self.patch_size)  # type: ignore[attr-defined]
        return super().forward(x)  # type: ignore[misc]


class _Grayed(_Changed):
    """Mixed into the class of the module that reads the pixels."""

    graying: TokenGraying
    told = False  # whether a `_Telling` has looked at the size of the images

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, Proxy):
            return as_one_node(self, x)
        return super().forward(self.graying(self._pixels(x)), *args, **kwargs)  # type: ignore[misc]

    def _pixels(self, x: Tensor) -> Tensor:
        """What the model reads of its images: of SigLIP's 384 px 27 patches of 14, and not the rest."""
        check_pixels(x)
        _check_channels(x, self)
        (H, W), (p, q) = x.shape[2:], self.graying.patch_size
        return x[..., : H // p * p, : W // q * q] if self.told and (H % p or W % q) else x

    def extra_repr(self) -> str:
        g = self.graying
        return f"{super().extra_repr()}, graying={g.method} {g.epsilon:g}"  # type: ignore[misc]


class _GrayedPatchConv(_Grayed):
    """A convolution with kernel = stride, as the linear map of patches that it is."""

    def forward(self, x: Tensor) -> Any:
        if isinstance(x, Proxy):
            return as_one_node(self, x)
        g, weight, bias = self.graying, self.weight, self.bias  # type: ignore[attr-defined]
        x = self._pixels(x)
        tokens = unfold_patches(x, g.patch_size, g.order)
        grid = (x.shape[2] // g.patch_size[0], x.shape[3] // g.patch_size[1])
        flat = (weight.permute(0, 2, 3, 1) if g.order == "rows" else weight).reshape(weight.shape[0], -1)
        if g.method == "dct" and not (g.epsilon == 1 and g.rescale is not False) and x.numel():
            check_matrices(tokens, "images")
            with torch.no_grad(), without_autocast(x):
                tokens = half_gray_dct(tokens, g.epsilon, g.rescale, g.precision)
            with without_autocast(x):
                flat = cosines(flat.to(arithmetic(x, g.precision)), -1).to(weight.dtype)
        else:
            tokens = grayed(tokens, "images", g.method, g.epsilon, g.rescale, g.precision)
        y = functional.linear(tokens, flat, bias)
        return y.mT.reshape(y.shape[0], weight.shape[0], *grid)


def _check_channels(x: Tensor, reader: Any) -> None:
    first = reader if isinstance(reader, nn.Conv2d) else reader.proj[0][0]  # XCiT's several
    if x.shape[1] != first.in_channels:
        raise ValueError(f"images have {x.shape[1]} channels, and the model takes {first.in_channels}; give it those")


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


_REMEDY = "put TokenGraying(patch_size=…) in front of the model instead"


def _pixel_reader(model: nn.Module) -> tuple[nn.Module, tuple[int, int]]:
    """The module that turns pixels into tokens, and its patch size; ValueError for a model that has none."""
    name = type(model).__name__
    names = ("patch_embed", "patch_embed1", "patch_embeddings")  # the last is of transformers
    embed = next(filter(None, (_named(model, word) for word in names)), None) or _first(_named(model, "patch_embeds"))
    stem = _named(model, "stem")
    convs = _convolutions(stem)
    if embed is None or convs:  # Visformer and NextViT have both: their embeddings read the stem's features
        if len(convs) == 1 and _is_patchwise(convs[0]):  # ConvMixer, MLP-Mixer
            return convs[0], convs[0].stride  # type: ignore[return-value]
        if stem is None:  # NaFlexViT, TNT and torchvision's have others
            raise ValueError(f"{name} has no patch embedding that gray knows; {_REMEDY}")
        mixes = "a convolutional stem, which mixes pixels across patches"
        raise ValueError(f"{name} has {mixes}, and so no raw patch tokens to gray; {_REMEDY}")
    paths = [path for path, _ in model.named_modules() if path.rsplit(".", 1)[-1] in names]
    if len(paths) > 1:  # a student and its teacher: only one of them would be grayed
        raise ValueError(f"{name} has {len(paths)} patch embeddings ({', '.join(paths)}); gray each model by itself")
    if hasattr(embed, "backbone"):
        stem = f"a convolutional stem ({type(embed.backbone).__name__})"
        raise ValueError(f"{name} is a hybrid: its patch embedding reads features of {stem}, not pixels; {_REMEDY}")
    kind = getattr(embed, "original", type(embed)).__name__
    if kind == "ConvPatchEmbed":  # XCiT: 3×3 convolutions of stride 2 up to the patch size
        return embed, (embed.patch_size, embed.patch_size)  # type: ignore[return-value]
    convs = _convolutions(embed)
    if len(convs) != 1:
        raise ValueError(f"{name}'s patch embedding ({kind}) has {len(convs)} convolutions instead of one; {_REMEDY}")
    return convs[0], convs[0].stride  # type: ignore[return-value]


def _convolutions(module: nn.Module | None) -> list[nn.Conv2d]:
    return [] if module is None else [child for child in module.modules() if isinstance(child, nn.Conv2d)]


def _first(modules: nn.Module | None) -> nn.Module | None:
    """The embedding of the first stage (Twins)."""
    return modules[0] if isinstance(modules, nn.ModuleList) and len(modules) else None


def _named(model: nn.Module, name: str) -> nn.Module | None:
    """The outermost module of that name, also inside a wrapper (DDP, a compiled model, features_only)."""
    found = [(path.count("."), module) for path, module in model.named_modules() if path.rsplit(".", 1)[-1] == name]
    return min(found, key=lambda pair: pair[0])[1] if found else None
