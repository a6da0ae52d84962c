"""What is known of a Jacobian's spectrum, and how well."""

from dataclasses import dataclass

import torch
from torch import Tensor

_KNOWN = 0.1  # log κ is called resolved when σ_min is known to a tenth


@dataclass(frozen=True, kw_only=True, eq=False)
class JacobianSpectrum:
    """Singular values of the Jacobians of (…) images, float64, with error bars.

    - `sigma`, `error` (…, k): the largest values found, descending; within `error` of each lies a singular value of J.
      All min(n·d, n'·d') of them if `complete`. Otherwise sigma[i] ≤ the i-th largest + floor: an equal value can be
      missing.
    - `sigma_min` (…): never less than the smallest singular value less `floor`; within `sigma_min_error` of it lies
      *a* singular value. `sigma_min_lower`: the smallest is not under it.
    - `sigma_max_upper` (…): the largest is not above it. Both one-sided bounds hold with probability `confidence` over
      the random start (certain if `complete`, up to the estimate in `floor`).
    - `floor` (…): the rounding of the arithmetic; a value at or under it cannot be told from zero.
    - `nodes`, `weights` (…, steps): the whole spectrum as a staircase, descending: about the share weights[i] of all
      singular values lies near nodes[i] (`ranks`). Of a complete spectrum they are `sigma` and equal weights.
    - `n`, `d`, `n_out`, `d_out`: tokens and width of input and output; `steps` of Lanczos, 0 if exact.
    """

    sigma: Tensor
    error: Tensor
    sigma_min: Tensor
    sigma_min_error: Tensor
    sigma_min_lower: Tensor
    sigma_max_upper: Tensor
    floor: Tensor
    nodes: Tensor
    weights: Tensor
    method: str
    steps: int
    confidence: float
    n: int
    d: int
    n_out: int
    d_out: int

    @property
    def complete(self) -> bool:
        """All singular values are in `sigma`."""
        return self.sigma.shape[-1] == min(self.n * self.d, self.n_out * self.d_out)

    @property
    def ranks(self) -> tuple[Tensor, Tensor]:
        """nodes[i] is about the r-th largest singular value, with r from the first to the second of these (…, steps).

        Certain for the random start direction; for the spectrum up to about a share of 1/√N of all N values.
        """
        N = min(self.n * self.d, self.n_out * self.d_out)
        above = N * self.weights.cumsum(-1)
        number = torch.arange(1, above.shape[-1] + 1, dtype=above.dtype, device=above.device)  # Ritz values interlace
        first = torch.maximum(above - N * self.weights, number)
        return first, torch.maximum(above, first)

    @property
    def singular(self) -> Tensor:
        """σ_min is at or under the floor (…), bool. Certain also from an upper bound."""
        return self.sigma_min <= self.floor

    @property
    def resolved(self) -> Tensor:
        """κ is known (…), bool: J is singular, or σ_min is above the floor and settled to a tenth."""
        settled = self.sigma_min_error <= _KNOWN * self.sigma_min
        return self.singular | settled | torch.tensor(self.complete, device=settled.device)

    @property
    def floor_count(self) -> Tensor:
        """How many values of `sigma` lie at or under the floor (…), int64."""
        return (self.sigma <= self.floor[..., None]).sum(-1)

    @property
    def kappa(self) -> Tensor:
        """σ_max/σ_min (…): inf where J is singular to the arithmetic, nan where J = 0 or κ is not resolved.

        Where it is not resolved, `kappa_bounds` says what is known.
        """
        top = self.sigma[..., 0]
        kappa = torch.where(self.singular, torch.inf, top / self.sigma_min)
        return torch.where(self.resolved & (top > 0), kappa, torch.nan)

    @property
    def log_kappa(self) -> Tensor:
        """Natural logarithm of `kappa` (…)."""
        return self.kappa.log()

    @property
    def kappa_bounds(self) -> tuple[Tensor, Tensor]:
        """κ is not under the first and, with probability `confidence`, not above the second (…); nan where J = 0."""
        top = self.sigma[..., 0]
        lower = (top - self.floor).clamp_min(0) / (self.sigma_min + self.floor)
        upper = self.sigma_max_upper / self.sigma_min_lower  # x/0 = inf
        zero = top <= 0
        return torch.where(zero, torch.nan, lower.clamp_min(1)), torch.where(zero, torch.nan, upper)

    def __str__(self) -> str:
        """One line per image.

        >>> from wellcond.jacobian import jacobian_spectrum
        >>> print(jacobian_spectrum(lambda X: X * torch.tensor([4.0, 2.0, 1.0]), torch.ones(2, 3)))
        exact, (2, 3) → (2, 3): σ_max 4, σ_min 1, κ 4
        """
        head = f"{self.method}, ({self.n}, {self.d}) → ({self.n_out}, {self.d_out})"
        known = (self.sigma[..., 0], self.sigma_min, self.kappa, *self.kappa_bounds, self.floor)
        rows = zip(*(values.reshape(-1).tolist() for values in known), strict=True)
        return "\n".join(f"{head}: {self._line(*row)}" for row in rows)

    def _line(self, top: float, bottom: float, kappa: float, lower: float, upper: float, floor: float) -> str:
        if top == 0:
            return "J = 0, no κ"
        if bottom <= floor:
            return f"σ_max {top:.4g}, σ_min under the floor {floor:.1e}, κ inf"
        if kappa == kappa:
            return f"σ_max {top:.4g}, σ_min {bottom:.4g}, κ {kappa:.4g}"
        limit = "no upper bound" if upper == float("inf") else f"at most {upper:.3g}"
        return f"σ_max {top:.4g}, σ_min not resolved (≤ {bottom:.3g}), κ at least {lower:.3g}, {limit}"
