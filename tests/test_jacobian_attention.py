"""Proposition 2's bound against the closed form, and the tangent kernel against gradients taken one by one."""

import math

import numpy as np
import oracles
import pytest
import torch
from test_jacobian import seeded
from timm.layers.attention import Attention
from torch import nn

from wellcond.jacobian import attention_bound, jacobian_spectrum, ntk_condition


def heads(n: int, d: int, H: int, seed: int, sharp: float):
    """(attention, value_output, X, weights): logits X M_h Xᵀ with M_h near sharp · I, W_V W_O near orthogonal."""
    rng = np.random.default_rng(seed)
    M = sharp * np.eye(d) + 0.1 * rng.standard_normal((H, d, d))
    W = (oracles.haar(d, d, rng) + 0.03 * rng.standard_normal((H, d, d))) / H
    X = rng.standard_normal((n, d))
    M_, W_ = torch.from_numpy(M), torch.from_numpy(W)
    return (lambda X: torch.softmax(X[..., None, :, :] @ M_ @ X[..., None, :, :].mT, -1)), W_, torch.from_numpy(X), M


@pytest.mark.parametrize(
    ("n", "d", "sharp", "finite"), [(4, 7, 0.0, 0), (4, 7, 2.0, 1), (4, 7, 4.0, 1), (7, 4, 4.0, 0)]
)
def test_bound_against_the_closed_form(n, d, sharp, finite):
    attention, W, X, M = heads(n, d, 1, seed=1, sharp=sharp)
    E, B = oracles.attention_jacobian(X.numpy(), M[0] * math.sqrt(d), np.eye(d), W[0].numpy(), np.eye(d))
    e, b, k = (oracles.singular_values(matrix) for matrix in (E, B, E + B))
    found = attention_bound(attention, W, X)
    got = [found.sigma_max_e.item(), found.sigma_max_b.item(), found.sigma_min_b.item()]
    np.testing.assert_allclose(got, [e[0], b[0], b[-1]], rtol=1e-9, atol=1e-12)
    assert (e[0] < b[-1]) == finite
    if finite:
        assert found.bound.item() == pytest.approx((b[0] + e[0]) / (b[-1] - e[0]), rel=1e-8)
        assert k[0] / k[-1] <= found.bound
    else:
        assert found.bound == torch.inf


def test_bound_holds_and_is_finite_for_sharp_attention():
    """Proposition 2 over seeds and heads: the κ of the whole is never above a finite bound, and some are finite."""
    finite = 0
    for seed in range(12):
        attention, W, X, _ = heads(4, 6, 1 + seed % 3, seed, sharp=4.0)
        found = attention_bound(attention, W, X)
        kappa = jacobian_spectrum(lambda X: (attention(X) @ (X[None] @ W)).sum(-3), X).kappa  # noqa: B023
        assert kappa <= found.bound
        finite += int(found.bound.isfinite())
    assert finite >= 3


@pytest.mark.parametrize("sharp", [0.7, 1.0, 6.0])  # 6: saturated, E is 1e-37 and less
def test_many_heads_without_writing_the_matrix(sharp):
    """Lanczos alone cannot bound σ_min from below; the mean head can."""
    attention, W, X, _ = heads(6, 20, 3, seed=0, sharp=sharp)
    exact = attention_bound(attention, W, X)
    products = attention_bound(attention, W, X, method="lanczos", max_steps=40)
    assert exact.bound.isfinite() and exact.bound * (1 - 1e-9) <= products.bound <= 2 * exact.bound
    assert products.sigma_min_b <= exact.sigma_min_b * (1 + 1e-9) and products.sigma_max_b >= exact.sigma_max_b * (
        1 - 1e-9
    )


def test_the_mean_head_alone_proves_nothing():
    """One head is the identity, the other uniform, on half of the width each: B is singular, the mean head is not."""
    n, d = 6, 20
    A = torch.stack([torch.eye(n), torch.full((n, n), 1 / n)]).double()
    half = (torch.arange(d) < d // 2).double()
    W = torch.stack([half.diag(), (1 - half).diag()])
    found = attention_bound(lambda X: A, W, torch.randn(n, d).double(), method="lanczos", max_steps=40)
    assert found.sigma_min_b < 1e-9 and found.bound == torch.inf


def test_bound_of_a_batch_is_that_of_its_images():
    attention, W, X, _ = heads(5, 4, 2, seed=0, sharp=3.0)
    batch = torch.stack([X, 2 * X, -X])
    found = attention_bound(attention, W, batch)
    want = torch.stack([attention_bound(attention, W, x).sigma_min_b for x in batch])
    assert found.bound.shape == (3,) and torch.allclose(found.sigma_min_b, want)


def test_bound_names_wrong_shapes():
    attention, W, X, _ = heads(5, 4, 2, seed=0, sharp=3.0)
    with pytest.raises(ValueError, match=r"value_output \(2, 3, 4\).*one W_V W_O per head"):
        attention_bound(attention, W[:, :3], X)


# --- the tangent kernel ------------------------------------------------------------------------------------


def by_hand(module: nn.Module, X: torch.Tensor, indices) -> np.ndarray:
    """Eigenvalues of the Gram matrix of gradients, one backward per output."""
    Y = module(X).flatten()
    parameters = list(module.parameters())
    rows = []
    for i in indices:
        gradients = torch.autograd.grad(Y[i], parameters, retain_graph=True)
        rows.append(torch.cat([g.flatten() for g in gradients]).numpy())
    G = np.stack(rows)
    return np.linalg.eigvalsh(G @ G.T)[::-1]


@pytest.mark.parametrize("chunk_size", [1, 5, 64])
def test_kernel_against_gradients_one_by_one(chunk_size):
    block = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)).double()
    X = torch.randn(2, 5, 6, dtype=torch.float64)
    indices = torch.tensor([0, 7, 13, 22, 59, 31])
    found = ntk_condition(block, lambda X: block(X), X, indices, chunk_size=chunk_size)
    want = by_hand(block, X, indices)
    np.testing.assert_allclose(found.eigenvalues.numpy(), want, rtol=1e-9, atol=1e-12 * want[0])
    assert found.kappa.item() == pytest.approx(want[0] / want[-1], rel=1e-8) and found.floor_count == 0
    assert found.num_outputs == 6 and found.num_parameters == sum(p.numel() for p in block.parameters())
    assert all(p.grad is None for p in block.parameters())


def test_kernel_of_fused_attention_in_float64():
    attn = Attention(12, num_heads=3).eval()
    X = torch.randn(2, 6, 12)
    found = ntk_condition(attn, attn, X, 20, dtype=torch.float64, generator=seeded(3))
    again = ntk_condition(attn.double(), attn, X.double(), 20, generator=seeded(3))
    assert torch.equal(found.eigenvalues, again.eigenvalues) and found.kappa.isfinite()
    assert not torch.equal(found.kappa, ntk_condition(attn, attn, X.double(), 20, generator=seeded(4)).kappa)


def test_kernel_squares_the_condition_of_a_linear_layer():
    """Θ = X Xᵀ ⊗ I. κ(X) = 1e8: κ(Θ) = 1e16 is out of reach of Θ itself, known to 1e-15, and not of G."""
    X = torch.from_numpy(oracles.prescribed(4, 6, np.geomspace(1, 1e-8, 4), np.random.default_rng(0))[0])
    layer = nn.Linear(6, 2, bias=False).double()
    assert ntk_condition(layer, layer, X, 100).log_kappa.item() == pytest.approx(math.log(1e16), rel=1e-6)
    found = ntk_condition(layer.float(), layer, X.float())
    assert found.kappa == torch.inf and found.floor_count >= 1  # float32 cannot hold 1e-8


def test_kernel_is_singular_with_more_outputs_than_parameters():
    layer = nn.Linear(2, 2)
    found = ntk_condition(layer, layer, torch.randn(5, 2), 100)
    assert found.num_outputs == 10 > found.num_parameters == 6
    assert found.kappa == torch.inf and found.floor_count == 4 and len(found.eigenvalues) == 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": 0}, "outputs=0"),
        ({"outputs": torch.tensor([1, 1])}, "twice"),
        ({"outputs": torch.tensor([99])}, "indices into the 10 outputs"),
        ({"outputs": torch.tensor([], dtype=torch.int64)}, "empty"),
        ({"f": lambda X: X / 0}, "no tangent kernel"),
        ({"module": nn.Identity()}, "no parameter"),
    ],
)
def test_kernel_refusals(change, message):
    layer = nn.Linear(2, 2)
    arguments = {"module": layer, "f": layer, "X": torch.randn(5, 2), "outputs": 4, **change}
    with pytest.raises(ValueError, match=message):
        ntk_condition(**arguments)


def test_kernel_of_a_function_without_these_parameters_is_nan():
    assert ntk_condition(nn.Linear(2, 2), lambda X: 2 * X, torch.randn(5, 2), 4).kappa.isnan()
