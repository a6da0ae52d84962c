"""What a frozen backbone says of its pictures: tokens of any block, pooled or patch by patch, and attention keys.

A layer is the output of a block of blocks/, counted from 0, with or without skips. Its tokens go through the model's
final norm, as DINO's evaluations do for every layer, so that what is compared has one scale; for the last layer that is
what the model's own head reads. `pooled` is the class token, or the mean of the patches where the head reads that.

Only one batch is in memory: `read` is called once for each, and hooks nothing that outlives it.

Legend: B pictures (3, H, W), patches of p × q pixels, n = H/p · W/q of them, d width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from timm.layers.format import Format
from torch import Tensor, nn
from torch.nn.functional import pad

from wellcond.blocks import adapted_blocks, attention_keys, check_keys, normalise, record
from wellcond.blocks.images import check_channels, own_size
from wellcond.blocks.modes import evaluating
from wellcond.blocks.prefix import num_prefixes
from wellcond.graying.models import grid_of, patch_size_of

Kind = Literal["pooled", "patches", "keys"]
Layers = Literal["last", "all"] | tuple[int, ...]
Pool = Literal["auto", "class", "mean"]
POOLED_FIRST = ("Qwen3VitClassifier", "DeepseekVitClassifier")  # whose norm after the mean is called norm, too
MEANS = ("avg", "avgmax", "max")  # of timm's words for what a head reads: those that are no token


class Backbone:
    """A model that is only read. `forward` stands in for its call, e.g. in the precision of its training.

    `images`, a small batch, is what blocks of no known family are proven on (see `blocks.adapt`); noise if none is
    given. `pool`: the class token, or the mean of the patches; auto takes the class token where the blocks carry one
    and the head reads it.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[Tensor], Any] | None = None,
        images: Tensor | None = None,
        *,
        pool: Pool = "auto",
    ) -> None:
        self.model, self.forward = model, forward or model
        self.patch_size = _patch_size(model)
        self.own_size = own_size(model)
        self.images = _noise(model, self.own_size or (224, 224)) if images is None else images
        with self._recording(lambda *_: None):
            blocks = adapted_blocks(model)
            numbers = zip(num_prefixes(model, blocks), blocks, strict=True)
            self.num_prefix = [number or 0 for number, block in numbers if block.carries_patches]
        self.num_layers = len(self.num_prefix)
        self.grids: dict[tuple[int, int], tuple[int, int]] = {}  # size of a picture → patches
        self.norm, self.norm_comes_last = _final_norm(model)
        has_class_token = getattr(model, "cls_token", None) is not None and self.num_prefix[-1] > 0
        if pool == "class" and not has_class_token:
            raise ValueError(f"pool is 'class', but the blocks of {type(model).__name__} have no class token; say mean")
        # a head on the mean of the patches leaves the class token of the last blocks untrained
        mean = pool == "mean" or (pool == "auto" and getattr(model, "global_pool", None) in MEANS)
        self.takes_class_token, self.needs_class_token = has_class_token and not mean, pool == "class"

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def layers(self, wanted: Layers) -> tuple[int, ...]:
        """Numbers of layers from 0, ascending; ValueError for one that there is not."""
        if wanted == "last":
            return (self.num_layers - 1,)
        if wanted == "all":
            return tuple(range(self.num_layers))
        for layer in wanted:
            if not isinstance(layer, int) or not 0 <= layer < self.num_layers:
                last = self.num_layers - 1
                raise ValueError(f'layer {layer!r} is none of the model\'s, which are 0 … {last}; or "last", "all"')
        return tuple(sorted(set(wanted)))

    def quarters(self) -> tuple[int, ...]:
        """The layers at 1/4, 1/2, 3/4 and all of the depth: 2, 5, 8, 11 of 12 (the papers' {3, 6, 9, 12})."""
        return tuple(sorted({-(-self.num_layers * part // 4) - 1 for part in (1, 2, 3, 4)}))

    def check_keys(self) -> None:
        """ValueError if a layer has no attention keys, or none by which a picture can be cut."""
        with self._recording(lambda *_: None):
            for block in adapted_blocks(self.model):
                if block.carries_patches:
                    check_keys(block)
        p, q = self.patch_size
        if grid_of(self.model, 32 * p, 32 * q) != (32, 32):
            raise ValueError(
                f"the patches of {type(self.model).__name__} overlap and do not tile a picture, so no object can be "
                "cut out along them; use a plain vision transformer"
            )

    def takes(self, height: int, width: int) -> bool:
        """Can pictures of this size be read, once padded to whole patches?"""
        return self.own_size is None or (height, width) == self.own_size or _resizable(self.model)

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Patches in a column and in a row."""
        size = images.shape[2], images.shape[3]
        if size not in self.grids:  # asked for every layer of every batch, and all modules are looked through
            self.grids[size] = grid_of(self.model, *size)
        return self.grids[size]

    def grid_of(self, images: Tensor, number: int) -> tuple[int, int]:
        """The same of a layer with so many patches; a pyramid halves its grid from stage to stage."""
        for up in (1, 0):  # an odd side is padded (Swin, PVT v2) or cut off (Twins)
            h, w = self.grid(images)
            while h * w > max(1, number):
                h, w = (h + up) // 2, (w + up) // 2
            if h * w == number:
                return h, w
        raise ValueError(
            f"{type(self.model).__name__} has {number} tokens beside its prefix, which are no grid of a picture with "
            f"{' × '.join(map(str, self.grid(images)))} patches; judge a plain vision transformer"
        )

    @torch.no_grad()
    def read(self, images: Tensor, layers: tuple[int, ...], kind: Kind) -> dict[int, Tensor]:
        """{layer: (B, d) pooled, (B, n, d) patches in reading order or (B, n, d) keys} of whole-patch pictures."""
        kept: dict[int, Tensor] = {}
        wanted = frozenset(layers)
        self._check(images)

        def sink(layer: int, site: str, X: Tensor) -> None:
            if layer not in wanted:
                return
            if site == "sab_in":
                self.grid_of(images, X.shape[1] - self.num_prefix[layer])
            if kind != "keys" and site.endswith("_sum"):  # the last of a block's sums is its output
                kept[layer] = X
            elif kind == "keys" and site == "sab_in":
                kept[layer] = self._keys(layer, X)

        with self._recording(sink), _any_size(self.model, images, self.own_size):
            self.forward(images)
        if kind == "keys":
            return {layer: _finite(kept[layer], layer) for layer in layers}
        return {layer: _finite(self._finished(kept.pop(layer), layer, kind), layer) for layer in layers}

    def _keys(self, layer: int, X: Tensor) -> Tensor:
        block = adapted_blocks(self.model)[layer]
        with torch.autocast(X.device.type, enabled=False):  # bfloat16 would blur which cosines are above a threshold
            X = X.to(next(block.parameters()).dtype)
            return attention_keys(block, normalise(block, "attention", X))[:, self.num_prefix[layer] :]

    def _finished(self, X: Tensor, layer: int, kind: Kind) -> Tensor:
        first = self.num_prefix[layer]
        if kind == "patches":
            return self._normed(X[:, first:])
        if self.takes_class_token and first:
            return self._normed(X[:, 0])
        if self.needs_class_token:
            raise ValueError(f"pool is 'class', but layer {layer} comes before the class token does; say mean")
        if self.norm_comes_last:
            return self._normed(X[:, first:].mean(1))
        return self._normed(X[:, first:]).mean(1)

    def _normed(self, X: Tensor) -> Tensor:
        """A pyramid's earlier stages are narrower than its norm, and stay as they are."""
        if self.norm is None or tuple(self.norm.normalized_shape) != (X.shape[-1],):
            return X.float() if X.dtype != torch.float64 else X
        return self.norm(X.to(self.norm.weight.dtype if self.norm.weight is not None else torch.float32))

    def _check(self, images: Tensor) -> None:
        check_channels(self.model, images)
        height, width = images.shape[2:]
        p, q = self.patch_size
        if height < p or width < q:
            raise ValueError(
                f"the picture is {width} × {height} px, smaller than a patch of {q} × {p}; give larger ones"
            )
        if height % p or width % q:
            raise ValueError(f"the picture is {width} × {height} px, not whole patches of {q} × {p}; pad or resize it")
        if not self.takes(height, width):
            own_height, own_width = self.own_size or (0, 0)
            raise ValueError(
                f"{type(self.model).__name__} takes pictures of {own_width} × {own_height} px only, got "
                f"{width} × {height}; resize them"
            )

    @contextmanager
    def _recording(self, sink: Callable[[int, str, Tensor], None]) -> Iterator[None]:
        with evaluating(self.model), record(self.model, sink, self.images):
            yield


def _patch_size(model: nn.Module) -> tuple[int, int]:
    try:
        return patch_size_of(model)
    except ValueError as error:  # it speaks of graying
        raise ValueError(
            f"{type(model).__name__} has no patch embedding that is one convolution, and so no features by patch; "
            "judge a vision transformer that has one, e.g. vit_tiny_patch16_224"
        ) from error


def _noise(model: nn.Module, size: tuple[int, int]) -> Tensor:
    """Two pictures, the same at every call."""
    like = next(model.parameters())
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0), device="cpu").to(like)


def pad_to_patches(images: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """(…, H, W) with zeros to the right and below, up to whole patches.

    >>> pad_to_patches(torch.ones(1, 3, 20, 33), (16, 16)).shape[-2:]
    torch.Size([32, 48])
    """
    missing = [-side % patch for side, patch in zip(images.shape[-2:], patch_size, strict=True)]
    return pad(images, (0, missing[1], 0, missing[0])) if any(missing) else images


def _finite(X: Tensor, layer: int) -> Tensor:
    """The same; ValueError where a number is none: every judge would give it a rank all the same."""
    if not X.isfinite().all():
        raise ValueError(
            f"the features of layer {layer} are not finite, so they cannot be judged; look for NaN in weights and "
            "pixels, or for numbers that the model's precision does not hold"
        )
    return X


def _final_norm(model: nn.Module) -> tuple[Any, bool]:
    """The norm after the blocks, if it is one of single tokens, and whether the model pools before it."""
    stages: Any = getattr(model, "stages", None) or [None]
    late = type(model).__name__ in POOLED_FIRST
    found = (("norm", model, late), ("fc_norm", model, True), ("norm", stages[-1], False))  # the last of PVT v2
    for name, owner, comes_last in found:
        if hasattr(norm := getattr(owner, name, None), "normalized_shape"):  # LayerNorm, RMSNorm, …
            return norm, comes_last
    return None, False


def _resizable(model: Any) -> bool:
    """Can its positions be interpolated? timm's ViTs can; with rotary positions only if they were built so."""
    if getattr(model, "dynamic_img_size", None) is None or not hasattr(model.patch_embed, "strict_img_size"):
        return False
    return model.dynamic_img_size or getattr(model, "rope", None) is None


@contextmanager
def _any_size(model: Any, images: Tensor, own_size: tuple[int, int] | None) -> Iterator[None]:
    """Positions are interpolated for pictures of another size than the model's own, and only for them."""
    if own_size is None or tuple(images.shape[2:]) == own_size or model.dynamic_img_size:
        yield
        return
    embed = model.patch_embed
    before = embed.strict_img_size, embed.flatten, embed.output_fmt
    try:
        model.dynamic_img_size = True
        embed.strict_img_size, embed.flatten, embed.output_fmt = False, False, Format.NHWC
        yield
    finally:
        model.dynamic_img_size = False
        embed.strict_img_size, embed.flatten, embed.output_fmt = before
