"""The oracles against each other and against identities, so that a wrong oracle cannot pass unseen."""

import math

import numpy as np
import oracles
import pytest
import scipy.linalg

RNG_SHAPES = [(12, 40), (24, 24), (50, 16)]


@pytest.mark.parametrize("kind", oracles.SPECTRA)
@pytest.mark.parametrize(("n", "d"), RNG_SHAPES)
def test_prescribed_spectrum_is_what_svd_finds(n, d, kind):
    rng = np.random.default_rng(1)
    sigma = oracles.spectrum(kind, min(n, d), 1e4, rng)
    X, U, V = oracles.prescribed(n, d, sigma, rng)
    assert (np.diff(sigma) <= 0).all() and sigma[0] == 1
    np.testing.assert_allclose(oracles.singular_values(X), sigma, atol=1e-13)
    np.testing.assert_allclose(U.T @ X @ V, np.diag(sigma), atol=1e-13)
    zeros = int((sigma == 0).sum())
    assert oracles.numerical_floor(X) == zeros and (zeros > 0) == (kind == "rank-deficient")
    want = math.inf if zeros else 1e4
    np.testing.assert_allclose(oracles.condition_number(X), want, rtol=1e-8)


@pytest.mark.parametrize(("n", "d"), RNG_SHAPES)
def test_map_to_one_is_the_polar_factor(n, d):
    X = np.random.default_rng(2).standard_normal((n, d))
    polar, _ = scipy.linalg.polar(X, side="left" if n < d else "right")
    np.testing.assert_allclose(oracles.spectral_map(X, np.ones_like), polar, atol=1e-12)
    np.testing.assert_allclose(oracles.spectral_map(X, lambda s: 1 / s), np.linalg.pinv(X).T, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.3, 0.7, 1.0])
@pytest.mark.parametrize(("n", "d"), [(6, 20), (12, 12)])
def test_graying_is_a_power_of_the_gram_matrix(n, d, epsilon):
    """U Σ^ε Vᵀ = (X Xᵀ)^{(ε−1)/2} X, here through scipy's fractional matrix power."""
    rng = np.random.default_rng(3)
    X = oracles.prescribed(n, d, 2.5 * oracles.spectrum("log-spaced", n, 50.0, rng), rng)[0]
    power = np.real(scipy.linalg.fractional_matrix_power(X @ X.T, (epsilon - 1) / 2))
    want = power @ X * 2.5 ** (1 - epsilon)
    assert oracles.relative_error(oracles.gray_svd(X, epsilon), want) < 1e-10


@pytest.mark.parametrize(("n", "d"), [(1, 5), (7, 4), (9, 9)])
def test_dct_is_the_textbook_matrix(n, d):
    X = np.random.default_rng(4).standard_normal((n, d))
    Dn, Dd = oracles.dct_matrix(n), oracles.dct_matrix(d)
    np.testing.assert_allclose(Dn @ Dn.T, np.eye(n), atol=1e-13)
    np.testing.assert_allclose(oracles.dct2(X), Dn @ X @ Dd.T, atol=1e-13)
    hat = Dn @ X @ Dd.T
    top = np.abs(hat).max()
    want = Dn.T @ (np.sign(hat) * (np.abs(hat) / top) ** 0.8 * top) @ Dd
    np.testing.assert_allclose(oracles.gray_dct(X, 0.8), want, atol=1e-13)


def test_a_numbered_image_unfolds_as_written_by_hand():
    """Two channels, 2 × 4 pixels, patches of 2: channel c, row i, column j holds 100c + 10i + j."""
    c, i, j = np.meshgrid(range(2), range(2), range(4), indexing="ij")
    images = (100 * c + 10 * i + j)[None]
    rows = [[0, 100, 1, 101, 10, 110, 11, 111], [2, 102, 3, 103, 12, 112, 13, 113]]
    channels = [[0, 1, 10, 11, 100, 101, 110, 111], [2, 3, 12, 13, 102, 103, 112, 113]]
    assert oracles.unfold(images, 2, "rows").tolist() == [rows]
    assert oracles.unfold(images, 2, "channels").tolist() == [channels]
    for order in ("rows", "channels"):
        tokens = oracles.unfold(images, (1, 2), order)
        assert tokens.shape == (1, 4, 4)
        assert np.array_equal(oracles.fold(tokens, (2, 2, 4), (1, 2), order), images)


def test_ranks_of_known_spectra():
    X = np.stack([np.eye(5), np.diag([1.0, 0, 0, 0, 0]), np.zeros((5, 5)), np.diag([2.0, 1, 0, 0, 0])])
    p = np.array([2 / 3, 1 / 3])
    want = [5, 1, np.nan, math.exp(-(p * np.log(p)).sum())]
    np.testing.assert_allclose(oracles.effective_rank(X), want, rtol=1e-12)
    np.testing.assert_allclose(oracles.stable_rank(X), [5, 1, np.nan, 5 / 4], rtol=1e-12)
    np.testing.assert_allclose(oracles.condition_number(X), [1, np.inf, np.nan, np.inf])
    assert oracles.numerical_floor(X).tolist() == [0, 4, 5, 3]


def test_rescaling_controls_are_multiples_of_the_default():
    X = 7 * np.random.default_rng(5).standard_normal((6, 11))
    for method, top in (("svd", oracles.singular_values(X)[0]), ("dct", np.abs(oracles.dct2(X)).max())):
        Y = oracles.gray_tokens(X, method, 0.6)
        literal = oracles.gray_tokens(X, method, 0.6, rescale=False)
        contrast = oracles.gray_tokens(X, method, 0.6, rescale="contrast")
        np.testing.assert_allclose(literal * top, Y, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(np.linalg.norm(contrast), np.linalg.norm(X))
        assert np.linalg.norm(Y) > 1.05 * np.linalg.norm(X)  # so the control differs from the default
    np.testing.assert_allclose(oracles.singular_values(oracles.gray_svd(X, 0.6, rescale=False))[0], 1)


def test_float32_floor_covers_the_rounding_of_float32_storage():
    """Rank 5 in exact arithmetic; stored in float32 it has noise that must not count as rank."""
    rng = np.random.default_rng(6)
    for n, d in [(40, 40), (16, 200), (200, 48)]:
        sigma = np.where(np.arange(min(n, d)) < 5, 1.0, 0.0)
        X = oracles.prescribed(n, d, sigma, rng)[0]
        assert oracles.numerical_floor(X.astype(np.float32)) == min(n, d) - 5
        assert oracles.numerical_floor(X.astype(np.float32).astype(np.float64)) == 0  # float64 believes it
