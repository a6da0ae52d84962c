"""The mean spectrum of a site over images, streamed on the device: nothing waits for it."""

import torch
from torch import Tensor

from wellcond.probes.rows import SiteSpectrum


def relative_logs(sigma: Tensor, floor: Tensor) -> Tensor:
    """ln(σ_k/σ_max) for k = 1 … m and, last, ln(floor/σ_max), (B, m + 1); -inf where σ_k = 0, nan where σ_max = 0."""
    top = sigma[..., :1].log()
    return torch.cat([sigma.log() - top, floor[..., None].log() - top], -1)


class SpectrumMoments:
    """As `rows.Moments`, for each column of (B, m + 1) at once: each over the images where it is finite."""

    def __init__(self, width: int, like: Tensor) -> None:
        self.count, self.mean, self.squares = (like.new_zeros(width) for _ in range(3))

    def add(self, logs: Tensor) -> None:
        """Those of one batch, float64."""
        finite = logs.isfinite()
        count = finite.sum(0).double()
        mean = torch.where(finite, logs, 0.0).sum(0) / count.clamp_min(1)
        squares = torch.where(finite, logs - mean, 0.0).square().sum(0)
        total = self.count + count
        apart, share = mean - self.mean, count / total.clamp_min(1)
        self.squares += squares + apart.square() * self.count * share
        self.mean += apart * share
        self.count = total

    def spectrum(self, layer: int, site: str, n: int, d: int) -> SiteSpectrum:
        """As plain data; here the device is waited for."""
        std = (self.squares / self.count.clamp_min(1)).sqrt()
        count, mean, std = torch.stack([self.count, self.mean, std]).tolist()
        mean = [value if seen else None for value, seen in zip(mean, count, strict=True)]
        std = [value if seen else None for value, seen in zip(std, count, strict=True)]
        return SiteSpectrum(
            layer=layer, site=site, log_sigma=tuple(mean[:-1]), std=tuple(std[:-1]), floor=mean[-1], n=n, d=d
        )
