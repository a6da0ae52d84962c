"""The same few operations by torch and by numpy, whose calls cost less than torch's.

On a GPU that is nothing. But LAPACK decomposes a 17 × 48 matrix so quickly that the calls around it count: there numpy
does the whole work, if there are few. Of larger matrices on the CPU, and of many, torch does the products and the
decompositions, those of a batch side by side (`team.py`), and numpy the rest, formulas on a few singular values.

Formulas on singular values are written once, with `xp` for whichever of the two modules holds them.
Legend: X is (B, n, d), m = min(n, d); "X Xᵀ" and "F X" stand for Xᵀ X and X F where n > d, as in `products.py`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wellcond.spectral import eigen, products, team

Values = Any  # singular values and what is made of them: a Tensor or an ndarray, as `xp` says
Matrices = Any  # the same for matrices; a large one stays torch's
# Up to here OpenBLAS stays in one thread; its threads and torch's would wait for each other.
_SIDE = 24  # of an eigenproblem
_PRODUCTS = 1 << 18  # of numbers, in a product of matrices
_DOT = 10_000  # entries of a dot product
_FEW = 1 << 14  # entries of so few matrices that torch's calls cost more than such waiting
_WIDE = 1 << 22  # n · d · m of one wide matrix from which on Xᵀ is quicker with several threads, too


@dataclass(frozen=True)
class Arithmetic:
    """What decompositions need of a library."""

    xp: ModuleType
    flat: Callable[[Tensor], Matrices]  # X (…, n, d), float32 or less → (B, n, d); numpy's takes float64, too
    eigvalsh: Callable[[Matrices], Values]  # X → eigenvalues of X Xᵀ (B, m), ascending
    eigh: Callable[[Matrices], tuple[Values, Matrices]]  # the same with eigenvectors V (B, m, m)
    rebuild: Callable[[Matrices, Values, Matrices, Tensor], Tensor]  # V, gains (B, m), flat X, X → V gain Vᵀ X, as X is
    svdvals: Callable[[Tensor], Values]  # X (B, n, d), float64 and finite → its singular values (B, m)
    svd: Callable[[Tensor], tuple[Matrices, Values, Matrices]]  # the same with U (B, n, m) and Vᵀ (B, m, d)
    join: Callable[[Matrices, Values, Matrices, Tensor], Tensor]  # U, σ, Vᵀ, X → U Σ Vᵀ, as X is


def of(X: Tensor) -> Arithmetic:
    """The quickest arithmetic for X (…, n, d)."""
    if X.device.type != "cpu" or not eigen.is_plain(X):
        return TORCH
    *batch, n, d = X.shape
    m = min(n, d)
    small = n * d * m <= _PRODUCTS and (m <= _SIDE or X.numel() <= _FEW)
    return NUMPY if small and not team.worth(math.prod(batch), m) else BOTH


def _choose(condition: bool, this: float, other: float) -> float:
    return this if condition else other


FLOATS = SimpleNamespace(where=_choose, maximum=max, log=math.log, inf=math.inf, nan=math.nan)  # `xp` of one number


def _numbers(values: Tensor) -> np.ndarray:
    return values.numpy(force=values.requires_grad)


def stacked(X: Tensor) -> Tensor:
    """X (…, n, d) as (B, n, d), without a gradient."""
    X = X.detach() if X.requires_grad else X
    return X if X.ndim == 3 else X.reshape(math.prod(X.shape[:-2]), *X.shape[-2:])


def _flat(X: Tensor) -> Tensor:
    return stacked(X).float()


def _rebuild(V: Tensor, gain: Tensor, flat: Tensor, X: Tensor) -> Tensor:
    return products.times((V * gain[..., None, :]) @ V.mT, flat).reshape(X.shape).to(X.dtype)


def _join(U: Tensor, sigma: Tensor, Vh: Tensor, X: Tensor) -> Tensor:
    return ((U * sigma[..., None, :]) @ Vh).reshape(X.shape)


TORCH = Arithmetic(
    xp=torch,
    flat=_flat,
    eigvalsh=lambda X: eigen.eigvalsh(products.gram(X)),
    eigh=lambda X: eigen.eigh(products.gram(X)),
    rebuild=_rebuild,
    svdvals=torch.linalg.svdvals,
    svd=lambda X: torch.linalg.svd(X, full_matrices=False),
    join=_join,
)


def _eigh_both(X: Tensor) -> tuple[np.ndarray, Tensor]:
    eigenvalues, V = eigen.eigh(products.gram(X))
    return _numbers(eigenvalues), V


def _tall(X: Matrices) -> Matrices:
    """X or Xᵀ, whichever LAPACK decomposes more quickly."""
    return X.swapaxes(-1, -2) if X.shape[-2] < X.shape[-1] else X


def _each(decompose: Callable[[Tensor], Any], X: Tensor) -> tuple[list[Any], bool]:
    """What `decompose` says of each part of X, and whether it was given Xᵀ.

    In one thread the tall way round is the quicker one. With all threads that depends on the machine, unless a matrix
    is large and very wide: every other one is decomposed as torch does it.
    """
    n, d = X.shape[-2:]
    parts = team.parts(X)
    turned = n < d if len(parts) > 1 else d >= 2.5 * n and n * n * d >= _WIDE
    return team.each(decompose, [part.mT for part in parts] if turned else parts), turned


def _svdvals_both(X: Tensor) -> np.ndarray:
    found, _ = _each(torch.linalg.svdvals, X)
    return _numbers(team.joined(found))


def _svd_both(X: Tensor) -> tuple[Tensor, np.ndarray, Tensor]:
    found, turned = _each(lambda part: torch.linalg.svd(part, full_matrices=False), X)
    U, sigma, Vh = map(team.joined, zip(*found, strict=True))
    return (Vh.mT, _numbers(sigma), U.mT) if turned else (U, _numbers(sigma), Vh)


BOTH = Arithmetic(
    xp=np,
    flat=_flat,
    eigvalsh=lambda X: _numbers(eigen.eigvalsh(products.gram(X))),
    eigh=_eigh_both,
    rebuild=lambda V, gain, flat, X: _rebuild(V, torch.from_numpy(gain.copy()), flat, X),
    svdvals=_svdvals_both,
    svd=_svd_both,
    join=lambda U, sigma, Vh, X: _join(U, torch.from_numpy(sigma), Vh, X),
)


def not_finite(name: str) -> ValueError:
    hold = "hold" if name.endswith("s") else "holds"
    return ValueError(f"{name} {hold} NaN or inf; remove or replace these values first, e.g. torch.nan_to_num({name})")


def _small_flat(X: Tensor) -> np.ndarray:
    rows = _small_rows(X)[0]
    return rows if rows.ndim == 3 else rows.reshape(math.prod(rows.shape[:-2]), *rows.shape[-2:])


def _small_rows(X: Tensor) -> tuple[np.ndarray, float]:
    """X in float64 and the sum of its squares; ValueError where an entry is not finite.

    A finite sum says that all are. That of float64 may overflow, which asks each entry.
    """
    if X.dtype == torch.float64:
        rows = _numbers(X)
        with np.errstate(over="ignore"):
            squares = sum_of_squares(rows.ravel())
    else:
        rows = _numbers(X if X.dtype == torch.float32 else X.float()).astype(np.float64)
        squares = sum_of_squares(rows.ravel())
    if not math.isfinite(squares) and not np.isfinite(rows).all():
        raise not_finite("X")
    return rows, squares


def sum_of_squares(entries: np.ndarray) -> float:
    return float(entries.dot(entries) if entries.size <= _DOT else np.square(entries).sum())


def extremes_of_one(X: Tensor) -> tuple[float, float, float]:
    """(σ_max, σ_min, ‖X‖_F) of a single small matrix (…, n, d): what κ needs. Of float64 σ_max for the length, too."""
    rows, squares = _small_rows(X)
    if X.dtype == torch.float64:
        sigma = np.linalg.svd(_tall(rows), compute_uv=False).ravel()
        return float(sigma[0]), float(sigma[-1]), float(sigma[0])
    eigenvalues = np.linalg.eigvalsh(_small_gram(rows)).ravel()
    top, bottom = float(eigenvalues[-1]), float(eigenvalues[0])
    return math.sqrt(max(top, 0.0)), math.sqrt(max(bottom, 0.0)), math.sqrt(squares)


def _small_gram(X: np.ndarray) -> np.ndarray:
    turned = X.swapaxes(-1, -2)
    return X @ turned if X.shape[-2] <= X.shape[-1] else turned @ X


def _small_rebuild(V: np.ndarray, gain: np.ndarray, flat: np.ndarray, X: Tensor) -> Tensor:
    F = (V * gain[..., None, :]) @ V.swapaxes(-1, -2)
    Y = F @ flat if flat.shape[-2] <= flat.shape[-1] else flat @ F
    found = torch.from_numpy(Y.astype(np.float32).reshape(X.shape))  # torch's reshape costs ten times numpy's
    return found if X.dtype == torch.float32 else found.to(X.dtype)


def _small_svd(X: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = _small_flat(X)
    U, sigma, Vh = np.linalg.svd(_tall(rows), full_matrices=False)
    if rows.shape[-2] >= rows.shape[-1]:
        return U, sigma, Vh
    return Vh.swapaxes(-1, -2), sigma, U.swapaxes(-1, -2)


def _small_join(U: np.ndarray, sigma: np.ndarray, Vh: np.ndarray, X: Tensor) -> Tensor:
    return torch.from_numpy(((U * sigma[..., None, :]) @ Vh).reshape(X.shape))


NUMPY = Arithmetic(
    xp=np,
    flat=_small_flat,
    eigvalsh=lambda X: np.linalg.eigvalsh(_small_gram(X)),
    eigh=lambda X: np.linalg.eigh(_small_gram(X)),
    rebuild=_small_rebuild,
    svdvals=lambda X: np.linalg.svd(_tall(_small_flat(X)), compute_uv=False),
    svd=_small_svd,
    join=_small_join,
)
