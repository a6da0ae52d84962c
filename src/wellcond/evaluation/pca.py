"""Principal components of patch features as colours: the first three of each picture → red, green, blue.

Patches of one picture are centred; the components come from the smaller Gram matrix in float64. A component's sign is
arbitrary, so it is fixed: the loading of the largest magnitude is positive. Each colour is stretched over 0 … 1.

Legend: B pictures, n = h · w patches, d width.
"""

import torch
from torch import Tensor

from wellcond.spectral import eigen


@torch.no_grad()
def principal_components(X: Tensor, count: int = 3) -> tuple[Tensor, Tensor]:
    """Scores (B, n, count) of X (B, n, d), and the share of the variance (B, count) that each component explains.

    Components beyond the rank are zero. float64.
    """
    X = X.double()
    X = X - X.mean(1, keepdim=True)
    n, d = X.shape[1:]
    values, U = eigen.eigh(X.mT @ X if d <= n else X @ X.mT)
    kept = min(count, n, d)
    values, U = values[:, -kept:].flip(-1).clamp(min=0), U[..., -kept:].flip(-1)
    sigma = values.sqrt()
    # Rounding of the Gram matrix: what lies below is no direction of the picture.
    there = values > max(n, d) * torch.finfo(X.dtype).eps * values[:, :1]
    loadings = U if d <= n else X.mT @ U / sigma.clamp(min=torch.finfo(X.dtype).tiny)[:, None]
    largest = loadings.gather(1, loadings.abs().argmax(1, keepdim=True))
    scores = (X @ U if d <= n else U * sigma[:, None]) * torch.where(there, largest.sign()[:, 0], 0.0)[:, None]
    total = (X * X).sum((1, 2)).clamp(min=torch.finfo(X.dtype).tiny)
    short = count - kept
    share = torch.where(there, values, 0.0) / total[:, None]
    return torch.nn.functional.pad(scores, (0, short)), torch.nn.functional.pad(share, (0, short))


def colours(scores: Tensor, grid: tuple[int, int]) -> Tensor:
    """Scores (B, n, 3) → (B, h, w, 3) in 0 … 1; a component that says nothing is ½."""
    low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
    spread = high - low
    stretched = torch.where(spread > 0, (scores - low) / spread.clamp(min=torch.finfo(scores.dtype).tiny), 0.5)
    return stretched.reshape(-1, *grid, 3)
