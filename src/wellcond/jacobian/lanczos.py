"""Golub–Kahan–Lanczos bidiagonalisation: the ends of a spectrum from products with J and Jᵀ alone.

Golub & Kahan (1965), §3; Golub & Van Loan, *Matrix Computations* (4th ed.), §10.4. A is J or Jᵀ, whichever has no more
columns than rows (M × N, N ≤ M). From a random unit v₁:

    αⱼ uⱼ = A vⱼ − βⱼ₋₁ uⱼ₋₁,   βⱼ vⱼ₊₁ = Aᵀ uⱼ − αⱼ vⱼ;    A V = U B,   Aᵀ U = V Bᵀ + βₖ vₖ₊₁ eₖᵀ

B = P Θ Qᵀ, k × k and upper bidiagonal. What its singular values θ₁ ≥ … ≥ θₖ say about those of A:

- residual: A (V qᵢ) = θᵢ (U pᵢ) and ‖Aᵀ (U pᵢ) − θᵢ V qᵢ‖ = rᵢ = βₖ |pₖᵢ|, so a singular value of A lies within rᵢ/√2
  of θᵢ: the residual of (U pᵢ, V qᵢ)/√2 for the symmetric matrix [0 A; Aᵀ 0].
- interlacing: B = Uᵀ A V is a compression, so θᵢ ≤ σᵢ; θₖ = min ‖A x‖/‖x‖ over the Krylov space, so θₖ ≥ σ_min.
  No other method finds a smaller ‖A x‖ from the same products: restarts and inner solves save memory, not products.
- probability: v₁ is uniform on the sphere. For a positive semidefinite H, Lanczos finds λ_max up to a share ε with
  failure probability ≤ 1.648 √N exp(−√ε (2k − 1)) (Kuczyński & Woźniakowski 1992, Theorem 4.2). H = AᵀA bounds σ_max
  from above, σ_max ≤ θ₁/√(1−ε); H = c I − AᵀA with c ≥ σ_max² has the same Krylov space and bounds σ_min from below,
  σ_min² ≥ θₖ² − (c − θₖ²) ε/(1−ε). With k steps that is more than nothing for κ up to about k/7.

- quadrature: with the weights wᵢ = q₁ᵢ², Σ wᵢ g(θᵢ²) = v₁ᵀ g(AᵀA) v₁ for polynomials g of degree up to 2k − 1 (Golub &
  Meurant, *Matrices, Moments and Quadrature*, 2010), and v₁ weighs all N singular values alike on average, to a share
  of about 1/√N. So the share of them above θᵢ lies between w₁ + … + wᵢ₋₁ and w₁ + … + wᵢ (Chebyshev, Markov,
  Stieltjes): the whole spectrum as a staircase.

Both bases are kept and each new vector is made orthogonal to its basis twice, so no copies of converged values appear.
A vanishing α or β means that an invariant space is complete: a new random vector begins the next. Values that are equal
in exact arithmetic are therefore found one by one, and some may still be missing at the end: θᵢ ≤ σᵢ, not θᵢ = σᵢ.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.jacobian.linearize import Products, draw, unit

_CHECK_EVERY = 10  # steps between two looks at the Ritz values
_EPS64 = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Ends:
    """The largest values and the bottom of B spectra; the fields are those of `JacobianSpectrum`."""

    sigma: Tensor
    error: Tensor
    sigma_min: Tensor
    sigma_min_error: Tensor
    sigma_min_lower: Tensor
    sigma_max_upper: Tensor
    floor: Tensor
    nodes: Tensor
    weights: Tensor
    steps: int


def bidiagonalize(
    products: Products,
    rounding: Tensor,
    *,
    num_values: int,
    smallest: bool,
    tolerance: float,
    max_steps: int,
    confidence: float,
    generator: torch.Generator,
) -> Ends:
    """At most `max_steps` steps; fewer where residuals are within `tolerance` of their values or under the floor.

    `rounding` (B,) is the error of one product (`linearize.rounding`); the bases are float64 whatever its dtype.
    """
    B, flip = products.B, products.N > products.M
    N, M = sorted((products.N, products.M))
    A, At = (products.pull, products.push) if flip else (products.push, products.pull)
    K = min(max_steps, N)
    like = rounding
    V, U = like.new_zeros(B, K + 1, N), like.new_zeros(B, K, M)
    alpha, beta = like.new_zeros(B, K), like.new_zeros(B, K)
    V[:, 0] = unit(draw((B, N), like, generator))
    relative = max(_EPS64 * M, 2 * torch.finfo(products.X.dtype).eps)
    floor = rounding
    for j in range(K):
        U[:, j], alpha[:, j] = _append(A(V[:, j]), U[:, :j], floor, generator)
        floor = torch.maximum(floor, relative * alpha[:, j])
        if j + 1 < N:
            V[:, j + 1], beta[:, j] = _append(At(U[:, j]), V[:, : j + 1], floor, generator)
            floor = torch.maximum(floor, relative * beta[:, j])
        k = j + 1
        if k < K and (k % _CHECK_EVERY or k <= num_values):
            continue
        theta, residual, weights = _ritz(alpha[:, :k], beta[:, :k])
        floor = torch.maximum(floor, torch.maximum(relative * theta[:, 0], rounding))
        settled = residual <= torch.maximum(tolerance * theta, floor[:, None])
        done = settled[:, :num_values].all(-1) & (settled[:, -1] | (theta[:, -1] <= floor) | (not smallest))
        if k == K or done.all():
            share = _krylov_share(N, k, (1 - confidence) / (2 * math.ceil(k / _CHECK_EVERY)))
            return _ends(theta, residual, weights, floor, num_values, N, share)
    raise AssertionError("unreachable: the last step returns")


def _append(x: Tensor, Q: Tensor, floor: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """(unit vector orthogonal to the rows of Q, length of x before): a random one of length 0 where x has vanished."""
    x = _orthogonal(x.double(), Q)
    length = torch.linalg.vector_norm(x, dim=-1)
    if not length.isfinite().all():
        images = (~length.isfinite()).nonzero().flatten().tolist()
        raise ValueError(f"the Jacobian holds NaN or inf for images {images}; f is not differentiable there")
    gone = length <= floor
    if gone.any():
        fresh = _orthogonal(unit(draw(tuple(x.shape), x, generator)), Q)
        x = torch.where(gone[:, None], fresh, x)
        length = torch.where(gone, 0.0, length)
    return unit(x), length


def _orthogonal(x: Tensor, Q: Tensor) -> Tensor:
    for _ in range(2):  # once leaves a rest of size eps · ‖x‖ / ‖result‖, twice is enough
        x = x - ((Q @ x[..., None]).mT @ Q)[:, 0]
    return x


def _ritz(alpha: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values of B (B, k), descending; the residual norm of each triplet over √2; the weight of each."""
    bidiagonal = torch.diag_embed(alpha) + torch.diag_embed(beta[:, :-1], offset=1)
    P, theta, Qt = torch.linalg.svd(bidiagonal)
    return theta, beta[:, -1:] * P[:, -1].abs() / math.sqrt(2), Qt[..., 0] ** 2


def _krylov_share(N: int, k: int, failure: float) -> float:
    """The ε of Kuczyński & Woźniakowski for k steps; 1 where it says nothing."""
    return min(1.0, (math.log(1.648 * math.sqrt(N) / failure) / (2 * k - 1)) ** 2)


def _ends(
    theta: Tensor, residual: Tensor, weights: Tensor, floor: Tensor, num_values: int, N: int, share: float
) -> Ends:
    top, bottom, k = theta[:, 0], theta[:, -1], theta.shape[1]
    if k == N:  # all of A: nothing is left to chance
        weights = torch.full_like(theta, 1 / N)
        lower, upper = bottom, top
    elif share < 1:
        upper = top / math.sqrt(1 - share)
        lower = (bottom**2 - (upper**2 - bottom**2) * share / (1 - share)).clamp_min(0).sqrt()
    else:
        lower, upper = torch.zeros_like(bottom), torch.full_like(top, torch.inf)
    error = residual + floor[:, None]
    return Ends(
        sigma=theta[:, :num_values] if k < N else theta,
        error=error[:, :num_values] if k < N else error,
        sigma_min=bottom,
        sigma_min_error=error[:, -1],
        sigma_min_lower=(lower - floor).clamp_min(0),
        sigma_max_upper=upper + floor,
        floor=floor,
        nodes=theta,
        weights=weights,
        steps=k,
    )
