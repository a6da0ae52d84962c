"""Slow, obvious references in float64: numpy, scipy and loops, and nothing of ours.

Shapes: X (…, n, d) tokens × width, images (B, C, H, W). Every function takes numpy arrays. The precision
rules depend on the dtype of the input (float64, or float32 and lower); the arithmetic is float64 always.
Formulas: "Always Skip Attention" (arXiv 2505.01996), Algorithms 1 and 2, with the decisions of the project:
multiply back by the maximum, leave singular values at or under the numerical floor as they are.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import scipy.fft

# Tolerances, declared once. Relative Frobenius errors unless the name says log.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
FAST = 1e-3  # float32 input, precision="fast"
LOG_SIGMA = {"exact": 1e-2, "fast": 0.05}  # every log σ, float32 input, κ ≤ 1e5
LOG_KAPPA = 1e-3  # log κ, κ ≤ 1e6
MODEL_FAST = 3e-3  # the output of a small network whose pixels are within FAST

EPS64 = float(np.finfo(np.float64).eps)
EPS32 = float(np.finfo(np.float32).eps)

Array = np.ndarray


def relative_error(got: Array, want: Array) -> float:
    """Largest relative Frobenius error over the leading dimensions; 0/0 counts as 0, x/0 as inf."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (got.shape, want.shape)
    if want.size == 0:
        return 0.0
    axes = (-2, -1) if want.ndim > 1 else None
    gap, size = np.sqrt(((got - want) ** 2).sum(axes)), np.sqrt((want**2).sum(axes))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(gap == 0, 0.0, gap / size)
    return float(np.max(ratio))


# --- numbers about one spectrum ----------------------------------------------------------------------------


def singular_values(X: Array) -> Array:
    return np.linalg.svd(np.asarray(X, np.float64), compute_uv=False)


def floor(X: Array) -> Array:
    """The value at or under which a singular value is rounding noise, (…, n, d) → (…)."""
    n, d = X.shape[-2:]
    top = singular_values(X)[..., 0]
    if X.dtype == np.float64:
        return EPS64 * max(n, d) * top
    gram = math.sqrt(EPS64 * max(n, d)) * top
    norm = np.sqrt((np.asarray(X, np.float64) ** 2).sum((-2, -1)))
    rounding = 2 * EPS32 * (1 / math.sqrt(n) + 1 / math.sqrt(d)) * norm
    return np.maximum(gram, rounding)


def numerical_floor(X: Array) -> Array:
    return (singular_values(X) <= floor(X)[..., None]).sum(-1)


def condition_number(X: Array) -> Array:
    sigma = singular_values(X)
    kappa = np.empty(sigma.shape[:-1])
    for index in np.ndindex(kappa.shape):
        if sigma[index][0] == 0:
            kappa[index] = np.nan
        elif numerical_floor(X[index]) > 0:
            kappa[index] = np.inf
        else:
            kappa[index] = sigma[index][0] / sigma[index][-1]
    return kappa


def effective_rank(X: Array) -> Array:
    """exp of the Shannon entropy of σ/Σσ (Roy and Vetterli, 2007)."""
    sigma = singular_values(X)
    rank = np.empty(sigma.shape[:-1])
    for index in np.ndindex(rank.shape):
        total = sigma[index].sum()
        if total == 0:
            rank[index] = np.nan
            continue
        rank[index] = math.exp(-sum(p * math.log(p) for p in sigma[index] / total if p > 0))
    return rank


def stable_rank(X: Array) -> Array:
    sigma = singular_values(X)
    with np.errstate(invalid="ignore"):
        return (sigma**2).sum(-1) / sigma[..., 0] ** 2


# --- maps of the spectrum ----------------------------------------------------------------------------------


def spectral_map(X: Array, f: Callable[[Array], Array]) -> Array:
    """U f(Σ) Vᵀ one matrix after the other; values at or under the floor stay."""
    Y = np.zeros(X.shape)
    for index in np.ndindex(X.shape[:-2]):
        U, sigma, Vt = np.linalg.svd(np.asarray(X[index], np.float64), full_matrices=False)
        keep = sigma <= floor(X[index])
        with np.errstate(divide="ignore", invalid="ignore"):
            mapped = np.where(keep, sigma, f(sigma))
        Y[index] = (U * mapped) @ Vt
    return Y


def _rescale(Y: Array, X: Array, top: float, rescale: bool | str) -> Array:
    """Y keeps the maximum `top`. True: as it is; False: Algorithm 1 to the letter; "contrast": norm of X."""
    if rescale is True or top == 0:
        return Y
    if rescale is False:
        return Y / top
    assert rescale == "contrast", rescale
    return Y * (np.linalg.norm(np.asarray(X, np.float64)) / np.linalg.norm(Y))


def gray_svd(X: Array, epsilon: float, rescale: bool | str = True) -> Array:
    Y = spectral_map(X, lambda sigma: sigma[0] * (sigma / sigma[0]) ** epsilon if sigma[0] else sigma)
    for index in np.ndindex(X.shape[:-2]):
        Y[index] = _rescale(Y[index], X[index], float(singular_values(X[index])[0]), rescale)
    return Y


def dct2(X: Array) -> Array:
    """D_n X D_dᵀ with orthonormal DCT-II matrices."""
    return np.asarray(scipy.fft.dctn(np.asarray(X, np.float64), type=2, axes=(-2, -1), norm="ortho"))


def idct2(coefficients: Array) -> Array:
    return np.asarray(scipy.fft.idctn(coefficients, type=2, axes=(-2, -1), norm="ortho"))


def gray_dct(X: Array, epsilon: float, rescale: bool | str = True) -> Array:
    Y = np.zeros(X.shape)
    for index in np.ndindex(X.shape[:-2]):
        coefficients = dct2(X[index])
        top = float(np.abs(coefficients).max())
        if top == 0:
            continue
        grayed = np.sign(coefficients) * (np.abs(coefficients) / top) ** epsilon * top
        Y[index] = _rescale(idct2(grayed), X[index], top, rescale)
    return Y


def gray_tokens(X: Array, method: str, epsilon: float, rescale: bool | str = True) -> Array:
    return {"svd": gray_svd, "dct": gray_dct}[method](X, epsilon, rescale)


def dct_matrix(n: int) -> Array:
    """Row k, column j: c_k cos(π (2j+1) k / 2n), from the textbook."""
    D = np.empty((n, n))
    for k, j in itertools.product(range(n), range(n)):
        scale = math.sqrt((1 if k == 0 else 2) / n)
        D[k, j] = scale * math.cos(math.pi * (2 * j + 1) * k / (2 * n))
    return D


# --- patches -----------------------------------------------------------------------------------------------


def _pixels(shape, patch, order):
    """Yield (token, position inside the token, channel, row, column), patches in reading order."""
    (C, H, W), (ph, pw) = shape, patch
    token = 0
    for top in range(0, H, ph):
        for left in range(0, W, pw):
            if order == "rows":
                walk = ((c, i, j) for i in range(ph) for j in range(pw) for c in range(C))
            else:
                assert order == "channels", order
                walk = ((c, i, j) for c in range(C) for i in range(ph) for j in range(pw))
            for inside, (c, i, j) in enumerate(walk):
                yield token, inside, c, top + i, left + j
            token += 1


def pair(patch_size) -> tuple[int, int]:
    return (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)


def _addresses(shape, patch_size, order):
    patch = pair(patch_size)
    assert shape[1] % patch[0] == 0 and shape[2] % patch[1] == 0, (shape, patch)
    return np.array(list(_pixels(shape, patch, order))).T


def unfold(images: Array, patch_size, order: str = "rows") -> Array:
    B, C, H, W = images.shape
    ph, pw = pair(patch_size)
    token, inside, c, i, j = _addresses((C, H, W), patch_size, order)
    tokens = np.zeros((B, (H // ph) * (W // pw), ph * pw * C), images.dtype)
    tokens[:, token, inside] = images[:, c, i, j]
    return tokens


def fold(tokens: Array, image_shape, patch_size, order: str = "rows") -> Array:
    token, inside, c, i, j = _addresses(tuple(image_shape), patch_size, order)
    images = np.zeros((tokens.shape[0], *image_shape), tokens.dtype)
    images[:, c, i, j] = tokens[:, token, inside]
    return images


def gray_images(
    images: Array, patch_size, method: str, epsilon: float, rescale: bool | str = True, order: str = "rows"
) -> Array:
    """unfold → gray in float64 → fold. The floor follows the dtype of `images`."""
    tokens = gray_tokens(unfold(images, patch_size, order), method, epsilon, rescale)
    return fold(tokens, images.shape[1:], patch_size, order)


# --- matrices with a prescribed spectrum -------------------------------------------------------------------


def haar(n: int, r: int, rng: np.random.Generator) -> Array:
    """n × r with orthonormal columns, Haar distributed (QR of a Gaussian, signs fixed: Mezzadri, 2007)."""
    Q, R = np.linalg.qr(rng.standard_normal((n, r)))
    signs = np.where(np.diag(R) < 0, -1.0, 1.0)
    return Q * signs


SPECTRA: tuple[str, ...] = ("log-spaced", "clustered", "one-large", "two-level", "repeated", "rank-deficient")


def spectrum(kind: str, r: int, kappa: float, rng: np.random.Generator) -> Array:
    """r values from 1 down to 1/κ (rank-deficient: and then zeros)."""
    if r == 1:
        return np.ones(1)
    if kind == "log-spaced":
        return np.geomspace(1, 1 / kappa, r)
    if kind == "clustered":
        jitter = np.linspace(0, min(1e-3, (1 - 1 / kappa) / 3), r) * rng.random()
        return np.where(np.arange(r) < (r + 1) // 2, 1 - jitter, (1 + jitter[::-1]) / kappa)
    if kind == "one-large":
        return np.where(np.arange(r) == 0, 1.0, 1 / kappa)
    if kind == "two-level":
        return np.where(np.arange(r) < (r + 1) // 2, 1.0, 1 / kappa)
    if kind == "repeated":
        return np.array([kappa ** -((3 * k // r) / 2) for k in range(r - 1)] + [1 / kappa])
    assert kind == "rank-deficient", kind
    rank = max(1, r - max(1, r // 3))
    return np.concatenate([np.geomspace(1, 1 / kappa, rank) if rank > 1 else np.ones(1), np.zeros(r - rank)])


def prescribed(n: int, d: int, sigma: Array, rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """X = U diag(σ) Vᵀ with Haar factors; returns X, U (n × r), V (d × r)."""
    r = min(n, d)
    assert len(sigma) == r
    U, V = haar(n, r, rng), haar(d, r, rng)
    return (U * sigma) @ V.T, U, V


# --- attention ---------------------------------------------------------------------------------------------


def linear_attention(X: Array, Wq: Array, Wk: Array, Wv: Array) -> Array:
    return X @ Wq @ Wk.T @ X.T @ X @ Wv


def softmax(logits: Array) -> Array:
    """Row by row."""
    S = np.empty_like(logits)
    for i, row in enumerate(logits):
        weights = np.exp(row - row.max())
        S[i] = weights / weights.sum()
    return S


def softmax_attention(X: Array, Wq: Array, Wk: Array, Wv: Array, Wo: Array) -> Array:
    """One head, no biases."""
    return softmax(X @ Wq @ Wk.T @ X.T / math.sqrt(Wq.shape[1])) @ X @ Wv @ Wo


def attention_jacobian(X: Array, Wq: Array, Wk: Array, Wv: Array, Wo: Array) -> tuple[Array, Array]:
    """E and B of K = E + B, the Jacobian of `softmax_attention` for column-major vec.

    E = (X W_V W_O ⊗ I)ᵀ Λ [(X Mᵀ ⊗ I) + (I ⊗ X M) T], B = (W_V W_O)ᵀ ⊗ A, M = W_Q W_Kᵀ/√d_h.
    """
    n, d = X.shape
    M = Wq @ Wk.T / math.sqrt(Wq.shape[1])
    A, W = softmax(X @ M @ X.T), Wv @ Wo
    T = np.zeros((n * d, n * d))
    for i, j in itertools.product(range(n), range(d)):
        T[j + d * i, i + n * j] = 1  # T vec(X) = vec(Xᵀ)
    Lambda = np.zeros((n * n, n * n))
    for i, j, k in itertools.product(range(n), range(n), range(n)):
        Lambda[i + n * j, i + n * k] = A[i, j] * ((j == k) - A[i, k])
    dA = Lambda @ (np.kron(X @ M.T, np.eye(n)) + np.kron(np.eye(n), X @ M) @ T)
    return np.kron(X @ W, np.eye(n)).T @ dA, np.kron(W.T, A)
