"""Random matrices with a prescribed conditioning, float64 on the CPU, whatever torch's default device is.

A QR or singular value decomposition leaves signs open, and two libraries choose differently; here the diagonal of R,
and the largest entry of each left singular vector, is positive. Each is computed by one thread: by how many threads
LAPACK has, it rounds differently, and `torchrun` gives it one.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from wellcond.spectral import eigen, team

Generator = torch.Generator | None
LARGEST = 1e6  # of what weights are multiplied with, and one over it the smallest: squares are numbers in float32, too
_PLACE: Any = {"dtype": torch.float64, "device": "cpu"}


def check_generator(generator: Generator) -> None:
    if not isinstance(generator, Generator):
        raise ValueError(f"generator is {generator!r}; give torch.Generator().manual_seed(0), or None")
    if generator is not None and generator.device.type != "cpu":
        raise ValueError(
            f"generator is on {generator.device}; give one of the CPU, torch.Generator().manual_seed(0): "
            "weights do not depend on the device"
        )


def gaussian(rows: int, columns: int, generator: Generator = None) -> Tensor:
    return torch.randn(rows, columns, **_PLACE, generator=generator)


def orthogonal(rows: int, columns: int, generator: Generator = None) -> Tensor:
    """Uniformly distributed among matrices whose shorter side is orthonormal.

    The Q of a Gaussian matrix is uniform once the signs of R's diagonal are fixed (Mezzadri 2007).

    >>> Q = orthogonal(2, 3)
    >>> torch.allclose(Q @ Q.T, torch.eye(2, dtype=Q.dtype))
    True
    """
    ((Q, R),) = team.each(torch.linalg.qr, [gaussian(max(rows, columns), min(rows, columns), generator)], alone=True)
    Q = Q * torch.where(R.diagonal() < 0, -1.0, 1.0)
    return Q if rows >= columns else Q.mT


def suo_(weight: Tensor, generator: Generator = None) -> Tensor:
    """Fill `weight` (out, in) of a linear layer or 1 × 1 convolution: scale-corrected uniform orthogonal.

    A random orthogonal matrix times max(√(out/in), 1) ("Cutting the Skip"; Martens et al. 2021, DKS): the mean square
    of the outputs is that of the inputs, |W x|²/out = |x|²/in, for every x where out ≥ in, on average where out < in.
    Returns the same tensor.
    """
    if not isinstance(weight, Tensor) or weight.ndim < 2 or not weight.is_floating_point() or not weight.numel():
        what = f"shape {tuple(weight.shape)}, {weight.dtype}" if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"weight is {what}; give the weight (out, in) of a linear layer, e.g. layer.weight")
    if weight[0, 0].numel() != 1:
        raise ValueError(
            f"weight is {tuple(weight.shape)}, that of a convolution over several pixels; an orthogonal matrix is for "
            "linear layers and 1 × 1 convolutions"
        )
    check_generator(generator)
    rows, columns = weight.shape[:2]
    W = orthogonal(rows, columns, generator) * max((rows / columns) ** 0.5, 1.0)
    with torch.no_grad():
        return weight.copy_(W.reshape(weight.shape))


def near_identity(d: int, alpha: float, beta: float, z: str, generator: Generator = None) -> Tensor:
    """αZ + βI, (d, d): Z has independent entries of mean 0 and variance 1/d, normal or uniform."""
    if z == "normal":
        Z = gaussian(d, d, generator)
    else:
        Z = (2 * torch.rand(d, d, **_PLACE, generator=generator) - 1) * 3**0.5
    return (alpha / d**0.5) * Z + beta * torch.eye(d, **_PLACE)


def factors(M: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """L (…, d, rank) and R (…, d, rank) of equal sizes whose product L Rᵀ is M's best approximation of that rank.

    M = U S Vᵀ; L = U S^½, R = V S^½, cut to the largest singular values (Eckart & Young 1936). V and S² are the
    eigenvectors and values of MᵀM, which cost less than U, S and V, and L = M V S^-½. Squaring drowns values under
    √eps of the largest; they are taken for that large, which leaves L Rᵀ = M V Vᵀ as it is.

    >>> L, R = factors(torch.diag(torch.tensor([1.0, 4.0, 9.0], dtype=torch.float64)), 2)
    >>> L @ R.T
    tensor([[0., 0., 0.],
            [0., 4., 0.],
            [0., 0., 9.]], dtype=torch.float64)
    """
    parts = list(M.reshape(-1, *M.shape[-2:]).chunk(team.size()))  # some heads for each thread
    L, R = map(team.joined, zip(*team.each(partial(_factors, rank=rank), parts, alone=True), strict=True))
    return L.reshape(*M.shape[:-1], -1), R.reshape(*M.shape[:-1], -1)


def _factors(M: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Of matrices M (B, d, d), one after the other, each where it begins by itself: MKL rounds by where that is."""
    found = [_factors_of_one(one.clone(), rank) for one in M]
    L, R = map(torch.stack, zip(*found, strict=True))
    return L, R


def _factors_of_one(M: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    negative, V = eigen.eigh(-(M.mT @ M))  # the largest first, and equal ones in the order of the axes
    V, squares, number = V[:, :rank], -negative[:rank], torch.finfo(M.dtype)
    root = squares.clamp_min(number.eps * squares[0] + number.tiny) ** 0.25
    L = M @ V / root
    sign = torch.where(L.gather(0, L.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)
    return L * sign, V * (root * sign)
