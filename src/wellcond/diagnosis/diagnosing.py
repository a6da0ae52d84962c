"""diagnose: one pass over the images, then variants, Jacobians and advice on the first of them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.blocks import adapt
from wellcond.blocks.adapted import Adapted
from wellcond.diagnosis.advice import advise, check_target
from wellcond.diagnosis.findings import findings
from wellcond.diagnosis.jacobians import attention_curves
from wellcond.diagnosis.keeping import kept
from wellcond.diagnosis.result import Advice, Diagnosis
from wellcond.diagnosis.sites import Sites, blocks_in_words
from wellcond.diagnosis.thumbnails import thumbnails
from wellcond.diagnosis.variants import skip_variants
from wellcond.graying import graying_of, patch_size_of
from wellcond.graying.images import check_pixels
from wellcond.probes import measure
from wellcond.probes.rows import Measured
from wellcond.report import versions

NUM_KEPT = 32  # images that variants, Jacobian, advice and pictures may use
_AT_ONCE = {"cpu": 32, "cuda": 256}  # images of a tensor that go through the model together


def diagnose(
    model: nn.Module,
    images: Tensor | Iterable[Tensor],
    *,
    tokens: str = "all",
    variants: bool = True,
    jacobian: bool = True,
    advice: bool = True,
    target: float | None = None,
    name: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Diagnosis:
    """How well conditioned the tokens of every block are, and what that means: rows, findings, advice.

    - `images`: normalised as the model takes them, (B, C, H, W), or an iterable of such batches, read once. They are
      brought to the model's device and dtype. Memory does not grow with their number.
    - `tokens`: "all", or "patch" without class and register tokens.
    - `variants`: also with the attention skips, and with the MLP skips, cut; on the first 32 images.
    - `jacobian`: spectrum of the Jacobian of the middle block's attention on the first image, as it is and grayed.
    - `advice`: the ε of graying that brings the log κ of the first images' patches to `target` (by default
      `advice.TARGET_SHARE` of what it is).
    - `name`: of the model; timm's models know their own. `progress` is called with the number of images done.

    The model runs in eval mode, in its own arithmetic and under the caller's autocast. Afterwards it is as it was:
    modes, classes, gains, random state, also after an exception. What cannot be measured on this model is said in
    `missing`; a model without transformer blocks is a ValueError.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; pass a module, e.g. timm.create_model({str(model)!r})")
    check_target(target)
    stream = Stream(model, images, progress)
    with kept(model):
        measured = measure(model, stream, tokens=tokens, spectra=True)
        first = torch.cat(stream.first)
        blocks = adapt(model, stream.fitted(first[:2]))
        missing = _calls(measured, blocks, tokens) + _without_maps(measured) + _single_tokens(measured)
        cut, why = skip_variants(model, stream.fitted(first), tokens) if variants else ({}, [])
        missing += why
        patch_size, graying, why = _patches(model)
        curves, why_not = [], []
        if jacobian:
            reached, patches = {row.layer for row in measured.rows}, None if graying else patch_size
            curves, why_not = attention_curves(model, stream.fitted(first[:1]), patches, reached)
        missing += (why if jacobian or advice else []) + why_not
        if jacobian and graying:
            missing.append(f"Jacobians of grayed images: the model grays its input already ({graying})")
        advised, why = _advice(first, patch_size, target) if advice else (None, [])
        missing += why
        attends = any(block.attends for block in blocks)
    arithmetic = stream.arithmetic
    return Diagnosis(
        model=name or name_of(model),
        num_images=stream.count,
        image_size=(first.shape[2], first.shape[3]),
        tokens=tokens,
        rows=measured.rows,
        variants=cut,
        spectra=measured.spectra,
        jacobians=curves,
        advice=advised,
        findings=findings(measured, advised, arithmetic=arithmetic, graying=graying, attends=attends),
        thumbnails=thumbnails(model, first, advised),
        missing=missing,
        weights="as given",
        versions=versions(("wellcond", "torch", "timm", "numpy")),
        arithmetic=arithmetic,
    )


@dataclass
class Stream:
    """The batches on their way to the model: counted, the first images kept as they came."""

    model: nn.Module
    images: Tensor | Iterable[Tensor]
    progress: Callable[[int], None] | None
    count: int = 0
    first: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        parameter = next(self.model.parameters(), torch.zeros(()))
        self.device, self.dtype = parameter.device, parameter.dtype
        self.autocast = torch.is_autocast_enabled(self.device.type)

    def __iter__(self) -> Iterator[Tensor]:
        batches: Any = self.images
        if isinstance(batches, Tensor):
            batches = batches.detach()  # nothing is graded here, and `check_pixels` refuses what would be
            check_pixels(batches)
            batches = batches.split(_AT_ONCE.get(self.device.type, 32)) if len(batches) else ()
        for batch in batches:
            if not isinstance(batch, Tensor) or batch.ndim != 4:
                yield batch  # `measure` says what is wrong with it
                continue
            batch = batch.detach()
            check_pixels(batch)
            if (room := NUM_KEPT - sum(map(len, self.first))) > 0 and len(batch):
                self.first.append(batch[:room].detach().clone())  # not a view, which would hold the whole batch
            yield self.fitted(batch)
            self.count += len(batch)
            if self.progress is not None:
                self.progress(self.count)

    def fitted(self, images: Tensor) -> Tensor:
        """On the device of the model, and in its dtype unless autocast takes care of that."""
        return images.detach().to(self.device, images.dtype if self.autocast else self.dtype)

    @property
    def arithmetic(self) -> str:
        """In words, of the forward pass."""
        if self.autocast:
            return f"{_short(torch.get_autocast_dtype(self.device.type))} (autocast over {_short(self.dtype)})"
        tf32 = self.device.type == "cuda" and self.dtype == torch.float32
        if tf32 and torch.get_float32_matmul_precision() != "highest":
            return "float32 (products in TF32)"
        return _short(self.dtype)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _patches(model: nn.Module) -> tuple[tuple[int, int] | None, str, list[str]]:
    """(patch size, how the model is grayed already, why there is no patch size)."""
    graying = graying_of(model)
    words = f"{graying.method.upper()} at ε = {graying.epsilon:g}" if graying else ""
    try:
        return patch_size_of(model), words, []
    except ValueError as error:
        return None, words, [f"Graying: {error}"]


def _advice(
    images: Tensor, patch_size: tuple[int, int] | None, target: float | None
) -> tuple[Advice | None, list[str]]:
    if patch_size is None:
        return None, []
    try:
        return advise(images, patch_size, target), []
    except ValueError as error:
        return None, [f"Advice on graying: {error}"]


def _calls(measured: Measured, blocks: list[Adapted], tokens: str) -> list[str]:
    """Blocks that a pass does not call once: those of a teacher beside its student, or shared between depths."""
    due = {layer for layer, block in enumerate(blocks) if tokens == "all" or block.carries_patches}
    never = sorted(due - {row.layer for row in measured.rows})
    said = [f"Rows of {blocks_in_words(never)}: the model does not call them on images"] if never else []
    if measured.repeated:
        words = blocks_in_words(sorted(measured.repeated))
        said.append(f"Later calls of {words}: the model calls them more than once on an image; rows are of the first")
    return said


def _without_maps(measured: Measured) -> list[str]:
    reasons: dict[str, list[int]] = {}
    for layer, why in measured.no_map.items():
        reasons.setdefault(why, []).append(layer)
    return [f"Attention maps of {blocks_in_words(layers)}: {why}" for why, layers in reasons.items()]


def _single_tokens(measured: Measured) -> list[str]:
    sites = Sites(measured.rows)
    alone = [place[0] for place in sites.outputs() if sites.shape(place)[0] == 1]
    reasons: dict[str, list[int]] = {}
    for layer in alone:
        small = sites.shape((layer, "sab_in"))[0] == 1  # a class stage reads all tokens and writes one
        reasons.setdefault("they see a single token" if small else "only the class token is written", []).append(layer)
    return [
        f"κ after attention in {blocks_in_words(layers)}: {why}, and κ of one token is 1"
        for why, layers in reasons.items()
    ]


def name_of(model: nn.Module) -> str:
    for config in (getattr(model, "pretrained_cfg", None), getattr(model, "default_cfg", None)):
        known = config.get("architecture") if isinstance(config, dict) else getattr(config, "architecture", None)
        if known:
            return str(known)
    return type(model).__name__
