"""What survives of the papers' conditioning statements, and a concrete counterexample where one does not.

[A] is "Always Skip Attention" (arXiv 2505.01996), [B] "Cutting the Skip" (arXiv 2510.00345). A statement is a
property over drawn matrices; a counterexample is one seeded or hand-written instance. Nothing here is ours.
κ is σ_max/σ_min over the min(n, d) singular values.
"""

import math

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

SLACK = 1 + 1e-6  # rounding of the two sides of an inequality
seeds = st.integers(0, 2**31)


def kappa(X) -> float:
    sigma = oracles.singular_values(X)
    return float(sigma[0] / sigma[-1]) if sigma[-1] > 0 else math.inf


def drawn(n: int, d: int, cond: float, rng) -> np.ndarray:
    return oracles.prescribed(n, d, oracles.spectrum("log-spaced", min(n, d), cond, rng), rng)[0]


# --- [A] Prop. 4.1: linear attention cubes κ ---------------------------------------------------------------


@given(seed=seeds, d=st.integers(2, 8), extra=st.integers(0, 8), cond=st.floats(1, 30))
def test_linear_attention_bound_for_tall_tokens(seed, d, extra, cond):
    """n ≥ d: κ(X W_Q W_Kᵀ Xᵀ X W_V) ≤ κ(W_Q) κ(W_K) κ(W_V) κ(X)³."""
    rng = np.random.default_rng(seed)
    X, W = drawn(d + extra, d, cond, rng), [drawn(d, d, 5.0, rng) for _ in range(3)]
    bound = np.prod([kappa(w) for w in W]) * kappa(X) ** 3
    assert kappa(oracles.linear_attention(X, *W)) <= bound * SLACK


def test_linear_attention_reaches_the_cube():
    """The exponent 3 is needed: with W = I it is attained."""
    X = drawn(20, 6, 10.0, np.random.default_rng(0))
    assert kappa(oracles.linear_attention(X, *[np.eye(6)] * 3)) == pytest.approx(1e3, rel=1e-8)


def test_counterexample_wide_tokens_break_the_cube_with_orthogonal_weights():
    """n < d, κ(X) = κ(W) = 1: the bound says 1. W_Q W_Kᵀ turns the row space of X almost out of itself."""
    t = 1e-3
    X = np.eye(2, 4)
    R = np.array([[t, -math.sqrt(1 - t * t)], [math.sqrt(1 - t * t), t]])
    Wq = np.eye(4)[[0, 3, 2, 1]].copy()
    Wq[np.ix_([1, 3], [1, 3])] = R
    assert np.allclose(Wq @ Wq.T, np.eye(4)) and kappa(X) == 1
    assert kappa(oracles.linear_attention(X, Wq, np.eye(4), np.eye(4))) > 0.9 / t


def test_counterexample_random_orthogonal_weights_break_the_cube_for_wide_tokens():
    broken = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        X, W = drawn(8, 12, 2.0, rng), [oracles.haar(12, 12, rng) for _ in range(3)]
        broken += kappa(oracles.linear_attention(X, *W)) > kappa(X) ** 3 * SLACK
    assert broken > 10  # not a rarity


def test_counterexample_the_constant_is_not_about_one():
    """[A] writes C ≈ 1. Gaussian weights, tall tokens: C is in the thousands."""
    rng = np.random.default_rng(0)
    X = drawn(32, 16, 3.0, rng)
    attention = oracles.linear_attention(X, *[rng.standard_normal((16, 16)) / 4 for _ in range(3)])
    assert kappa(attention) > 100 * kappa(X) ** 3


# --- [A] the feed-forward block with linear activation -----------------------------------------------------


@given(seed=seeds, d=st.integers(2, 8), extra=st.integers(-1, 8), cond=st.floats(1, 100))
def test_ffn_bound_by_the_product(seed, d, extra, cond):
    """κ(X W_up W_down) ≤ κ(W_up W_down) κ(X); the square product makes it true for n < d as well."""
    rng = np.random.default_rng(seed)
    X = drawn(d + extra, d, cond, rng)
    up, down = rng.standard_normal((d, 4 * d)), rng.standard_normal((4 * d, d))
    assert kappa(X @ up @ down) <= kappa(up @ down) * kappa(X) * SLACK


def test_counterexample_ffn_product_of_separate_condition_numbers():
    """κ(W_up) = κ(W_down) = κ(X) = 1, and the product is nearly singular."""
    t = 1e-4
    up = np.hstack([np.eye(2), np.zeros((2, 2))])
    down = np.zeros((4, 2))
    down[0, 0], down[1, 1], down[3, 1] = 1, t, math.sqrt(1 - t * t)
    X = np.eye(5, 2)
    assert kappa(up) == 1 and kappa(down) == pytest.approx(1) and kappa(X) == 1
    assert kappa(X @ up @ down) == pytest.approx(1 / t)


# --- [A] Prop. 4.2: the skip -------------------------------------------------------------------------------


@given(seed=seeds, d=st.integers(2, 8), extra=st.integers(0, 8), top=st.floats(0.01, 99), cond=st.floats(1, 99))
def test_skip_bound_for_symmetric_psd(seed, d, extra, top, cond):
    """M symmetric PSD: κ(X (M + I)) ≤ κ(X) (1 + λ_max)/(1 + λ_min)."""
    rng = np.random.default_rng(seed)
    X, Q = drawn(d + extra, d, cond, rng), oracles.haar(d, d, rng)
    eigenvalues = top * rng.random(d) ** 3
    M = (Q * eigenvalues) @ Q.T
    bound = kappa(X) * (1 + eigenvalues.max()) / (1 + eigenvalues.min())
    assert kappa(X @ M + X) <= bound * SLACK


def test_skip_can_help_a_lot():
    """What [A] means: M nearly singular, X well conditioned."""
    rng = np.random.default_rng(0)
    X, Q = drawn(24, 12, 2.0, rng), oracles.haar(12, 12, rng)
    M = (Q * np.geomspace(1, 1e-5, 12)) @ Q.T
    assert kappa(X @ M + X) < 1e-3 * kappa(X @ M)


def test_counterexample_psd_skip_hardly_helps():
    """M = W Wᵀ with eigenvalues well above 1: the added identity changes κ by less than a tenth."""
    rng = np.random.default_rng(0)
    X, W = drawn(24, 12, 10.0, rng), rng.standard_normal((12, 48))
    M = W @ W.T
    assert np.linalg.eigvalsh(M)[0] > 1
    assert 0.9 * kappa(X @ M) < kappa(X @ M + X) < kappa(X @ M) * 1.1


def test_counterexample_psd_skip_worsens():
    """M = (XᵀX)^{-1/2} is PSD (W_Q W_Kᵀ = (XᵀX)^{-3/2}, W_V = I): κ(XM) = 1; X(M + I) maps σ to σ + 1."""
    X = 1e3 * drawn(24, 12, 10.0, np.random.default_rng(1))
    w, V = np.linalg.eigh(X.T @ X)
    M = (V * w**-1.5) @ V.T @ X.T @ X
    assert np.allclose(M, M.T) and np.linalg.eigvalsh((M + M.T) / 2)[0] > 0
    assert kappa(X @ M) == pytest.approx(1, rel=1e-8)
    assert kappa(X @ M + X) == pytest.approx(1001 / 101, rel=1e-8)


def test_counterexample_without_psd_the_skip_can_ruin():
    X = drawn(24, 4, 2.0, np.random.default_rng(2))
    M = np.diag([-1 + 1e-6, 1.0, 1.0, 1.0])
    assert kappa(X @ M) < 5 and kappa(X @ M + X) > 1e5


def test_counterexample_psd_must_mean_symmetric():
    """xᵀMx ≥ 0 and both eigenvalues 1, yet κ(M + I) = ((1 + √5)/2)² where the bound says 1."""
    M = np.array([[1.0, 2.0], [0.0, 1.0]])
    assert np.linalg.eigvalsh((M + M.T) / 2)[0] > -1e-12
    assert kappa(np.eye(2) @ (M + np.eye(2))) == pytest.approx(((1 + math.sqrt(5)) / 2) ** 2)


# --- [A] depthwise convolution -----------------------------------------------------------------------------


def convolution_matrix(kernel: np.ndarray, H: int, W: int) -> np.ndarray:
    """(HW × HW) matrix of a zero-padded cross-correlation, by loops."""
    k = kernel.shape[0] // 2
    matrix = np.zeros((H * W, H * W))
    for i in range(H):
        for j in range(W):
            for a in range(-k, k + 1):
                for b in range(-k, k + 1):
                    if 0 <= i + a < H and 0 <= j + b < W:
                        matrix[i * W + j, (i + a) * W + j + b] = kernel[a + k, b + k]
    return matrix


@given(seed=seeds, channels=st.integers(1, 20), cond=st.floats(1, 50))
def test_depthwise_convolution_bound_for_a_shared_kernel(seed, channels, cond):
    """κ(W X) ≤ κ(W) κ(X) for tokens n = HW and any width; W is torch's own convolution."""
    rng = np.random.default_rng(seed)
    kernel, (H, W) = rng.standard_normal((3, 3)) * 0.2 + np.diag([0, 1.0, 0]), (3, 4)
    X = drawn(H * W, channels, cond, rng)
    image = torch.from_numpy(X.T.reshape(1, channels, H, W))
    weight = torch.from_numpy(kernel).expand(channels, 1, 3, 3)
    output = torch.nn.functional.conv2d(image, weight, padding=1, groups=channels)
    Y, matrix = output.reshape(channels, H * W).T.numpy(), convolution_matrix(kernel, H, W)
    np.testing.assert_allclose(Y, matrix @ X, atol=1e-12)
    assert kappa(Y) <= kappa(matrix) * kappa(X) * SLACK


def test_counterexample_depthwise_kernels_that_differ_by_channel():
    """Each channel's W_c is a cyclic shift (κ = 1) and κ(X) = 1, but there is no single W: κ(Y) = ∞."""
    X = np.eye(4, 2)  # channel 0 is a spike at pixel 0, channel 1 at pixel 1
    Y = np.stack([X[:, 0], np.roll(X[:, 1], -1)], axis=1)
    assert kappa(X) == 1 and kappa(Y) > 1e15


# --- [B] Prop. 1: softmax between uniform and identity -----------------------------------------------------


@given(seed=seeds, n=st.integers(2, 24), e=st.floats(1e-6, 0.45), tau=st.floats(0.1, 10))
def test_dominant_diagonal_gives_a_well_conditioned_softmax(seed, n, e, tau):
    """Diagonal ahead by γ, e = (n−1)e^{−γ/τ}: ‖S−I‖_∞ ≤ 2e and κ(S) ≤ (1+2e)/(1−2e)."""
    gamma = tau * math.log((n - 1) / e)
    rng = np.random.default_rng(seed)
    behind = gamma + rng.exponential(tau, (n, n)) * (rng.random((n, n)) < 0.5)
    np.fill_diagonal(behind, 0)
    logits = rng.standard_normal((n, 1)) - behind
    S = oracles.softmax(logits / tau)
    assert np.abs(S - np.eye(n)).sum(1).max() <= 2 * e * SLACK
    assert kappa(S) <= (1 + 2 * e) / (1 - 2 * e) * SLACK


def test_counterexample_the_measured_row_mass_is_not_enough():
    """With e the true off-diagonal row mass, all in one column, κ grows like √n: e must be the worst case."""
    n, e = 100, 0.05
    logits = np.full((n, n), -60.0)
    np.fill_diagonal(logits, 0)
    logits[1:, 0] = math.log(e / (1 - e))
    S = oracles.softmax(logits)
    assert (1 - np.diag(S)).max() == pytest.approx(e)
    assert kappa(S) > 1.2 * (1 + 2 * e) / (1 - 2 * e)


@given(seed=seeds, n=st.integers(2, 24), ratio=st.floats(1e-4, 0.5), tau=st.floats(0.1, 10))
def test_flat_logits_give_a_nearly_uniform_softmax(seed, n, ratio, tau):
    """Rows of range Δ: |S − 1/n| ≤ (e^{Δ/τ} − 1)/n, so κ ≥ 1/(e^{Δ/τ} − 1) ≈ τ/Δ."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((n, 1)) + ratio * tau * rng.random((n, n))
    S, spread = oracles.softmax(logits / tau), math.expm1(ratio)
    assert np.abs(S - 1 / n).max() <= spread / n * SLACK
    assert kappa(S) * SLACK >= 1 / spread


# --- [B] the Jacobian of self-attention and Prop. 2 --------------------------------------------------------


def attention_parts(n: int, d: int, width: int, seed: int, scale: float = 1.0):
    rng = np.random.default_rng(seed)
    Wq, Wk = (scale * rng.standard_normal((d, width)) / math.sqrt(d) for _ in range(2))
    Wv, Wo = rng.standard_normal((d, width)), rng.standard_normal((width, d))
    return rng.standard_normal((n, d)), Wq, Wk, Wv, Wo


@pytest.mark.parametrize(("n", "d", "width"), [(5, 3, 3), (3, 5, 2), (4, 4, 6), (1, 3, 3)])
def test_closed_form_jacobian_of_attention(n, d, width):
    """K = E + B against torch.func.jacrev of plain scaled-dot-product attention, and finite differences."""
    parts = attention_parts(n, d, width, seed=n)
    E, B = oracles.attention_jacobian(*parts)
    X, Wq, Wk, Wv, Wo = (torch.from_numpy(part) for part in parts)

    def attention(X):
        heads = (X @ W for W in (Wq, Wk, Wv))
        return torch.nn.functional.scaled_dot_product_attention(*(h[None] for h in heads))[0] @ Wo

    full = torch.func.jacrev(attention)(X)  # (n, d, n, d)
    K = full.permute(1, 0, 3, 2).reshape(n * d, n * d).numpy()  # column-major on both sides
    np.testing.assert_allclose(E + B, K, atol=1e-10)
    np.testing.assert_allclose(oracles.softmax_attention(*parts), attention(X).numpy(), atol=1e-12)

    direction = np.random.default_rng(9).standard_normal((n, d))
    step = 1e-6
    ahead, behind = (oracles.softmax_attention(parts[0] + s * direction, *parts[1:]) for s in (step, -step))
    slope = ((ahead - behind) / (2 * step)).ravel(order="F")
    np.testing.assert_allclose((E + B) @ direction.ravel(order="F"), slope, atol=1e-7)


def test_jacobian_bound_of_prop_2_on_attention():
    """Sharp diagonal attention and orthogonal W_V W_O: σ_max(E) < σ_min(B), and the bound holds."""
    rng = np.random.default_rng(0)
    n, d = 4, 6
    X = math.sqrt(d) * oracles.haar(d, n, rng).T
    W = math.sqrt(8.0) * np.eye(d)
    Q = oracles.haar(d, d, rng)
    E, B = oracles.attention_jacobian(X, W, W, Q, np.eye(d))
    e, b = oracles.singular_values(E), oracles.singular_values(B)
    assert 0 < e[0] < b[-1]
    assert kappa(E + B) <= (b[0] + e[0]) / (b[-1] - e[0]) * SLACK
    A = oracles.softmax(X @ W @ W.T @ X.T / math.sqrt(d))
    assert kappa(B) == pytest.approx(kappa(A), rel=1e-9)


@given(seed=seeds, n=st.integers(2, 10), share=st.floats(0, 0.99), cond=st.floats(1, 100))
def test_prop_2_for_any_split(seed, n, share, cond):
    rng = np.random.default_rng(seed)
    B, E = drawn(n, n, cond, rng), rng.standard_normal((n, n))
    E *= share / cond / oracles.singular_values(E)[0]
    b, e = oracles.singular_values(B), oracles.singular_values(E)
    assert kappa(B + E) <= (b[0] + e[0]) / (b[-1] - e[0]) * SLACK


def test_counterexample_prop_2_needs_its_premise():
    B, E = np.eye(2), np.diag([-1 + 1e-9, 1.0])
    assert kappa(B + E) > 1e9 and oracles.singular_values(E)[0] >= oracles.singular_values(B)[-1]


@given(seed=seeds, n=st.integers(2, 6), d=st.integers(2, 6))
def test_orthogonal_value_and_output_leave_the_condition_of_attention(seed, n, d):
    """κ((W_V W_O)ᵀ ⊗ A) = κ(A) when W_V W_O is orthogonal up to scale."""
    rng = np.random.default_rng(seed)
    A = oracles.softmax(3 * rng.standard_normal((n, n)) + 4 * np.eye(n))
    B = np.kron((9.0 * oracles.haar(d, d, rng)).T, A)
    assert kappa(B) == pytest.approx(kappa(A), rel=1e-6)


def test_layer_norm_has_two_null_directions_per_token():
    """Why Jacobians are taken after the norm: the ones vector and the centred token are annihilated."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal(8))
    J = torch.func.jacrev(lambda t: torch.nn.functional.layer_norm(t, (8,), eps=0.0))(x).numpy()
    sigma = oracles.singular_values(J)
    assert sigma[5] > 0.1 and sigma[6] < 1e-10
    centred = (x - x.mean()).numpy()
    assert np.abs(J @ np.ones(8)).max() < 1e-10 and np.abs(J @ centred).max() < 1e-10


def test_lemma_1_moments_of_the_logits():
    """Tokens uniform on |x|² = d: mean of xᵀWx/√d_h is Tr(W)/√d_h; independent pairs spread by ‖W‖_F/√d_h."""
    rng = np.random.default_rng(0)
    d, width, draws = 32, 8, 20_000
    W = 2.0 * rng.standard_normal((d, d)) / math.sqrt(d) + 0.6 * np.eye(d)
    x, y = (rng.standard_normal((draws, d)) for _ in range(2))
    x, y = (math.sqrt(d) * t / np.linalg.norm(t, axis=1, keepdims=True) for t in (x, y))
    diagonal = ((x @ W) * x).sum(1) / math.sqrt(width)
    error = diagonal.std() / math.sqrt(draws)
    assert abs(diagonal.mean() - np.trace(W) / math.sqrt(width)) < 4 * error
    off = ((x @ W) * y).sum(1) / math.sqrt(width)
    assert abs(off.mean()) < 4 * off.std() / math.sqrt(draws)
    assert off.std() == pytest.approx(np.linalg.norm(W) / math.sqrt(width), rel=0.03)
    cosine = 0.5
    near = cosine * x + math.sqrt(1 - cosine**2) * y
    mean = ((x @ W) * near).sum(1).mean() / math.sqrt(width)
    assert mean == pytest.approx(cosine * np.trace(W) / math.sqrt(width), abs=5 * error)


@pytest.mark.parametrize("cosine", [0.0, 0.3, 0.6])
@pytest.mark.parametrize(("margin", "fewest", "most"), [(0.25, 0, 0.4), (2.0, 0.98, 1)])
def test_lemma_1_says_when_the_diagonal_leads(margin, fewest, most, cosine):
    """(1 − cos) Tr(W) over ‖W‖_F √(2 ln n): well above 1 each row leads on the diagonal, well under not."""
    rng = np.random.default_rng(0)
    n, d = 64, 768
    noise = rng.standard_normal((d, d))
    noise -= np.trace(noise) / d * np.eye(d)
    share = margin * math.sqrt(2 * math.log(n)) / (1 - cosine) / math.sqrt(d)  # of W's norm in its diagonal
    W = math.sqrt(1 - share**2) * noise / np.linalg.norm(noise) + share * np.eye(d) / math.sqrt(d)
    assert (1 - cosine) * np.trace(W) / np.linalg.norm(W) == pytest.approx(margin * math.sqrt(2 * math.log(n)))
    x = math.sqrt(cosine) * rng.standard_normal(d) + math.sqrt(1 - cosine) * rng.standard_normal((n, d))
    x *= math.sqrt(d) / np.linalg.norm(x, axis=1, keepdims=True)
    leads = (x @ W @ x.T).argmax(1) == np.arange(n)
    assert fewest <= leads.mean() <= most
