"""Every singular value of a Jacobian, from the matrix itself.

Reverse mode gives one row of J for each output; rows are taken `chunk_size` at a time through `torch.vmap`, for all
images at once. A map that treats every token alone (an MLP) has a block-diagonal Jacobian: one pull-back then serves
all tokens, and the spectrum is the union of the spectra of n small blocks, exact at any n.
"""

import torch
from torch import Tensor

from wellcond import spectral
from wellcond.jacobian.linearize import Products


def dense_jacobian(products: Products, chunk_size: int, tokenwise: bool = False) -> Tensor:
    """J (B, M, N), outputs and inputs in `.flatten()` order; its diagonal blocks (B, n, d', d) if `tokenwise`."""
    X, Y = products.X, products.Y
    B, (n, d) = products.B, X.shape[-2:]
    rows = Y.shape[-1] if tokenwise else products.M
    J = X.new_empty(rows, *X.shape)
    for first in range(0, rows, chunk_size):
        last = min(first + chunk_size, rows)
        U = X.new_zeros(last - first, rows)
        U[:, first:last].fill_diagonal_(1)
        U = U[:, None].expand(-1, Y.numel() // rows, -1)  # the same row for all images, or all their tokens
        J[first:last] = products.pull_many(U.reshape(-1, *Y.shape), at_once=chunk_size > 1)
    if tokenwise:
        return J.reshape(rows, B, n, d).permute(1, 2, 0, 3)
    return J.reshape(rows, B, n * d).transpose(0, 1)


def exact_spectrum(J: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """(all singular values of each image, descending, (B, k); floor (B,)) of J (B, M, N) or of blocks (B, n, d', d).

    The floor is that of `wellcond.spectral`, or `rounding` (`linearize.rounding`) where that is larger: by Weyl's
    inequality no singular value is moved further by an error of that norm.
    """
    bad = (~J.isfinite()).reshape(len(J), -1).any(-1)
    if bad.any():
        images = bad.nonzero().flatten().tolist()
        raise ValueError(f"the Jacobian holds NaN or inf for images {images}; f is not differentiable there")
    sigma, floor = spectral.spectrum(J)
    sigma, floor = sigma.reshape(len(J), -1), floor.reshape(len(J), -1).amax(-1)
    return sigma.sort(-1, descending=True).values, torch.maximum(floor, rounding)
