"""Rows and spectra of sites over images, and the moments from which a row is made, in constant memory."""

import math
from dataclasses import dataclass, field

import numpy as np

Place = tuple[int, str]  # layer, site
SITE_WORDS = {  # in the order in which a block computes them; pages, tables, cards and claims all say these
    "sab_in": "block input",
    "sab_out": "attention alone",
    "sab_sum": "attention + skip",
    "lpi_out": "patch mixing alone",
    "lpi_sum": "patch mixing + skip",
    "ffn_out": "MLP alone",
    "ffn_sum": "MLP + skip",
}


def in_words(place: Place) -> str:
    """
    >>> in_words((3, "sab_out"))
    'block 3, attention alone'
    """
    layer, site = place
    return f"block {layer}, {SITE_WORDS.get(site, site)}"


def is_token_site(site: str) -> bool:
    """Or a site of attention maps: "attention", "head_0", …"""
    return site != "attention" and not site.startswith("head_")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity at one site of one block, over images. Holds no inf and no nan: `dataclasses.asdict` is valid JSON.

    - `value`, `std`: mean and standard deviation (divided by the count, not by one less) over the images where the
      quantity is finite; None if there is none.
    - `num_infinite`: images where it is not: rank-deficient to the arithmetic (κ = inf), or without a meaning (nan:
      all-zero tokens, NaN or inf in the activations, a cosine of one token).
    - `floor_count`: singular values at or under the numerical floor, the mean over all images whose activations are
      finite (for attention also over heads and windows); 0 where the quantity has no spectrum.
    - `num_images`: all images, so `value` is over num_images − num_infinite of them.
    - `n`, `d`: rows and columns of the matrix: tokens and width; for attention queries and keys (of a window).
    - `site`: one of `blocks.SITES` (XCiT: also lpi_out, lpi_sum); "attention" for the mean over heads, "head_0", … for
      one head. (layer, site, quantity) is unique.
    """

    layer: int
    site: str
    quantity: str
    value: float | None
    std: float | None
    floor_count: float
    num_infinite: int
    num_images: int
    n: int
    d: int


@dataclass(frozen=True, kw_only=True)
class SiteSpectrum:
    """Mean and standard deviation over images of ln(σ_k/σ_max), k = 1 … min(n, d), and of the floor, at one site."""

    layer: int
    site: str
    log_sigma: tuple[float | None, ...]  # None: no image has a σ_k above zero
    std: tuple[float | None, ...]
    floor: float | None  # ln(floor/σ_max): what lies at or under it is rounding
    n: int
    d: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one pass over the images has found. `spectra` is empty unless asked for."""

    rows: list[Row]
    spectra: list[SiteSpectrum]
    not_finite: dict[Place, int]  # images that hold NaN or inf there, where there are any
    no_map: dict[int, str]  # layer → why it has no attention map
    repeated: set[int] = field(default_factory=set)  # layers called more than once on an image; rows are of the first


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of the finite values seen, merged batch by batch.

    Chan, Golub & LeVeque (1979), eq. 2.1: exact for any split into batches but for rounding, and without the
    cancellation of Σx² − (Σx)²/N.
    """

    num_finite: int = 0
    num_infinite: int = 0
    mean: float = 0.0
    squares: float = field(default=0.0, repr=False)

    def add(self, num_finite: int, num_infinite: int, mean: float, squares: float) -> None:
        """Those of one batch, from `moments_of`."""
        self.num_infinite += num_infinite
        if not num_finite:
            return
        total = self.num_finite + num_finite
        apart = mean - self.mean
        self.squares += squares + apart**2 * self.num_finite * num_finite / total
        self.mean += apart * num_finite / total
        self.num_finite = total

    @property
    def num_values(self) -> int:
        return self.num_finite + self.num_infinite

    @property
    def std(self) -> float:
        return math.sqrt(self.squares / self.num_finite)


def moments_of(values: np.ndarray) -> list[tuple[int, int, float, float]]:
    """(finite, infinite or nan, mean, squared deviations) of each row of float64 values: what `Moments.add` takes."""
    finite = np.isfinite(values)
    num_finite = finite.sum(-1)
    kept = np.where(finite, values, 0.0)
    mean = kept.sum(-1) / np.maximum(num_finite, 1)
    squares = np.square(np.where(finite, kept - mean[:, None], 0.0)).sum(-1)
    columns = (num_finite, values.shape[-1] - num_finite, mean, squares)
    return list(zip(*(column.tolist() for column in columns), strict=True))
