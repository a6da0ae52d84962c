"""What the initialization is for: attention near the identity, a Jacobian within Proposition 2, and verify_init's word.

"Cutting the Skip" (arXiv 2510.00345), Propositions 1 and 2, on the initialized model itself.
"""

import copy
import math
import re
from typing import Any

import numpy as np
import oracles
import pytest
import skipless_oracles
import torch
from skipless_cases import (
    ALPHA,
    BETA,
    MODELS,
    C,
    attentions,
    effective,
    every,
    fresh,
    kappa,
    seeded,
    through,
    vit,
    watched,
)
from test_initializers_oracle import initialized
from torch.nn import functional

import wellcond as wc

# --- attention near the identity ---------------------------------------------------------------------------


def profile(model, X: torch.Tensor) -> tuple[list[float], list[float]]:
    """By block: diagonal attention mass, and how much of attention's output is x W_V W_O (cosine, mean over tokens)."""
    masses, cosines = [], []
    for block in model.blocks:
        wanted = block.norm1(X) @ torch.from_numpy(effective(block.attn)[0]).float()
        out, [(q, k)] = watched(lambda block=block, X=X: block.attn(block.norm1(X)))
        A = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        masses.append(A.diagonal(dim1=-2, dim2=-1).mean().item())
        cosines.append(functional.cosine_similarity(out, wanted, dim=-1).mean().item())
        X = watched(lambda block=block, X=X: block(X))[0]
    return masses, cosines


@torch.no_grad()
def test_attention_is_near_the_identity_and_drifts_as_the_numpy_model_does():
    """Uncorrelated tokens, without skips; what timm starts with attends to everything alike."""
    d, n, depth, draws = 192, 32, 3, 2
    family = vit(embed_dim=d, depth=depth)
    ours, numpys = [], []
    for seed in range(draws):
        X = np.random.default_rng(seed).standard_normal((n, d))
        model = wc.cut_skips(initialized(family, seed))
        masses, cosines = profile(model, torch.from_numpy(X).float()[None])
        ours.append(masses)
        numpys.append(skipless_oracles.depth_profile(X, 3, depth, ALPHA, BETA, C, seed))
        assert cosines[0] > 0.85
    mine, theirs = np.mean(ours, 0), np.mean(numpys, 0)
    np.testing.assert_allclose(mine, theirs, atol=0.12)
    assert mine[0] > 0.7 and (np.diff(mine) < 0.02).all()
    plain, turned = profile(wc.cut_skips(fresh(family)), torch.from_numpy(X).float()[None])
    assert plain[0] < 3 / n and turned[0] < 0.5


@pytest.mark.parametrize(("alpha", "beta"), [(1e-3, 0.0), (0.1, 0.0), (0.0, 4.0)])
def test_both_limits_of_proposition_1(alpha, beta):
    """Flat logits: softmax near 1/n. A diagonal ahead by γ: ‖S − I‖_∞ ≤ 2(n−1)e^{−γ}. One head: W_Q W_Kᵀ is whole."""
    n, d = 8, 64
    model = initialized(vit(embed_dim=d, num_heads=1, depth=1), alpha=alpha, beta=beta)
    X = math.sqrt(d) * torch.from_numpy(oracles.haar(d, n, np.random.default_rng(0)).T).float()  # orthogonal tokens
    _, [(q, k)] = watched(lambda: attentions(model)[0](X[None]))
    logits = (q @ k.mT / math.sqrt(d))[0, 0].double()
    S = torch.softmax(logits, -1).numpy()
    spread = (logits.amax(1) - logits.amin(1)).max().item()
    gamma = (logits.diagonal()[:, None] - logits)[~torch.eye(n, dtype=torch.bool)].min().item()
    if beta == 0:
        assert np.abs(S - 1 / n).max() <= math.expm1(spread) / n + 1e-7 and spread < 8 * alpha + 1e-6
        assert alpha > 0.01 or np.abs(S - 1 / n).max() < 2e-3
    else:
        assert gamma == pytest.approx(beta * math.sqrt(d), rel=1e-4)  # βd/√d_h
        e = (n - 1) * math.exp(-gamma)
        assert np.abs(S - np.eye(n)).sum(1).max() <= 2 * e + 1e-12
        assert kappa(S) <= (1 + 2 * e) / (1 - 2 * e) * (1 + 1e-9)


@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize(("alpha", "beta"), [(ALPHA, BETA), (0.1, 5.0)])
def test_the_jacobian_of_the_initialized_attention(alpha, beta, num_heads):
    """jacrev through timm's attention equals Σ_h E_h + B_h, and Proposition 2 holds where its premise does."""
    n, d = 4, 12
    model = fresh(vit(embed_dim=d, num_heads=num_heads, depth=1)).double()
    wc.init_skipless_(model, alpha=alpha, beta=beta, generator=seeded())
    attn = attentions(model)[0]
    W, queries, keys = effective(attn)
    out = through(attn.proj)
    value = W @ np.linalg.inv(out)
    X = math.sqrt(d) * oracles.haar(d, n, np.random.default_rng(1)).T
    width, E, B = d // num_heads, np.zeros((n * d, n * d)), np.zeros((n * d, n * d))
    for h in range(num_heads):
        mine = slice(h * width, (h + 1) * width)
        e, b = oracles.attention_jacobian(X, queries[h], keys[h], value[:, mine], out[mine])
        E, B = E + e, B + b
    attn.fused_attn = False  # jacrev knows no batching rule for the fused kernel
    full: Any = torch.func.jacrev(lambda X: attn(X[None])[0])(torch.from_numpy(X))
    K = full.detach().permute(1, 0, 3, 2).reshape(n * d, n * d).numpy()
    np.testing.assert_allclose(E + B, K, atol=1e-9 * np.abs(K).max())
    e, b = oracles.singular_values(E), oracles.singular_values(B)
    if num_heads == 1:
        A = oracles.softmax(X @ queries[0] @ keys[0].T @ X.T / math.sqrt(d))
        assert kappa(B) == pytest.approx(kappa(A), rel=1e-8)
    if beta == 5.0 and num_heads == 1:
        assert e[0] < b[-1]  # the premise: diagonal attention
    if e[0] < b[-1]:
        assert kappa(K) <= (b[0] + e[0]) / (b[-1] - e[0]) * (1 + 1e-9)


# --- verify_init -------------------------------------------------------------------------------------------


def columns(result) -> dict[tuple[str, str], dict[int, float]]:
    """(site, quantity) → layer → value."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for row in result.rows:
        assert isinstance(row.layer, int) and isinstance(row.site, str) and isinstance(row.quantity, str)
        if row.value is not None:  # infinite
            found.setdefault((row.site, row.quantity), {})[row.layer] = float(row.value)
    return found


def holds(result, wanted: list[float], rel: float) -> bool:
    """Does some column say this, layer by layer, as it is or as its natural logarithm?"""
    for values in columns(result).values():
        got = [values[layer] for layer in sorted(values)]
        for form in (wanted, [math.log(value) for value in wanted]):
            if len(got) == len(form) and np.allclose(got, form, rtol=rel, atol=1e-4):
                return True
    return False


@every({name: MODELS[name] for name in ("vit", "eva02, separate q k v", "deit3, layer scale")})
def test_verify_init_finds_the_condition_of_value_and_output(family):
    """Names of columns are free; one of them must be κ of W_V W_O over all heads, or log κ."""
    for model in (fresh(family), initialized(family)):
        exact = copy.deepcopy(model).double()  # the same weights, and no rounding on the way through them
        wanted = [kappa(effective(attn)[0]) for attn in attentions(exact)]
        assert holds(wc.verify_init(model), wanted, rel=1e-3)


def test_verify_init_says_something_else_of_a_default_model():
    good, bad = wc.verify_init(initialized(MODELS["vit"])), wc.verify_init(fresh(MODELS["vit"]))
    assert str(good).strip() and str(bad).strip()
    words = [re.sub(r"[\d.,eE+−-]+", "", str(text)) for text in (good, bad)]
    assert words[0] != words[1]  # a verdict, not only other numbers


def test_verify_init_measures_diagonal_mass_by_depth():
    model = wc.cut_skips(initialized(vit(embed_dim=96, depth=3)))
    images = torch.randn(3, 3, 32, 32, generator=seeded(5))
    before = copy.deepcopy(model.state_dict())
    attentions(model)
    _, seen = watched(lambda: model(images))
    masses = [
        torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1).diagonal(dim1=-2, dim2=-1).mean().item() for q, k in seen
    ]
    assert holds(wc.verify_init(model, images), masses, rel=1e-2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
