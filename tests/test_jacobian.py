"""Jacobian spectra against numpy on matrices that the tests write down themselves, and Lanczos against both.

A linear map with a prescribed spectrum is its own Jacobian. Attention is checked against `torch.func.jacrev`, finite
differences and the closed form of `oracles.attention_jacobian`.
"""

import math
import warnings

import numpy as np
import oracles
import pytest
import torch
from oracles import TOLERANCE
from timm.layers.attention import Attention
from torch import Tensor, nn

from wellcond.jacobian import jacobian_spectrum

METHODS = ("exact", "lanczos")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(sigma: np.ndarray, shape_in=(6, 8), shape_out=(6, 8), seed=0, dtype=torch.float64):
    """(f, X): f is linear with these singular values."""
    rng = np.random.default_rng(seed)
    J = torch.from_numpy(oracles.prescribed(math.prod(shape_out), math.prod(shape_in), sigma, rng)[0]).to(dtype)
    X = torch.from_numpy(rng.standard_normal(shape_in)).to(dtype)
    return lambda X: (J @ X.flatten()).reshape(shape_out), X


def attention(n: int, d: int, seed: int, dtype=torch.float64, scale=1.0):
    """(f, X, weights): softmax attention of one head without biases, for (…, n, d)."""
    rng = np.random.default_rng(seed)
    W = [rng.standard_normal((d, d)) / math.sqrt(d) for _ in range(4)]
    q, k, v, o = (torch.from_numpy(w).to(dtype) for w in W)
    X = torch.from_numpy(scale * rng.standard_normal((n, d))).to(dtype)
    return lambda X: torch.softmax(X @ q @ (X @ k).mT / math.sqrt(d), -1) @ (X @ v @ o), X, W


def distance(values: Tensor, spectrum: np.ndarray) -> np.ndarray:
    """From each value to the nearest of the spectrum."""
    return np.abs(values.numpy()[:, None] - spectrum).min(-1)


# --- exact -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(4, 9), (9, 4), (6, 6), (1, 5), (5, 1)])
@pytest.mark.parametrize("chunk_size", [1, 7, 64])
def test_exact_against_jacrev_and_the_closed_form(n, d, chunk_size):
    f, X, W = attention(n, d, seed=n + d)
    spectrum = jacobian_spectrum(f, X, chunk_size=chunk_size)
    J = torch.func.jacrev(f)(X).reshape(n * d, n * d).numpy()
    closed = np.add(*oracles.attention_jacobian(X.numpy(), *W))
    assert spectrum.method == "exact" and spectrum.complete and (spectrum.n, spectrum.d) == (n, d)
    for matrix in (J, closed):
        want = oracles.singular_values(matrix)
        assert np.abs(spectrum.sigma.numpy() - want).max() <= TOLERANCE["float64"] * want[0]


def test_exact_against_finite_differences():
    f, X, _ = attention(5, 4, seed=3)
    h, columns = 1e-5, []
    for i in range(X.numel()):
        step = torch.zeros(X.numel(), dtype=X.dtype)
        step[i] = h
        columns.append(((f(X + step.view_as(X)) - f(X - step.view_as(X))) / (2 * h)).flatten().numpy())
    want = oracles.singular_values(np.stack(columns, 1))
    assert np.abs(jacobian_spectrum(f, X).sigma.numpy() - want).max() <= 1e-8


@pytest.mark.parametrize("kappa", [1.0, 1e2, 1e5, 1e8])
@pytest.mark.parametrize("shapes", [((6, 8), (6, 8)), ((4, 8), (6, 8)), ((6, 8), (3, 10))], ids=str)
def test_exact_promises_kappa_in_float64(kappa, shapes):
    r = min(math.prod(shape) for shape in shapes)
    spectrum = jacobian_spectrum(*linear(np.geomspace(1, 1 / kappa, r), *shapes))
    assert spectrum.kappa.item() == pytest.approx(kappa, rel=1e-5)
    lower, upper = (bound.item() for bound in spectrum.kappa_bounds)
    assert lower <= kappa <= upper <= kappa * (1 + 1e-4) and spectrum.resolved
    assert spectrum.log_kappa.item() == pytest.approx(math.log(kappa), abs=1e-4)


def test_float32_refuses_what_float32_cannot_hold():
    f, X = linear(np.geomspace(1, 1e-3, 48), dtype=torch.float32)
    assert jacobian_spectrum(f, X).log_kappa.item() == pytest.approx(math.log(1e3), abs=1e-2)
    f, X = linear(np.geomspace(1, 1e-8, 48), dtype=torch.float32)
    spectrum = jacobian_spectrum(f, X)
    assert spectrum.kappa == torch.inf and spectrum.floor_count >= 1
    assert spectrum.kappa_bounds[0] > 1e5 and spectrum.kappa_bounds[1] == torch.inf
    assert "under the floor" in str(spectrum)


@pytest.mark.parametrize("scale", [1.0, 6.0])  # 6: logits of ±50, where rounding is far above eps · σ_max
def test_float32_bars_cover_float32_rounding(scale):
    """Against the float64 Jacobian of the very same float32 numbers; 10 seeds × all values, and bars not vacuous."""
    for seed in range(10):
        f, X, W = attention(6, 10, seed, torch.float32, scale)
        q, k, v, o = (torch.from_numpy(w).float().double() for w in W)
        J = torch.func.jacrev(lambda X: torch.softmax(X @ q @ (X @ k).mT / math.sqrt(10), -1) @ (X @ v @ o))  # noqa: B023
        want = oracles.singular_values(J(X.double()).reshape(60, 60).numpy())
        spectrum = jacobian_spectrum(f, X)
        gap = np.abs(spectrum.sigma.numpy() - want)
        assert (gap <= spectrum.error.numpy()).all(), seed
        assert spectrum.error.max() <= 1e3 * max(gap.max(), 1e-7 * want[0]), seed


@pytest.mark.parametrize(("eps", "nulls"), [(0.0, 2), (1e-5, 1)])
def test_through_layer_norm_it_is_singular(eps, nulls):
    """Null directions: the mean and, if nothing is added to the variance, the length; n of each."""
    n, d = 5, 7
    f, X, _ = attention(n, d, seed=1)
    through = lambda X: f(torch.nn.functional.layer_norm(X, (d,), eps=eps))  # noqa: E731
    spectrum = jacobian_spectrum(through, X)
    assert spectrum.floor_count == nulls * n and spectrum.kappa == torch.inf
    assert jacobian_spectrum(f, X).floor_count == 0
    found = jacobian_spectrum(through, X, "lanczos", max_steps=n * d)
    assert found.kappa == torch.inf and found.singular


def test_tokenwise_maps_are_exact_at_any_number_of_tokens():
    """An MLP on 300 tokens, 4800 × 4800: the union of 300 small spectra."""
    torch.manual_seed(1)
    mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).double()
    X = torch.randn(2, 300, 16, dtype=torch.float64)
    spectrum = jacobian_spectrum(mlp, X)
    assert spectrum.method == "exact" and spectrum.complete and spectrum.sigma.shape == (2, 4800)
    blocks = torch.vmap(torch.func.jacrev(mlp))(X[1]).detach().numpy()
    want = np.sort(oracles.singular_values(blocks).flatten())[::-1]
    np.testing.assert_allclose(spectrum.sigma[1].numpy(), want, atol=1e-12)


# --- batches, precision, modules ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_batches_are_their_images(method, monkeypatch):
    f, _, _ = attention(5, 4, seed=0)
    X = torch.randn(3, 5, 4, dtype=torch.float64)
    want = torch.stack([jacobian_spectrum(f, x, "exact").sigma for x in X])
    assert (jacobian_spectrum(f, X, method, max_steps=20).sigma - want).abs().max() < 1e-12
    monkeypatch.setattr("wellcond.jacobian.spectrum._GROUP_BYTES", 1)  # one image at a time
    assert (jacobian_spectrum(f, X, method, max_steps=20).sigma - want).abs().max() < 1e-12


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: lambda X: m(X)], ids=["module", "closure"])
@pytest.mark.parametrize("method", METHODS)
def test_a_float32_module_is_measured_in_float64(wrap, method):
    module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
    X = torch.randn(1, 5, 8)
    before = {name: p.clone() for name, p in module.named_parameters()}
    spectrum = jacobian_spectrum(wrap(module), X, method, module=module, dtype=torch.float64, max_steps=40)
    want = jacobian_spectrum(module.double(), X.double(), "exact").sigma
    assert (spectrum.sigma - want).abs().max() < 1e-12
    module.float()
    assert all(p.dtype == torch.float32 and torch.equal(p, before[name]) for name, p in module.named_parameters())


def test_fused_attention_autocast_and_inference_mode():
    """timm's attention calls a fused kernel without second derivatives; autocast would compute in bf16."""
    attn = Attention(24, num_heads=3).eval()
    X = torch.randn(2, 9, 24)
    want = jacobian_spectrum(attn, X, "exact", dtype=torch.float64).sigma
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        got = jacobian_spectrum(attn, X, "lanczos")
    assert ((got.sigma - want[:, :16]).abs() <= 2 * got.error).all() and got.floor.max() < 1e-5 * want.max()
