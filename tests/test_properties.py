"""Properties over drawn spectra: what graying and the numbers must do for every matrix."""

import cases
import numpy as np
import oracles
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import TOLERANCE

import wellcond as wc
from wellcond.graying import fold_patches, unfold_patches

sizes = st.integers(1, 14)
epsilons = st.floats(0.3, 1.0)
factors = st.sampled_from([-300.0, -1.0, 1e-3, 0.5, 7.0, 1e4])
kinds = st.sampled_from(oracles.SPECTRA[:5])


@st.composite
def matrices(draw, kinds=kinds, top=1e6):
    """X = U diag(σ) Vᵀ in float64, with its U, σ, V."""
    n, d = draw(sizes), draw(sizes)
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    kappa = 10 ** draw(st.floats(0, np.log10(top)))
    sigma = draw(st.floats(0.1, 50)) * oracles.spectrum(draw(kinds), min(n, d), kappa, rng)
    X, U, V = oracles.prescribed(n, d, sigma, rng)
    return X, U, sigma, V


def tensor(X: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(X)


def log_kappa(X: np.ndarray) -> float:
    return float(wc.condition_number(tensor(X), log=True))


@given(matrices())
def test_kappa_is_at_least_one_and_is_the_prescribed_one(drawn):
    X, _, sigma, _ = drawn
    assert float(wc.condition_number(tensor(X))) >= 1
    assert abs(log_kappa(X) - np.log(sigma[0] / sigma[-1])) < 1e-7
    stable, effective = float(wc.stable_rank(tensor(X))), float(wc.effective_rank(tensor(X)))
    slack = 1 + 1e-9
    assert stable * slack >= 1 and stable <= effective * slack and effective <= len(sigma) * slack


@given(matrices(top=1e4), factors, st.integers(0, 2**31))
def test_kappa_ignores_scale_and_rotation(drawn, factor, seed):
    X, rng = drawn[0], np.random.default_rng(seed)
    Q, R = oracles.haar(len(X), len(X), rng), oracles.haar(X.shape[1], X.shape[1], rng)
    for other in (factor * X, Q @ X, X @ R, X.T.copy()):
        assert abs(log_kappa(other) - log_kappa(X)) < 1e-9


@given(matrices(), epsilons)
def test_svd_graying_multiplies_log_kappa_by_epsilon(drawn, epsilon):
    X, _, sigma, _ = drawn
    Y = wc.gray_tokens(tensor(X), "svd", epsilon).numpy()
    want = epsilon * np.log(sigma[0] / sigma[-1])
    assert abs(np.log(oracles.condition_number(Y)) - want) < 1e-7
    assert abs(log_kappa(Y) - want) < 1e-7


@given(matrices(), epsilons)
def test_svd_graying_keeps_singular_vectors_and_the_largest_value(drawn, epsilon):
    X, U, sigma, V = drawn
    Y = wc.gray_tokens(tensor(X), "svd", epsilon).numpy()
    want = np.diag(sigma[0] * (sigma / sigma[0]) ** epsilon)
    np.testing.assert_allclose(U.T @ Y @ V, want, atol=1e-9 * sigma[0])


@given(matrices(kinds=st.sampled_from(oracles.SPECTRA)), st.sampled_from(["svd", "dct"]))
def test_epsilon_one_is_the_identity(drawn, method):
    X = drawn[0]
    for rescale in (True, "contrast"):
        Y = wc.gray_tokens(tensor(X), method, 1.0, rescale=rescale)
        assert oracles.relative_error(Y.numpy(), X) <= TOLERANCE["float64"]
    single = X.astype(np.float32)
    Y = wc.gray_tokens(tensor(single), method, 1)
    assert oracles.relative_error(Y.numpy(), single) <= TOLERANCE["float32"]


@given(matrices(), epsilons, factors, st.sampled_from(["svd", "dct"]))
def test_graying_is_scale_equivariant(drawn, epsilon, factor, method):
    X = drawn[0]
    for rescale in (True, "contrast"):
        Y = wc.gray_tokens(tensor(X), method, epsilon, rescale=rescale).numpy()
        Z = wc.gray_tokens(tensor(factor * X), method, epsilon, rescale=rescale).numpy()
        assert oracles.relative_error(Z, factor * Y) <= TOLERANCE["float64"]
    literal = wc.gray_tokens(tensor(X), method, epsilon, rescale=False).numpy()
    scaled = wc.gray_tokens(tensor(factor * X), method, epsilon, rescale=False).numpy()
    assert oracles.relative_error(scaled, np.sign(factor) * literal) <= TOLERANCE["float64"]


@given(matrices(), epsilons)
def test_dct_graying_keeps_signs_and_the_maximum(drawn, epsilon):
    X = drawn[0]
    before = oracles.dct2(X)
    after = oracles.dct2(wc.gray_tokens(tensor(X), "dct", epsilon).numpy())
    top = np.abs(before).max()
    assert abs(np.abs(after).max() - top) <= 1e-10 * top
    assert abs(after.flat[np.abs(before).argmax()] - before.flat[np.abs(before).argmax()]) <= 1e-10 * top
    clear = np.abs(before) > 1e-9 * top
    assert (np.sign(after) == np.sign(before))[clear].all()
    assert (np.abs(after) >= np.abs(before) - 1e-10 * top).all()  # ε ≤ 1 only lifts


@given(matrices(kinds=st.sampled_from(oracles.SPECTRA)), epsilons, st.sampled_from(["svd", "dct"]))
def test_graying_of_the_transpose(drawn, epsilon, method):
    """Both variants treat rows and columns alike: gray(Xᵀ) = gray(X)ᵀ."""
    X = drawn[0]
    Y = wc.gray_tokens(tensor(X), method, epsilon).numpy()
    Z = wc.gray_tokens(tensor(X.T.copy()), method, epsilon).numpy()
    assert oracles.relative_error(Z.T, Y) <= 1e-8


@given(matrices(), st.floats(0.5, 0.99), st.floats(0.5, 0.99))
def test_svd_graying_composes(drawn, first, second):
    X = drawn[0]
    twice = wc.gray_tokens(wc.gray_tokens(tensor(X), "svd", first), "svd", second)
    once = wc.gray_tokens(tensor(X), "svd", first * second)
    assert oracles.relative_error(twice.numpy(), once.numpy()) <= 1e-8


@given(
    st.integers(0, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3),
    st.tuples(st.integers(1, 4), st.integers(1, 4)), st.sampled_from(["rows", "channels"]),
)  # fmt: skip
def test_fold_undoes_unfold(batch, channels, rows, columns, patch, order):
    shape = (channels, rows * patch[0], columns * patch[1])
    images = torch.randn(batch, *shape)
    tokens = unfold_patches(images, patch, order)
    assert tokens.shape == (batch, rows * columns, channels * patch[0] * patch[1])
    assert torch.equal(fold_patches(tokens, shape, patch, order), images)
    assert np.array_equal(tokens.numpy(), oracles.unfold(images.numpy(), patch, order))


@given(st.integers(0, 2**31), epsilons, st.sampled_from(["svd", "dct"]))
def test_graying_of_images_commutes_with_the_batch(seed, epsilon, method):
    images = cases.images(3, 3, 8, 12, seed=seed, dtype=torch.float64)
    module = wc.TokenGraying(4, method, epsilon, precision="exact")
    shuffled = module(images[[2, 0, 1]])
    torch.testing.assert_close(shuffled, module(images)[[2, 0, 1]], rtol=1e-9, atol=1e-11)
