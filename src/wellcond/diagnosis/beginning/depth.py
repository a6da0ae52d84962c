"""Rows by depth on images that `probe` does not have: logits (Proposition 1, Lemma 1), Jacobians (Proposition 2).

Measured in float64 on a copy of each block, at the tokens that the model computed in its own arithmetic.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.blocks import adapt, attention_map, normalise, record, sub_block
from wellcond.blocks.adapted import Adapted
from wellcond.blocks.matrices import Matrices
from wellcond.diagnosis.beginning.weights import diagonal_dominance, row, value_output
from wellcond.diagnosis.sites import blocks_in_words
from wellcond.jacobian import attention_bound, jacobian_spectrum
from wellcond.probes.quantities import token_cosine
from wellcond.probes.rows import Row

NUM_IMAGES = 4  # of the logits; Jacobians are those of the first
EXACT = 640  # inputs of a Jacobian up to which its matrix is written down
STEPS: dict[str, Any] = {"num_values": 4, "max_steps": 32}  # of Lanczos
LARGE = 32_768  # inputs of a Jacobian from which on only the first, middle and last block are looked at


def depth_rows(
    model: nn.Module, images: Tensor, matrices: list[Matrices], *, jacobian: bool
) -> tuple[list[Row], list[str]]:
    """(rows, what is missing and why); the model must be kept by the caller, in eval mode."""
    rows: list[Row] = []
    missing: dict[str, list[int]] = {}
    blocks = adapt(model, images[:2])
    with torch.no_grad(), record(model) as sites:
        model(images[:NUM_IMAGES])
    reached = sorted(layer for layer, site in sites if site == "sab_in")
    large = sites[reached[0], "sab_in"][0].numel() > LARGE
    chosen = {reached[0], reached[len(reached) // 2], reached[-1]} if large else set(reached)
    for layer, (block, own) in enumerate(zip(blocks, matrices, strict=True)):
        if layer not in reached:
            missing.setdefault("Logits and Jacobian: the model does not call it on images", []).append(layer)
            continue
        if not block.reads_normalised:
            missing.setdefault("Logits and Jacobian: the norm comes after the branch", []).append(layer)
            continue
        twin = _in_double(block)
        try:
            with torch.no_grad():
                X = normalise(twin, "attention", sites[layer, "sab_in"].double())
                A = attention_map(twin, X)
            if A.shape[-1] != X.shape[-2]:
                raise ValueError("it attends in windows")
            if A.shape[-1] == 1:
                raise ValueError("it has one token, which attends to itself alone")
            rows += _logit_rows(layer, A, X, own)
            if jacobian and layer in chosen:
                rows += _jacobian_rows(layer, twin, X[:1], own)
        except (ValueError, RuntimeError) as error:
            missing.setdefault(f"Logits or Jacobian: {str(error).splitlines()[0]}", []).append(layer)
    without = {layer for layers in missing.values() for layer in layers}
    if jacobian and (left := set(range(len(blocks))) - chosen - without):
        missing["Jacobians, for the time they take"] = sorted(left)
    return rows, [f"{why} ({blocks_in_words(layers)})" for why, layers in missing.items()]


def _logit_rows(layer: int, A: Tensor, X: Tensor, own: Matrices) -> list[Row]:
    """A softmax keeps differences of logits: ln a_ij − ln a_ii. One number for each image, the mean over heads."""
    B, n = len(X), A.shape[-1]
    logits = A.log()
    diagonal = logits.diagonal(dim1=-2, dim2=-1)
    others = logits.masked_fill(torch.eye(n, dtype=torch.bool, device=A.device), -math.inf).amax(-1)
    spread = logits.amax(-1) - logits.amin(-1)
    dominance = float(diagonal_dominance(own).mean())
    found = {
        "logit_gap": (diagonal - others).mean((1, 2)).tolist(),
        "logit_range": spread.mean((1, 2)).tolist(),
        "dominance_margin": [dominance * (1 - c) / math.sqrt(2 * math.log(n)) for c in token_cosine(X).tolist()],
    }
    return [row(layer, "attention", name, values, n, n, num_images=B) for name, values in found.items()]


def _jacobian_rows(layer: int, block: Adapted, X: Tensor, own: Matrices) -> list[Row]:
    n, d = X.shape[-2:]
    f = sub_block(block, "attention")
    options = {**STEPS, "method": "exact" if n * d <= EXACT else "lanczos"}
    spectrum = jacobian_spectrum(f, X, **options)
    lower = spectrum.kappa_bounds[0]
    found = {"log_kappa": spectrum.log_kappa, "log_kappa_at_least": lower.log()}
    V, P = value_output(own)
    H, d_h = own.value.shape[:2]
    W = torch.einsum("dhk,hko->hdo", V.unflatten(1, (H, d_h)), P.unflatten(0, (H, d_h)))
    if own.scales:
        W = W * own.scales[0].double()

    def attention(X: Tensor) -> Tensor:
        return attention_map(block, X, check=False)

    with torch.no_grad():
        Y, still = f(X), (attention(X) @ (X[:, None] @ W)).sum(1)
        offset = f(torch.zeros_like(X))  # biases of values and output, the same for every token
    if not torch.allclose(Y, still + offset, rtol=1e-6, atol=1e-6 * float(Y.abs().max())):
        raise ValueError("its attention is not Σ A X W_V W_O alone (a norm or a gate in between), so no Proposition 2")
    bound = attention_bound(attention, W, X, **options)
    found |= {
        "sigma_max_e": bound.sigma_max_e,
        "sigma_max_b": bound.sigma_max_b,
        "sigma_min_b": bound.sigma_min_b,
        "log_kappa_bound": bound.bound.log(),
    }
    return [row(layer, "jacobian", name, v.tolist(), n * d, n * d, num_images=1) for name, v in found.items()]


def _in_double(block: Adapted) -> Adapted:
    assert block._context is not None
    shape, args, kwargs = block._context
    twin = copy.deepcopy(block).double()
    twin._context = (shape, tuple(_double(a) for a in args), {name: _double(a) for name, a in kwargs.items()})
    return twin


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
