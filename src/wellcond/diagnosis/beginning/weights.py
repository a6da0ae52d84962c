"""Rows of the matrices themselves, float64: W_V W_O over all heads, W_Q W_Kᵀ of each head, those of the MLP."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from wellcond.blocks.matrices import Matrices
from wellcond.probes.quantities import log_kappa
from wellcond.probes.rows import Row
from wellcond.spectral import spectrum


def weight_rows(layer: int, block: Matrices) -> list[Row]:
    """All rows of one block's weights."""
    V, P = value_output(block)
    rows = _value_output_rows(layer, V @ P)
    H, d_h, d = block.query.shape
    heads = _cores(V.unflatten(1, (H, d_h)).transpose(0, 1), P.unflatten(0, (H, d_h)).mT)
    rows.append(row(layer, "value_output", "head_log_kappa", _log_kappas(heads), d_h, d_h))
    cores = _cores(block.query.double().mT, block.key.double().mT)
    rows.append(row(layer, "query_key", "log_kappa", _log_kappas(cores), d_h, d_h))
    rows.append(row(layer, "query_key", "diagonal_dominance", diagonal_dominance(block).tolist(), d, d))
    for site, W in zip(mlp_sites(len(block.mlp)), block.mlp, strict=True):
        W = W.double()
        rows.append(row(layer, site, "log_kappa", _log_kappas(W[None]), *W.shape))
        rows.append(row(layer, site, "gain", [float(W.square().sum()) / len(W)], *W.shape))
    return rows


def value_output(block: Matrices) -> tuple[Tensor, Tensor]:
    """W_V (d, H·d_h) and W_O (H·d_h, d) of X W_V W_O."""
    return block.value.double().flatten(0, 1).mT, block.output.double().mT


def diagonal_dominance(block: Matrices) -> Tensor:
    """Trace of W_Q W_Kᵀ over its Frobenius norm, of each head (H,); nan where it is zero."""
    Q, K = block.query.double(), block.key.double()
    return (Q * K).sum((-2, -1)) / torch.linalg.matrix_norm(_cores(Q.mT, K.mT))


def _cores(L: Tensor, R: Tensor) -> Tensor:
    """Small matrices (H, d_h, d_h) with the singular values of L Rᵀ, from L, R (H, d, d_h)."""
    return torch.linalg.qr(L)[1] @ torch.linalg.qr(R)[1].mT


def mlp_sites(number: int) -> tuple[str, ...]:
    return ("fc1", "fc2") if number == 2 else ("gate", "fc1", "fc2")


def row(layer: int, site: str, quantity: str, values: Sequence[float], n: int, d: int, *, num_images: int = 0) -> Row:
    """Mean and deviation of the finite ones of `values`."""
    finite = [value for value in values if math.isfinite(value)]
    mean = sum(finite) / len(finite) if finite else None
    std = None if mean is None else math.sqrt(sum((value - mean) ** 2 for value in finite) / len(finite))
    return Row(
        layer=layer, site=site, quantity=quantity, value=mean, std=std, floor_count=0.0,
        num_infinite=len(values) - len(finite), num_images=num_images, n=n, d=d,
    )  # fmt: skip


def _value_output_rows(layer: int, W: Tensor) -> list[Row]:
    d = len(W)
    square = float(W.square().sum()) / d
    defect = W @ W.mT / square - torch.eye(d, dtype=W.dtype, device=W.device) if square > 0 else W
    found = {
        "log_kappa": _log_kappas(W[None]),
        "orthogonality_defect": [float(torch.linalg.matrix_norm(defect)) / math.sqrt(d) if square > 0 else math.inf],
        "gain": [math.sqrt(square)],
    }
    return [row(layer, "value_output", quantity, values, d, d) for quantity, values in found.items()]


def _log_kappas(W: Tensor) -> list[float]:
    tall = W if W.shape[-2] >= W.shape[-1] else W.mT.contiguous()  # LAPACK is faster on it
    return log_kappa(*spectrum(tall)).tolist()
