"""Float64 references on the CPU, by LAPACK's SVD and explicit cosine sums; nothing of wellcond is used here.

Shapes: images (B, C, H, W), tokens X (B, n, d) with n patches of d = p·p·C pixels in the order (row, column,
channel). The formulas are Algorithms 1 and 2 of *Always Skip Attention* (arXiv 2505.01996) with the largest
value multiplied back.
"""

import math

import torch
from torch import Tensor


def tokens_of(images: Tensor, patch_size: int) -> Tensor:
    """Images → float64 tokens on the CPU."""
    B, C, H, W = images.shape
    p = patch_size
    blocks = images.detach().cpu().double().reshape(B, C, H // p, p, W // p, p)
    return blocks.permute(0, 2, 4, 3, 5, 1).reshape(B, (H // p) * (W // p), p * p * C)


def images_of(X: Tensor, size: int, patch_size: int) -> Tensor:
    """Tokens of square pictures → images, the inverse of :func:`tokens_of`."""
    p = patch_size
    blocks = X.reshape(len(X), size // p, size // p, p, p, X.shape[-1] // (p * p))
    return blocks.permute(0, 5, 1, 3, 2, 4).reshape(len(X), -1, size, size)


def rounding_floor(X: Tensor, sigma_max: Tensor) -> Tensor:
    """σ at or under this (B, 1) are rounding: a float32 input's own, or that of its float64 Gram matrix."""
    n, d = X.shape[-2:]
    gram = math.sqrt(torch.finfo(torch.float64).eps * max(n, d)) * sigma_max
    norm = torch.linalg.matrix_norm(X).unsqueeze(-1)
    pixels = 2 * torch.finfo(torch.float32).eps * (n**-0.5 + d**-0.5) * norm
    return torch.maximum(gram, pixels)


def map_spectrum(X: Tensor, exponent: float, *, relative: bool) -> Tensor:
    """U Σ̃ Vᵀ with Σ̃ = Σ^exponent, if ``relative`` σ_max (Σ/σ_max)^exponent; σ at the floor stay."""
    U, sigma, Vt = torch.linalg.svd(X, full_matrices=False)
    scale = sigma[..., :1] if relative else torch.ones_like(sigma[..., :1])
    mapped = scale * (sigma / scale.clamp_min(1e-300)) ** exponent
    mapped = torch.where(sigma > rounding_floor(X, sigma[..., :1]), mapped, sigma)
    return (U * mapped.unsqueeze(-2)) @ Vt


def dct_matrix(n: int) -> Tensor:
    """Orthonormal DCT-II: D[k, i] = √(2/n) cos(π k (2i+1) / 2n), the first row divided by √2."""
    k = torch.arange(n, dtype=torch.float64)
    D = math.sqrt(2 / n) * torch.cos(torch.pi * k[:, None] * (2 * k[None, :] + 1) / (2 * n))
    D[0] /= math.sqrt(2)
    return D


def shrink(coefficients: Tensor, epsilon: float) -> Tensor:
    """sign(c)·(|c|/m)^ε·m with m = max|c| of each matrix: the pointwise part of DCT graying."""
    magnitude = coefficients.abs()
    m = magnitude.amax(dim=(-2, -1), keepdim=True).clamp_min(torch.finfo(coefficients.dtype).tiny)
    return coefficients.sign() * (magnitude / m) ** epsilon * m


def gray(X: Tensor, method: str, epsilon: float) -> Tensor:
    """Grayed float64 tokens."""
    if method == "svd":
        return map_spectrum(X, epsilon, relative=True)
    left, right = dct_matrix(X.shape[-2]), dct_matrix(X.shape[-1])
    return left.T @ shrink(left @ X @ right.T, epsilon) @ right


def matrix_errors(result: Tensor, expected: Tensor, X: Tensor) -> dict[str, float]:
    """Worst relative Frobenius error and |Δ log σ| over matrices.

    The second counts where the singular value of the input X is at least 1e-5 σ_max, the range that the precisions
    promise something for; ``num_sigma_below`` says how many were not.
    """
    result = result.detach().cpu().double()
    norm = torch.linalg.matrix_norm(expected).clamp_min(1e-300)
    frobenius = torch.linalg.matrix_norm(result - expected) / norm
    sigma = torch.linalg.svdvals(X)
    counts = sigma >= 1e-5 * sigma[..., :1].clamp_min(1e-300)
    difference = (torch.linalg.svdvals(result).log() - torch.linalg.svdvals(expected).log()).abs()
    return {
        "error_fro": frobenius.max().item(),
        "error_fro_median": frobenius.median().item(),
        "error_log_sigma": torch.where(counts, difference, 0.0).max().item(),
        "num_sigma_below": int((~counts).sum()),
    }


def kappas(X: Tensor) -> dict[str, float]:
    """Median and largest κ of the float64 matrices, so that a reader sees how hard the pictures are."""
    sigma = torch.linalg.svdvals(X)
    kappa = sigma[..., 0] / sigma[..., -1]
    return {"kappa_median": kappa.median().item(), "kappa_max": kappa.max().item()}
