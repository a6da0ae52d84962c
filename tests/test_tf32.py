"""DCT graying under TF32, emulated on the CPU: operands rounded to the nearest number of 10 bits, sums in float64.

On the GPU, where a user allows TF32, the library does the same rounding inside its products.
"""

import math

import numpy as np
import oracles
import pytest
import torch

from wellcond.data.procedural import procedural
from wellcond.graying import dct, unfold_patches


def tf32(X: torch.Tensor) -> torch.Tensor:
    bits = X.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & -0x2000).view(torch.float32).double()


def product(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return (tf32(A) @ tf32(B)).float()


def photographs() -> torch.Tensor:
    pixels = np.stack([procedural(i, size=224).image for i in range(4)])
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    flat = torch.full((1, 3, 224, 224), 0.7)  # whose mean is all there is
    return unfold_patches(torch.cat([(images - 0.45) / 0.226, flat]), 16)


@pytest.mark.parametrize("epsilon", [0.97, 0.95, 0.93, 0.9])
def test_fast_keeps_its_promise_under_tf32(epsilon):
    X = photographs()
    n, d = X.shape[1:]
    B_n, B_d = (dct.dct_basis(k, torch.float32, X.device) for k in (n, d))
    Z = product(B_n, product(X, B_d.mT))
    grayed, factor = dct.shrink(Z, epsilon, True, scale=math.sqrt(n * d))
    C = product(B_n.mT, grayed) * (factor / math.sqrt(n * d))
    got = product(C, B_d).double().numpy()
    want = oracles.gray_tokens(X.double().numpy(), "dct", epsilon)
    for x, y in zip(got, want, strict=True):
        assert oracles.relative_error(x, y) < oracles.FAST


def test_the_first_row_of_the_basis_is_exact():
    """An orthonormal basis has 1/√n there, which TF32 rounds the same way for every pixel."""
    basis = dct.dct_basis(196, torch.float32, torch.device("cpu"))
    assert torch.equal(tf32(basis[0]), basis[0].double())
    assert not torch.equal(tf32(basis[0] / 14).float(), basis[0] / 14)
