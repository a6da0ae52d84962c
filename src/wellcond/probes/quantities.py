"""Numbers about tokens and attention maps, one for each image, float64. inf and nan are left to the reader.

X is (B, n, d): B images, n tokens, width d. A is (B, W, H, q, k): W windows (1 where attention is global), H heads,
q queries, k keys; rows sum to 1.

| quantity            | of one image                                    | nan or inf where                     |
|---------------------|-------------------------------------------------|--------------------------------------|
| log_kappa           | ln(σ_max/σ_min)                                 | inf: a σ at the floor; nan: all zero |
| effective_rank      | exp of the entropy of σ/Σσ                      | nan: all zero                        |
| stable_rank         | ‖X‖_F²/σ_max²                                   | nan: all zero                        |
| token_cosine        | mean cosine of two tokens; zero tokens left out | nan: fewer than two left             |
| kurtosis            | E[(x−μ)⁴]/E[(x−μ)²]² over all n·d entries       | nan: constant                        |
| attention_entropy   | −Σ a ln a of a row, in 0 … ln k                 |                                      |
| attention_diagonal  | mass that a token gives to itself               |                                      |
| attention_log_kappa | log_kappa of a head's map                       | inf: a map with a σ at the floor     |

Kurtosis is 3 for a Gaussian, not the excess. Those of attention are for each head, means over its rows and windows; one
singular map makes an image's attention_log_kappa inf: a mean of the others would flatter it.
An image that holds NaN or inf is nan everywhere and leaves its neighbours alone.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from wellcond.probes.spectra import relative_logs
from wellcond.spectral import spectrum

SPECTRAL = ("log_kappa", "effective_rank", "stable_rank")
TOKEN_QUANTITIES = (*SPECTRAL, "token_cosine", "kurtosis")
ATTENTION_QUANTITIES = ("attention_entropy", "attention_diagonal", "attention_log_kappa")
QUANTITIES = (*TOKEN_QUANTITIES, *ATTENTION_QUANTITIES)
FLOOR = "floor_count"  # computed with the spectral quantities, a column of their rows
LOGS = "relative_logs"  # no quantity: the spectrum itself, (B, m + 1), from the same decomposition
_AT_ONCE = 1 << 27  # entries of maps that are decomposed at once: 1 GiB in float64
_CONSTANT = 64 * torch.finfo(torch.float64).eps


def of_tokens(X: Tensor, names: Collection[str]) -> dict[str, Tensor]:
    """The asked quantities of tokens X (B, n, d), (B,) each, and `FLOOR` if a spectrum was needed for them."""
    finite = finite_images(X)
    X = zeroed(X, finite)
    found: dict[str, Tensor] = {}
    if not set(names).isdisjoint((*SPECTRAL, LOGS)):
        sigma, floor = spectrum(X)
        p = sigma / sigma.sum(-1, keepdim=True)
        found["log_kappa"] = log_kappa(sigma, floor)
        found["effective_rank"] = torch.exp(-torch.xlogy(p, p).sum(-1))
        found["stable_rank"] = (sigma / sigma[..., :1]).square().sum(-1)
        found[FLOOR] = (sigma <= floor[..., None]).sum(-1).double()
        if LOGS in names:
            found[LOGS] = relative_logs(sigma, floor)
    if "token_cosine" in names:
        found["token_cosine"] = token_cosine(X)
    if "kurtosis" in names:
        found["kurtosis"] = kurtosis(X)
    return {name: masked(values, finite) for name, values in found.items() if name in names or name == FLOOR}


def of_attention(A: Tensor, names: Collection[str], first: int = 0) -> dict[str, Tensor]:
    """The asked quantities of maps A (B, W, H, q, k) for each head, (B, H) each, and `FLOOR` with the spectral one.

    Query i is token first + i: its own key is not on the diagonal of A when the queries of prefix tokens are left out.
    """
    A = A if A.dtype == torch.float64 else A.float()
    finite = finite_images(A)
    A = zeroed(A, finite)
    found: dict[str, Tensor] = {}
    if "attention_entropy" in names:
        found["attention_entropy"] = torch.special.entr(A).sum(-1, dtype=torch.float64).mean((1, 3))
    if "attention_diagonal" in names:
        found["attention_diagonal"] = A.diagonal(first, -2, -1).double().mean((1, 3))
    if "attention_log_kappa" in names:
        maps = A.flatten(0, 2)
        parts = [spectrum(part) for part in maps.split(max(1, _AT_ONCE // maps[0].numel()))]
        sigma, floor = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
        found["attention_log_kappa"] = log_kappa(sigma, floor).reshape(A.shape[:3]).mean(1)
        found[FLOOR] = (sigma <= floor[..., None]).sum(-1).double().reshape(A.shape[:3]).mean(1)
    return {name: masked(values, finite) for name, values in found.items()}


def log_kappa(sigma: Tensor, floor: Tensor) -> Tensor:
    """As `spectral.condition_number(log=True)`, from singular values (…, m) and their floor (…)."""
    top, bottom = sigma[..., 0], sigma[..., -1]
    value = torch.where(bottom > floor, top.log() - bottom.log(), torch.inf)
    return torch.where(top > 0, value, torch.nan)


def token_cosine(X: Tensor) -> Tensor:
    """Mean of cos(x_i, x_j) over i ≠ j, (B,): Σ_{i≠j} u_iᵀu_j = |Σu_i|² − m for m unit tokens, so no n × n matrix."""
    X = X.double()
    size = torch.linalg.vector_norm(X, dim=-1, keepdim=True)
    m = (size > 0).sum((-2, -1)).double()
    total = (X / torch.where(size > 0, size, 1.0)).sum(-2).square().sum(-1)
    return torch.where(m > 1, (total - m) / (m * (m - 1)), torch.nan)


def kurtosis(X: Tensor) -> Tensor:
    """Fourth standardised moment over all entries, (B,); 3 for a Gaussian. float64: fourth powers."""
    x = X.double().flatten(1)
    largest = x.abs().amax(-1, keepdim=True)
    x = x / torch.where(largest > 0, largest, 1.0)  # fourth powers of the very small would vanish
    squares = (x - x.mean(-1, keepdim=True)).square()
    variance = squares.mean(-1)
    return torch.where(variance.sqrt() > _CONSTANT, squares.square().mean(-1) / variance.square(), torch.nan)


def finite_images(X: Tensor) -> Tensor:
    """(B, …) → (B,), bool."""
    return X.isfinite().flatten(1).all(-1)


def zeroed(X: Tensor, finite: Tensor) -> Tensor:
    """X with all-zero images in place of those that hold NaN or inf, so that a decomposition can be run on them."""
    return torch.where(finite.reshape(-1, *[1] * (X.ndim - 1)), X, 0.0)


def masked(values: Tensor, finite: Tensor) -> Tensor:
    """nan for the images that hold NaN or inf."""
    return torch.where(finite.reshape(-1, *[1] * (values.ndim - 1)), values, torch.nan)
