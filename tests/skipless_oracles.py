"""Slow, obvious references for residual-free transformers and SOAP: numpy, scipy, loops, float64, nothing of ours.

"Cutting the Skip" (arXiv 2510.00345) for the initialization, "SOAP" (arXiv 2409.11321), Algorithm 3, for the optimizer.
Shapes: X (n, d) tokens × width, H heads of width d_h; weights act from the right, y = x W, as in the papers.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from oracles import Array, haar, singular_values, softmax
from scipy.special import erf

# --- the initialization ------------------------------------------------------------------------------------


def head_target(d: int, alpha: float, beta: float, rng: np.random.Generator, z: str = "normal") -> Array:
    """αZ + βI with E[Z_ij²] = 1/d."""
    if z == "normal":
        Z = rng.standard_normal((d, d)) / math.sqrt(d)
    else:
        assert z == "uniform", z
        Z = rng.uniform(-1, 1, (d, d)) * math.sqrt(3 / d)
    return alpha * Z + beta * np.eye(d)


def best_rank(M: Array, rank: int) -> Array:
    """Eckart–Young: the largest `rank` singular triples of M, added one by one."""
    U, sigma, Vt = np.linalg.svd(M)
    P = np.zeros_like(M)
    for k in range(rank):
        P += sigma[k] * np.outer(U[:, k], Vt[k])
    return P


def head_numbers(P: Array, rank: int) -> Array:
    """What αZ + βI decides without Z: the spectrum, the trace, the size of the symmetric part."""
    return np.concatenate([singular_values(P)[:rank], [np.trace(P), np.linalg.norm(P + P.T)]])


def drawn_heads(num: int, d: int, rank: int, alpha: float, beta: float, *, z: str = "normal", seed: int = 0) -> Array:
    """(num, rank + 2): `head_numbers` of independent draws."""
    rng = np.random.default_rng([seed, d, rank])
    return np.stack([head_numbers(best_rank(head_target(d, alpha, beta, rng, z), rank), rank) for _ in range(num)])


def same_distribution(got: Array, want: Array) -> Array:
    """Columns' distance of means in standard errors of that distance."""
    spread = got.var(0, ddof=1) / len(got) + want.var(0, ddof=1) / len(want)
    return np.abs(got.mean(0) - want.mean(0)) / np.sqrt(spread + 1e-12)


def diagonal_mass(logits: Array) -> float:
    return float(np.diag(softmax(logits)).mean())


def layer_norm(X: Array) -> Array:
    return (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-6)


def gelu(X: Array) -> Array:
    return X * (1 + erf(X / math.sqrt(2))) / 2


def depth_profile(X: Array, num_heads: int, depth: int, alpha: float, beta: float, c: float, seed: int) -> list[float]:
    """Diagonal attention mass of each block of a skipless transformer at initialization, mean over heads."""
    rng = np.random.default_rng(seed)
    n, d = X.shape
    width, profile = d // num_heads, []
    for _ in range(depth):
        Y = layer_norm(X)
        values, mixed, masses = c * Y @ haar(d, d, rng), np.empty((n, d)), []
        for h in range(num_heads):
            logits = Y @ best_rank(head_target(d, alpha, beta, rng), width) @ Y.T / math.sqrt(width)
            mine = slice(h * width, (h + 1) * width)
            mixed[:, mine] = softmax(logits) @ values[:, mine]
            masses.append(diagonal_mass(logits))
        profile.append(float(np.mean(masses)))
        Y = layer_norm(c * mixed @ haar(d, d, rng))
        X = gelu(Y @ (2 * haar(4 * d, d, rng).T)) @ haar(4 * d, d, rng)  # SUO gains √(4d/d) = 2 and 1
    return profile


# --- SOAP --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Convention:
    """Where Algorithm 3 and the implementations in use differ, and any consistent choice is right.

    eps      "plain": lr √(1−β₂ᵗ)/(1−β₁ᵗ) · M/(√V + ε), the authors' code; "corrected": M̂/(√V̂ + ε), Adam's paper
    decay    the weight is shrunk "before" the update (torch's AdamW) or "after" it (the authors' code)
    refresh  the basis is renewed at the "end" of a step, for the next one (Algorithm 3), or at its "start"
    ordered  columns are sorted by their estimated eigenvalue before QR, and V with them; or left in place
    phases   axis k is renewed at updates t with (t + phases[k]) % frequency == 0; t counts updates, from 1
    late     but not before t = frequency: an earlier basis rests on too few gradients
    """

    eps: str = "plain"
    decay: str = "after"
    refresh: str = "end"
    ordered: bool = True
    phases: tuple[int, ...] = (0, 0, 0, 0)
    late: bool = False


def conventions() -> Iterator[Convention]:
    """All of them but for the phases; the authors' own first."""
    choices = itertools.product(("plain", "corrected"), ("after", "before"), ("end", "start"), (True, False))
    for eps, decay, refresh, ordered in choices:
        yield Convention(eps=eps, decay=decay, refresh=refresh, ordered=ordered)


@dataclass(kw_only=True)
class Soap:
    """One parameter W of any number of dimensions: Adam in the eigenbases of the Gram matrices of its gradients.

    `rotate=False` is Adam (vectors); axes longer than `cap` are not rotated; `eigh` renews by a full decomposition.
    """

    W: Array
    lr: float
    betas: tuple[float, float]
    eps: float = 1e-8
    decay: float = 0.0
    frequency: int = 10
    convention: Convention
    rotate: bool = True
    cap: int = 10_000
    eigh: bool = False

    def __post_init__(self) -> None:
        self.W = np.array(self.W, np.float64)
        self.M, self.V = np.zeros(self.W.shape), np.zeros(self.W.shape)
        self.axes = [k for k, size in enumerate(self.W.shape) if self.rotate and size <= self.cap]
        self.grams = {k: np.zeros((self.W.shape[k],) * 2) for k in self.axes}
        self.bases: dict[int, Array] = {}
        self.t = 0

    def build(self, G: Array, bases: dict[int, Array] | None = None) -> None:
        """The first step: bases only, W stays. `bases` are taken where a Gram matrix has no unique ones."""
        self._gather(G)
        for k in self.axes:
            self.bases[k] = bases[k] if bases else np.linalg.eigh(self.grams[k])[1][:, ::-1]

    def step(self, G: Array) -> None:
        self.t += 1
        beta1, beta2 = self.betas
        early = self.convention.refresh == "start"
        if early:
            self._gather(G)
            self._renew()
        rotated = self._turn(G, back=False)
        self.M = beta1 * self.M + (1 - beta1) * G  # in the space of W: a new basis changes nothing in it
        self.V = beta2 * self.V + (1 - beta2) * rotated * rotated
        mean, square = self._turn(self.M, back=False) / (1 - beta1**self.t), 1 - beta2**self.t
        if self.convention.eps == "plain":
            update = math.sqrt(square) * mean / (np.sqrt(self.V) + self.eps)
        else:
            update = mean / (np.sqrt(self.V / square) + self.eps)
        shrink, update = 1 - self.lr * self.decay, self._turn(update, back=True)
        before = self.convention.decay == "before"
        self.W = shrink * self.W - self.lr * update if before else shrink * (self.W - self.lr * update)
        if not early:
            self._gather(G)
            self._renew()

    def _gather(self, G: Array) -> None:
        for k in self.axes:
            rows = np.moveaxis(G, k, 0).reshape(G.shape[k], -1)
            self.grams[k] = self.betas[1] * self.grams[k] + (1 - self.betas[1]) * rows @ rows.T

    def _renew(self) -> None:
        due = [k for k in self.axes if (self.t + self.convention.phases[k]) % self.frequency == 0]
        due = [] if self.convention.late and self.t < self.frequency else due
        for k in due:
            if self.eigh:
                self.bases[k] = np.linalg.eigh(self.grams[k])[1][:, ::-1]
                continue
            power, order = self.grams[k] @ self.bases[k], np.arange(len(self.bases[k]))
            if self.convention.ordered:
                order = np.argsort(-np.diag(self.bases[k].T @ power), kind="stable")
                self.V = np.take(self.V, order, axis=k)
            self.bases[k] = np.linalg.qr(power[:, order])[0]

    def _turn(self, T: Array, *, back: bool) -> Array:
        for k, Q in self.bases.items():
            T = np.moveaxis(np.tensordot(Q if back else Q.T, T, axes=(1, k)), 0, k)
        return T


@dataclass(frozen=True, kw_only=True)
class Slope:
    """∇ of ½ Σ h (W − W*)² plus the noise of a mini-batch, drawn anew for each step: full rank, and follows W."""

    shape: tuple[int, ...]
    seed: int = 0
    noise: float = 0.3

    def __call__(self, W: Array, step: int) -> Array:
        rng = np.random.default_rng([self.seed, *self.shape])
        h, goal = rng.uniform(0.2, 3.0, self.shape), rng.standard_normal(self.shape)
        fresh = np.random.default_rng([self.seed, step + 1, *self.shape]).standard_normal(self.shape)
        return h * (W - goal) + self.noise * fresh


def start(shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng([seed, 99, *shape]).standard_normal(shape)


def trajectory(
    soap: Soap,
    gradient: Callable[[Array, int], Array],
    num_steps: int,
    *,
    build: bool = True,
    bases: dict[int, Array] | None = None,
) -> Array:
    """(num_steps, …): W after each step. Without `build` the first step is an update too."""
    seen = []
    for step in range(num_steps):
        G = gradient(soap.W, step)
        if step == 0 and build:
            soap.build(G, bases)
        else:
            soap.step(G)
        seen.append(soap.W.copy())
    return np.stack(seen)
