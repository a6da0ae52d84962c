"""κ of the Jacobian of self-attention from its two parts ("Cutting the Skip", arXiv 2510.00345, Proposition 2).

SA(X) = Σ_h A_h(X) X W_h, W_h = W_V W_O of head h. Its Jacobian is K = E + B: in B the attention stands still, in E the
values do. If σ_max(E) < σ_min(B), Weyl's inequality gives

    κ(K) ≤ (σ_max(B) + σ_max(E)) / (σ_min(B) − σ_max(E)).

One head: B = Wᵀ ⊗ A, whose singular values are the products of those of W and A; orthogonal W gives κ(B) = κ(A).
Many heads: B is a sum of such, with no closed form. Small ones are written down. Large ones: with Ā the mean of the
heads' attention and W = Σ W_h, B = Wᵀ ⊗ Ā + R, R = Σ W_hᵀ ⊗ (A_h − Ā), so σ_min(B) ≥ σ_min(W) σ_min(Ā) − σ_max(R), and
σ_max is what Lanczos finds reliably. That, or Lanczos' own lower bound, whichever is larger.

A bias of the values adds a constant where the rows of A sum to one, so it is left out here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond import spectral
from wellcond.jacobian.spectrum import jacobian_spectrum


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionBound:
    """(…) each: σ_max(E) and σ_max(B) from above, σ_min(B) from below, and the bound on κ, inf where E is too large.

    From matrices these are values with their rounding added; from Lanczos bounds with probability `confidence` each.
    """

    sigma_max_e: Tensor
    sigma_max_b: Tensor
    sigma_min_b: Tensor
    bound: Tensor


def attention_bound(
    attention: Callable[[Tensor], Tensor], value_output: Tensor, X: Tensor, **options: Any
) -> AttentionBound:
    """Proposition 2 at X (…, n, d) for attention(X) → (…, H, n, n) and value_output (H, d, d'), W_V W_O of each head.

    `options` go to `jacobian_spectrum` (method, max_steps, confidence, generator, …). Give everything in one dtype.

    >>> X = torch.eye(3, dtype=torch.float64)[:2]
    >>> still = lambda X: torch.eye(2, dtype=torch.float64)[None]  # attention that does not look at X
    >>> attention_bound(still, 2 * torch.eye(3, dtype=torch.float64)[None], X).bound
    tensor(1.0000, dtype=torch.float64)
    """
    spectral.check_matrices(X)
    W = value_output.to(X.dtype)
    with torch.no_grad():
        A = attention(X)
    if W.ndim != 3 or W.shape[1] != X.shape[-1] or A.shape != (*X.shape[:-2], len(W), X.shape[-2], X.shape[-2]):
        raise ValueError(
            f"attention(X) has shape {tuple(A.shape)} and value_output {tuple(W.shape)}; for X {tuple(X.shape)} "
            f"expected (…, H, n, n) and (H, {X.shape[-1]}, d'), one W_V W_O per head"
        )
    if X.ndim == 2:
        return AttentionBound(**_parts(attention, A, W, X, options))
    # one image at a time: what stands still belongs to its image
    images = [_parts(attention, A[i : i + 1], W, X[i : i + 1], options) for i in range(len(X))]
    return AttentionBound(**{name: torch.cat([image[name] for image in images]) for name in images[0]})


def _parts(
    attention: Callable[[Tensor], Tensor], A: Tensor, W: Tensor, X: Tensor, options: dict[str, Any]
) -> dict[str, Tensor]:
    values = X[..., None, :, :] @ W  # (…, H, n, d')
    moving = jacobian_spectrum(lambda Y: (attention(Y) @ values).sum(-3), X, **{**options, "smallest": False})
    E = moving.sigma_max_upper
    top, bottom = _one_head(A[..., 0, :, :], W[0]) if len(W) == 1 else _many_heads(A, W, X, options)
    bound = torch.where(bottom > E, (top + E) / (bottom - E), torch.inf)
    return {"sigma_max_e": E, "sigma_max_b": top, "sigma_min_b": bottom, "bound": bound}


def _one_head(A: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """σ_max and σ_min of Wᵀ ⊗ A, from above and from below."""
    (a, a_floor), (w, w_floor) = spectral.spectrum(A), spectral.spectrum(W)
    top = (a[..., 0] + a_floor) * (w[..., 0] + w_floor)
    return top, (a[..., -1] - a_floor).clamp_min(0) * (w[..., -1] - w_floor).clamp_min(0)


def _many_heads(A: Tensor, W: Tensor, X: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """σ_max and σ_min of Σ W_hᵀ ⊗ A_h, from above and from below."""

    def mixed(A: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda Y: (A @ (Y[..., None, :, :] @ W)).sum(-3)

    spectrum = jacobian_spectrum(mixed(A), X, **options)
    if spectrum.complete:
        return spectrum.sigma_max_upper, spectrum.sigma_min_lower
    mean = A.mean(-3, keepdim=True)
    rest = jacobian_spectrum(mixed(A - mean), X, **{**options, "smallest": False}).sigma_max_upper
    bottom = _one_head(mean[..., 0, :, :], W.sum(0))[1] - rest
    return spectrum.sigma_max_upper, torch.maximum(spectrum.sigma_min_lower, bottom)
