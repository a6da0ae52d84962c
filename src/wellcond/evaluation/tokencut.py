"""TokenCut (Wang et al., CVPR 2022): the object of a picture from its patch features, by a normalised cut. Batched.

Patches i and j are joined by A_ij = 1 where cos(k_i, k_j) > τ, else ε. Of the normalised cut's relaxation
(Shi & Malik, 2000), (D − A) y = λ D y with D = diag(A 1), the second smallest eigenvector y parts the picture in two:
y > mean(y), turned so that it holds the patch of the largest |y| (the seed). The object is the connected component of
the seed, 4-neighbours, and the box around it.

With z = D^{1/2} y the problem is symmetric: D^{-1/2} A D^{-1/2} z = (1 − λ) z. Its largest eigenvector is known,
z = D^{1/2} 1 at 1, so the second smallest λ is the largest eigenvalue beside it: a few products (`spectral/krylov.py`);
where that does not converge, the dense solver in float64.

Ties. The answer is not defined by the picture, whoever computes it, where the second eigenvalue is not simple (three
patches like nobody else are enough), or where seeds of equal |y| lie in different components. Such pictures are marked
`tied`; here the eigenvector nearest to a fixed one and the first seed in reading order are taken, elsewhere rounding
decides.

Legend: B pictures, n = h · w patches, d width of the features.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice

import torch
from torch import Tensor
from torch.nn.functional import normalize

from wellcond.evaluation.boxes import box_around
from wellcond.evaluation.components import component_of
from wellcond.spectral import eigen
from wellcond.spectral.krylov import SIMPLE, leading_eigenpair, nearest, starts

TAU, EPSILON = 0.2, 1e-5
SAME = 1e-5  # seeds whose |y| differs by less of the largest are equal
MEAN = 1e-10  # patches whose y is above the mean by less of the largest lie at it, and outside
APART = 0.02  # a gap from which float32 is enough
CLOSE = 1e-5  # to the mean, of the largest: float32, which errs by 1e-7 / APART, cannot say on which side
MOST_NUMBERS = {"cpu": 1 << 21}  # in the matrices of one pass: what a CPU's cache holds
ELSEWHERE = 1 << 28  # 2 GiB


@dataclass(frozen=True, kw_only=True)
class Cut:
    """What TokenCut found in each picture."""

    eigenvector: Tensor  # (B, h, w) float64, of length 1 with D, positive at the seed's side
    foreground: Tensor  # (B, h, w) bool: the whole side of the seed
    component: Tensor  # (B, h, w) bool: the object
    seed: Tensor  # (B,) int64, in reading order
    box: Tensor  # (B, 4) int64, in patches
    tied: Tensor  # (B,) bool

    def __getitem__(self, pictures: slice) -> "Cut":
        return Cut(**{name: getattr(self, name)[pictures] for name in Cut.__dataclass_fields__})


@torch.no_grad()
def token_cut(features: Tensor, grid: tuple[int, int], *, tau: float = TAU, epsilon: float = EPSILON) -> Cut:
    """The object in each picture, from features (B, n, d) of its patches in reading order; n = grid[0] · grid[1]."""
    if features.ndim != 3 or features.shape[1] != grid[0] * grid[1]:
        raise ValueError(f"features are {tuple(features.shape)}; expected (B, {grid[0]} · {grid[1]}, d) for the grid")
    if features.shape[1] < 2:
        raise ValueError(f"the grid is {grid[0]} × {grid[1]}: one patch cannot be cut in two; give larger pictures")
    if not len(features):  # shapes and types are those of one picture
        return token_cut(features.new_zeros(1, *features.shape[1:]), grid)[:0]
    parts = [_cut(chunk, grid, tau, epsilon) for chunk in features.split(_at_once(features))]
    if len(parts) == 1:
        return parts[0]
    return Cut(**{name: torch.cat([getattr(part, name) for part in parts]) for name in Cut.__dataclass_fields__})


def cut_layers(features: Mapping[int, Tensor], grid: tuple[int, int]) -> Iterator[tuple[int, Cut]]:
    """`token_cut` of the same pictures by several layers, (B, n, d) each: as many of them together as one pass takes.

    A cut is some hundred small operations one after the other, whose number hardly grows with the pictures: a GPU
    would spend its time on launching them, layer by layer.
    """
    some = next(iter(features.values()))
    together = max(1, _at_once(some) // max(1, len(some)))
    for _, layers in groupby(features.items(), key=lambda layer: layer[1].shape):  # stages of a pyramid differ
        while group := list(islice(layers, together)):
            cut = token_cut(torch.cat([x for _, x in group]), grid)
            for place, (layer, x) in enumerate(group):
                yield layer, cut[place * len(x) : (place + 1) * len(x)]


def _at_once(features: Tensor) -> int:
    """How many pictures go through in one pass."""
    return max(1, MOST_NUMBERS.get(features.device.type, ELSEWHERE) // features.shape[1] ** 2)


def _cut(features: Tensor, grid: tuple[int, int], tau: float, epsilon: float) -> Cut:
    y, gap = second_eigenvector(alike(features, tau), epsilon)
    seed, equal = _seed(y)
    y = torch.where(y.gather(1, seed[:, None]) < 0, -y, y)  # then it is above the mean
    most = y.amax(1, keepdim=True)
    foreground = (y - y.mean(1, keepdim=True) > MEAN * most).reshape(-1, *grid)
    component = component_of(foreground, seed)
    torn = (equal.reshape(foreground.shape) & ~component).flatten(1).any(1)
    tied = torn | (gap <= SIMPLE)
    shaped = y.reshape(foreground.shape)
    return Cut(
        eigenvector=shaped, foreground=foreground, component=component, seed=seed, box=box_around(component), tied=tied
    )


@torch.no_grad()
def alike(features: Tensor, tau: float = TAU) -> Tensor:
    """Which patches have cos > τ, (B, n, n), as 0 and 1; float32 for features of at most that on a CPU, else float64.

    On a GPU all is float64, which TF32 cannot blur.
    """
    single = features.device.type == "cpu" and features.dtype != torch.float64
    unit = normalize(features.float() if single else features.double(), dim=-1)
    return (unit @ unit.mT).gt_(tau)


def second_eigenvector(joined: Tensor, epsilon: float = EPSILON) -> tuple[Tensor, Tensor]:
    """y (B, n) of the second smallest λ of (D − A) y = λ D y with yᵀD y = 1, and the gap to the third (B,); float64.

    A is 1 where `joined` (B, n, n) is, else ε. From float32, pictures whose eigenvalues lie apart, and whose patches
    lie off the mean, are answered in it, with an error of about 1e-7 / gap; the others, and all from float64, in
    float64; what does not converge there by the dense solver.
    """
    if joined.dtype == torch.float64:
        return _in_float64(joined, epsilon)
    z, gap, converged = _by_krylov(joined, epsilon, tolerance=1e-5)
    y, gap = z.double(), gap.double()
    close = (y - y.mean(1, keepdim=True)).abs().amin(1) <= CLOSE * y.abs().amax(1)
    if (missing := ~converged | (gap < APART) | close).any():
        y[missing], gap[missing] = _in_float64(joined[missing].double(), epsilon)
    return y, gap


def _in_float64(joined: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    y, gap, converged = _by_krylov(joined, epsilon, tolerance=1e-8)
    if (missing := ~converged).any():
        A = (1 - epsilon) * joined[missing] + epsilon
        scale = A.sum(-1).rsqrt()
        z, gap[missing] = _dense(A * scale[:, None] * scale[..., None])
        y[missing] = z * scale
    return y, gap


def _by_krylov(joined: Tensor, epsilon: float, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """(y, gap, converged); ε takes part as a matrix of rank one, so A is never written down."""

    def times_affinity(X: Tensor) -> Tensor:
        return (1 - epsilon) * (joined @ X.mT).mT + epsilon * X.sum(-1, keepdim=True)

    degree = (1 - epsilon) * joined.sum(-1) + epsilon * joined.shape[-1]
    scale = degree.rsqrt()[:, None]
    first = (degree / degree.sum(-1, keepdim=True)).sqrt()[:, None]  # D^{1/2} 1, of length 1
    found = leading_eigenpair(lambda X: scale * times_affinity(scale * X), first, tolerance=tolerance)
    return found.vector * scale[:, 0], found.gap, found.converged


def _dense(N: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = eigen.eigh(N)
    second = values[:, -2]
    gap = second - values[:, -3] if values.shape[1] > 2 else torch.ones_like(second)
    one = values >= second[:, None] - SIMPLE
    one[:, -1] = False
    chosen = nearest(starts(N)[:, :1], vectors, one)
    return torch.where((gap <= SIMPLE)[:, None], chosen, vectors[..., -2]), gap


def _seed(y: Tensor) -> tuple[Tensor, Tensor]:
    """The first patch (B,) whose |y| is the largest, and all that have it (B, n)."""
    size = y.abs()
    equal = size >= (1 - SAME) * size.amax(1, keepdim=True)
    return equal.long().argmax(1), equal  # the first of equal ones
