"""The bounds of "Always Skip Attention" on the tokens of a block, and where they say nothing.

    4.1   κ(X W_Q W_Kᵀ Xᵀ X W_V W_O) ≤ κ(W_Q) κ(W_K) κ(W_V) κ(W_O) κ(X)³      n ≥ d, one head, no softmax, no bias
    4.2   κ(X (M + I)) ≤ κ(X) (1 + λ_max)/(1 + λ_min)                         M symmetric positive semidefinite

X is the normalised input of the attention. What of the paper's statements holds as written is in docs/theory.md. In a
block of timm the second has no place: the skip carries the tokens before LayerNorm, and M is not symmetric. So it is
shown for the tokens of the block with W_Q = W_K and W_V W_O = I, where M = XᵀX/k: all premises hold.

Everything in float64 and in natural logarithms; X (B, n, d), values are means over the B images.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import LinearAttention
from ..spectral import condition_number, spectrum


def cubic_bound(attention: Any, X: Tensor) -> tuple[float | None, str]:
    """(logarithm of the right-hand side of 4.1, "") for an attention's weights, or (None, why it does not apply)."""
    if why := _why_not(attention, X):
        return None, why
    weights = [*attention.qkv.weight.detach().chunk(3), attention.proj.weight.detach()]
    logs = condition_number(torch.stack(weights).double(), log=True)
    value = float(logs.sum() + 3 * condition_number(X, log=True).mean())
    return (
        (value, "") if math.isfinite(value) else (None, "κ of the normalised tokens is infinite, and the bound with it")
    )


def _why_not(attention: Any, X: Tensor) -> str:
    n, d = X.shape[-2:]
    if not isinstance(attention, LinearAttention) or attention.linear_k is None:
        return "softmax: the statement is about linear attention"
    if n < d:
        return "n < d: the tokens have a null space on the wide side, where the statement is false"
    if attention.num_heads > 1:
        return f"{attention.num_heads} heads: the statement is about one"
    biases = [layer.bias for layer in (attention.qkv, attention.proj) if layer.bias is not None]
    if any(bias.detach().any() for bias in biases) or not isinstance(attention.q_norm, nn.Identity):
        return "biases or norms of queries and keys: the statement has none"
    return ""


def semidefinite_case(X: Tensor, k: float) -> dict[str, float]:
    """log κ of X M and of X M + X for M = XᵀX/k, and the bound of 4.2; for n ≥ d.

    From the singular values of X alone: those of X M are σ³/k and those of X M + X are σ³/k + σ.
    """
    sigma, _ = spectrum(X)
    cubes = sigma**3 / k
    eigenvalues = sigma**2 / k
    log_kappa = (sigma[..., 0] / sigma[..., -1]).log()
    bound = log_kappa + ((1 + eigenvalues[..., 0]) / (1 + eigenvalues[..., -1])).log()
    total = cubes + sigma
    found = {
        "out": (cubes[..., 0] / cubes[..., -1]).log(),
        "sum": (total[..., 0] / total[..., -1]).log(),
        "bound": bound,
    }
    return {name: float(value.mean()) for name, value in found.items()}
