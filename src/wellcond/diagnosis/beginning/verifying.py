"""verify_init: the weights as they are, and, with images, what they do to tokens from block to block."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from wellcond.activations import is_replaceable
from wellcond.blocks import adapted_blocks
from wellcond.blocks.images import check_images
from wellcond.blocks.matrices import Matrices, check_finite, matrices_of
from wellcond.diagnosis.beginning.depth import depth_rows
from wellcond.diagnosis.beginning.pictures import query_key_pictures
from wellcond.diagnosis.beginning.result import Verification
from wellcond.diagnosis.beginning.verdict import judge
from wellcond.diagnosis.beginning.weights import weight_rows
from wellcond.diagnosis.diagnosing import Stream, name_of
from wellcond.diagnosis.keeping import kept
from wellcond.probes import measure
from wellcond.probes.rows import Row
from wellcond.report import versions

QUANTITIES = ("log_kappa", "effective_rank", "token_cosine", "attention_diagonal", "attention_log_kappa")


def verify_init(
    model: nn.Module,
    images: Tensor | Iterable[Tensor] | None = None,
    *,
    jacobian: bool = True,
    name: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Verification:
    """Does the model begin as one must that is trained without skips? ("Cutting the Skip", arXiv 2510.00345.)

    From the weights alone: W_V W_O over all heads, W_Q W_Kᵀ of each head, the gains of the MLPs, LayerScale. With
    `images`, normalised as the model takes them, (B, C, H, W) or an iterable of such batches, also by depth: diagonal
    attention mass, token cosine, log κ, and on the first image κ of attention's Jacobian against the bound of
    Proposition 2 (`jacobian=False` leaves that out).

    The model is measured as it is, with or without its skips, and is afterwards as it was. ValueError for a model
    without transformer blocks, and, where there are no images, for one whose blocks have no such matrices.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; pass a module, e.g. timm.create_model({str(model)!r})")
    if isinstance(images, Tensor) and len(images):
        check_images(model, images)
    matrices, missing = _matrices(model, alone=images is None)
    check_finite(model)
    rows = [row for layer, block in enumerate(matrices) for row in weight_rows(layer, block)]
    pictures = query_key_pictures(matrices[0]) if matrices else []
    gains = [getattr(block, gain) for block in adapted_blocks(model) for gain in block.gains]
    stream = None if images is None else Stream(model, images, progress)
    if stream is not None:
        with kept(model):
            more, why = _on_images(model.eval(), stream, matrices, jacobian)
        rows, missing = rows + more, missing + why
    verdict, findings = judge(rows, matrices, skipless=0.0 in gains, gelu=is_replaceable(model))
    return Verification(
        model=name or name_of(model),
        verdict=verdict,
        rows=rows,
        findings=findings,
        pictures=pictures,
        skips=_skips(gains),
        num_images=0 if stream is None else stream.count,
        image_size=(0, 0) if stream is None else (stream.first[0].shape[2], stream.first[0].shape[3]),
        missing=missing,
        weights="as given",
        versions=versions(("wellcond", "torch", "timm", "numpy")),
        arithmetic="float64" if stream is None else stream.arithmetic,
    )


def _matrices(model: nn.Module, *, alone: bool) -> tuple[list[Matrices], list[str]]:
    try:
        return matrices_of(model), []
    except ValueError as error:
        if alone or "has no transformer blocks" in str(error):
            raise
        return [], [f"Weights: {error}"]


def _on_images(
    model: nn.Module, stream: Stream, matrices: list[Matrices], jacobian: bool
) -> tuple[list[Row], list[str]]:
    measured = measure(model, stream, quantities=QUANTITIES)
    rows = [row for row in measured.rows if not row.site.startswith("head_")]
    if not matrices:
        return rows, []
    first = stream.fitted(torch.cat(stream.first))
    more, missing = depth_rows(model, first, matrices, jacobian=jacobian)
    return rows + more, missing


def _skips(gains: list[float]) -> str:
    if not gains or all(gain == 1.0 for gain in gains):
        return "with all its skips"
    return "without skips" if not any(gains) else "with some of its skips cut or scaled"
