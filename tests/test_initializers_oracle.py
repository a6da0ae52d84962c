"""The initialization of residual-free transformers, weight by weight, against numpy draws and closed forms.

"Cutting the Skip" (arXiv 2510.00345): W_V W_O is c² times an orthogonal matrix, W_Q W_Kᵀ of each head the best rank-d_h
part of αZ + βI, the MLP's layers are scaled orthogonal. `skipless_cases` reads them off the running model.
"""

import copy
import math
import re
import warnings
from typing import Any

import numpy as np
import oracles
import pytest
import skipless_oracles
import torch
from families import Family
from hypothesis import given
from hypothesis import strategies as st
from skipless_cases import (
    ALPHA,
    BETA,
    CHANGED,
    MANY,
    MODELS,
    C,
    attentions,
    effective,
    every,
    fresh,
    kappa,
    linears,
    numbers_of,
    seeded,
    through,
    vit,
)
from torch import nn
from torch.nn import functional

import wellcond as wc


def initialized(family: Family, seed: int = 0, **options) -> Any:
    model = fresh(family)
    result = wc.init_skipless_(model, generator=seeded(seed), **options)
    assert result is None or result is model
    return model


# --- values and output -------------------------------------------------------------------------------------


@every(MODELS)
def test_value_and_output_are_c_squared_times_an_orthogonal_matrix(family):
    seen = []
    for attn in attentions(initialized(family)):
        W = effective(attn)[0]
        np.testing.assert_allclose(W.T @ W, C**4 * np.eye(len(W)), atol=C**4 * 1e-5)
        assert kappa(W) == pytest.approx(1, abs=1e-5)
        seen.append(W)
    for i, W in enumerate(seen):  # drawn anew, and none of them trivial
        assert np.abs(W).max() < C**2 * 0.999
        assert all(W.shape != other.shape or np.abs(W - other).max() > 0.1 for other in seen[:i])


def test_each_of_the_two_is_c_times_an_orthogonal_matrix():
    """Not c² in one and 1 in the other; not orthogonal inside each head only."""
    for attn in attentions(initialized(MODELS["vit"], c=1.7)):
        out = through(attn.proj)
        np.testing.assert_allclose(out.T @ out, 1.7**2 * np.eye(48), atol=1e-5)
        value = effective(attn)[0] @ np.linalg.inv(out)
        np.testing.assert_allclose(value.T @ value, 1.7**2 * np.eye(48), atol=1e-4)


def test_timms_own_initialization_would_fail():
    assert min(kappa(effective(attn)[0]) for attn in attentions(fresh(MODELS["vit"]))) > 30


def test_value_and_output_have_no_preferred_direction():
    """U Vᵀ of a Gaussian matrix is Haar: E[Tr] = 0, E[Tr²] = 1, and E[W] = 0 entry by entry."""
    model = initialized(vit(embed_dim=8, num_heads=2, depth=40), c=1.0)
    W = np.stack([effective(attn)[0] for attn in attentions(model)])
    traces = np.trace(W, axis1=1, axis2=2)
    assert abs(traces.mean()) < 4 / math.sqrt(40) and 0.4 < (traces**2).mean() < 2
    assert np.abs(W.mean(0)).max() < 5 / math.sqrt(8 * 40)


# --- queries and keys --------------------------------------------------------------------------------------


@every(MODELS)
def test_queries_and_keys_share_the_singular_values(family):
    """W_Q = U S^½ and W_K = V S^½: orthogonal columns, the same lengths, and a product of rank d_h."""
    for attn in attentions(initialized(family)):
        _, queries, keys = effective(attn)
        for Q, K in zip(queries, keys, strict=True):
            S = oracles.singular_values(Q @ K.T)
            width, scale = Q.shape[1], S[0]
            if width < len(S):
                assert S[width - 1] > 1e-2 * scale and S[width] < 1e-5 * scale
            for W in (Q, K):
                np.testing.assert_allclose(np.sort(np.diag(W.T @ W))[::-1], S[:width], atol=1e-5 * scale)
                np.testing.assert_allclose(W.T @ W, np.diag(np.diag(W.T @ W)), atol=1e-5 * scale)
        products = [Q @ K.T for Q, K in zip(queries, keys, strict=True)]
        assert all(np.abs(products[0] - other).max() > 1e-2 for other in products[1:])  # each head has its own Z


@pytest.mark.parametrize(
    ("alpha", "beta", "z"),
    [
        (ALPHA, BETA, "normal"),
        (ALPHA, BETA, "uniform"),
        (0.1, 5.0, "normal"),
        (0.1, 0.0, "normal"),
        (20.0, -0.7, "normal"),
    ],
)
def test_heads_are_distributed_like_the_best_approximation(alpha, beta, z):
    """Spectrum, trace and symmetric part over 32 heads against 150 draws of the best rank-d_h part of αZ + βI."""
    heads, _ = numbers_of(initialized(MANY, alpha=alpha, beta=beta, z=z))
    want = skipless_oracles.drawn_heads(150, 32, 8, alpha, beta, z=z)
    assert skipless_oracles.same_distribution(heads, want).max() < 4.5


@pytest.mark.parametrize(("alpha", "beta"), [(2.3, BETA), (ALPHA, 1.0), (ALPHA, -BETA)])
def test_the_distribution_test_can_tell(alpha, beta):
    got = skipless_oracles.drawn_heads(32, 32, 8, ALPHA, BETA, seed=1)
    assert skipless_oracles.same_distribution(got, skipless_oracles.drawn_heads(150, 32, 8, ALPHA, BETA)).max() < 4.5
    assert skipless_oracles.same_distribution(got, skipless_oracles.drawn_heads(150, 32, 8, alpha, beta)).max() > 7


@pytest.mark.parametrize("beta", [0.6, 5.0, -1.5])
@every({name: MODELS[name] for name in ("vit", "eva02, separate q k v", "one head", "heads of width 1")})
def test_without_noise_the_product_is_a_multiple_of_a_projector(family, beta):
    for attn in attentions(initialized(family, alpha=0.0, beta=beta)):
        for Q, K in zip(*effective(attn)[1:], strict=True):
            P = Q @ K.T / beta
            np.testing.assert_allclose(P, P.T, atol=1e-5)
            np.testing.assert_allclose(P @ P, P, atol=1e-5)
            assert np.trace(P) == pytest.approx(Q.shape[1], abs=1e-4)


def test_heads_grow_with_both_constants_together():
    """The best approximation of t(αZ + βI) is t times that of αZ + βI, with the same Z."""
    for attn, other in zip(
        *(attentions(initialized(MODELS["vit"], alpha=t * ALPHA, beta=t * BETA)) for t in (1, 2.5)), strict=True
    ):
        (_, Q, K), (_, Q2, K2) = effective(attn), effective(other)
        np.testing.assert_allclose(2.5 * Q @ K.transpose(0, 2, 1), Q2 @ K2.transpose(0, 2, 1), atol=1e-4)


def whole(alpha: float, beta: float, **options) -> list[np.ndarray]:
    """One head keeps all of αZ + βI."""
    family = vit(embed_dim=40, num_heads=1, depth=4)
    parts = [effective(attn)[1:] for attn in attentions(initialized(family, alpha=alpha, beta=beta, **options))]
    return [Q[0] @ K[0].T for Q, K in parts]


@pytest.mark.parametrize("z", ["normal", "uniform"])
def test_one_head_is_the_whole_matrix_and_z_does_not_depend_on_the_constants(z):
    eye, settings = np.eye(40), [(2.0, 0.6), (0.5, 3.0), (10.0, 0.0)]
    drawn = [[(M - beta * eye) / alpha for M in whole(alpha, beta, z=z)] for alpha, beta in settings]
    for layers in zip(*drawn, strict=True):
        for other in layers[1:]:
            np.testing.assert_allclose(layers[0], other, atol=1e-4)
    Z = np.stack(drawn[0]) * math.sqrt(40)  # 6400 numbers of variance 1
    assert abs(Z.mean()) < 4 / math.sqrt(Z.size) and Z.var() == pytest.approx(1, abs=0.08)
    kurtosis = (Z**4).mean() / Z.var() ** 2
    assert kurtosis == pytest.approx({"normal": 3.0, "uniform": 1.8}[z], abs=0.3)
    assert (np.abs(Z).max() < math.sqrt(3) + 1e-3) == (z == "uniform")
    for A, B in ((Z[0], Z[1]), (Z[0], Z[0].T)):  # layers, and the two sides of the diagonal
        mask = ~np.eye(40, dtype=bool)
        assert abs(np.corrcoef(A[mask], B[mask])[0, 1]) < 0.12


# --- the mlp -----------------------------------------------------------------------------------------------


@every(MODELS)
def test_mlp_layers_are_scaled_orthogonal(family):
    model = initialized(family)
    assert linears(model)
    for name, linear in linears(model):
        W = through(linear)
        inside, outside = W.shape
        sigma = oracles.singular_values(W)
        np.testing.assert_allclose(sigma, max(math.sqrt(outside / inside), 1.0), rtol=1e-5, err_msg=name)


@given(out=st.integers(1, 24), inside=st.integers(1, 24), seed=st.integers(0, 2**31))
def test_suo_keeps_the_mean_square_in_both_directions(out, inside, seed):
    """x ~ N(0, I_in): E[y_i²] averaged over i is ‖W‖²_F/out = 1, for out > in and for out < in."""
    weight = torch.full((out, inside), torch.nan, dtype=torch.float64)
    result = wc.suo_(weight, generator=seeded(seed))
    assert result is None or result is weight
    W = weight.numpy().T
    assert (W**2).sum() / out == pytest.approx(1, abs=1e-10)
    np.testing.assert_allclose(oracles.singular_values(W), max(math.sqrt(out / inside), 1), rtol=1e-10)


@pytest.mark.parametrize(("inside", "out"), [(12, 48), (48, 12), (20, 20)])
def test_suo_through_a_linear_layer(inside, out):
    linear = nn.Linear(inside, out, bias=False)
    wc.suo_(linear.weight, generator=seeded())
    assert linear.weight.requires_grad and linear.weight.dtype == torch.float32
    x = torch.randn(20_000, inside, generator=seeded(1))
    with torch.no_grad():
        ratios = linear(x).square().mean(1) / x.square().mean(1)
    if out >= inside:  # for every x
        torch.testing.assert_close(ratios, torch.ones_like(ratios), rtol=1e-4, atol=0)
    else:  # on the average; a token in the row space grows by in/out, one in the null space is lost
        assert ratios.mean().item() == pytest.approx(1, abs=0.02) and ratios.std() > 0.1
        inner = linear.weight.detach()
        grown = linear(inner).detach().square().mean(1) / inner.square().mean(1)
        torch.testing.assert_close(grown, torch.full((out,), inside / out), rtol=1e-4, atol=0)


@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (3, 6)], ids=str)
def test_suo_is_uniform(shape):
    """A QR factor without its signs fixed has a diagonal that leans one way."""
    generator, draws = seeded(), []
    for _ in range(300):
        wc.suo_(weight := torch.empty(shape, dtype=torch.float64), generator=generator)
        draws.append(weight.numpy())
    draws = np.stack(draws)
    assert np.abs(draws.mean(0)).max() < 4.5 / math.sqrt(300 * min(shape))
    np.testing.assert_allclose((draws**2).mean(0), 1 / shape[1], rtol=0.35)


# --- everything else ---------------------------------------------------------------------------------------


@every(MODELS)
def test_biases_zero_scales_one_and_the_rest_as_it_was(family):
    model = fresh(family)
    objects = dict(model.named_parameters())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wc.init_skipless_(model, generator=seeded())
    after = model.state_dict()
    assert after.keys() == before.keys()
    for name, tensor in after.items():
        if "norm" in name:
            assert torch.equal(tensor, before[name]) and (tensor == (0 if name.endswith("bias") else 1)).all(), name
        elif "gamma" in name:
            assert (tensor == 1).all(), name
        elif CHANGED.search(name) and name.endswith("bias"):
            assert (tensor == 0).all(), name
        elif CHANGED.search(name) and name.endswith("weight"):
            assert not torch.equal(tensor, before[name]), name
        else:  # patches, class and register tokens, positions and their bias tables, merging, head
            assert torch.equal(tensor, before[name]), name
    assert all(p is objects[name] and p.requires_grad for name, p in model.named_parameters())


@every({name: MODELS[name] for name in ("vit", "eva02, separate q k v", "swin")})
def test_the_generator_decides_the_bits(family):
    model = fresh(family)
    states = []
    for seed in (0, 0, 1):
        again, before = copy.deepcopy(model), torch.get_rng_state()
        wc.init_skipless_(again, generator=seeded(seed))
        assert torch.equal(torch.get_rng_state(), before)  # and the global one is left alone
        states.append(again.state_dict())
    for name in states[0]:
        assert torch.equal(states[0][name], states[1][name]), name
        if CHANGED.search(name) and states[0][name].ndim > 1 and name.endswith("weight"):
            assert not torch.equal(states[0][name], states[2][name]), name


def test_the_defaults_are_those_of_vit_b():
    a, b = initialized(MODELS["vit"]), initialized(MODELS["vit"], alpha=2.0, beta=0.6, c=3.0, z="normal")
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def test_double_precision_is_exact_to_double_precision():
    model = fresh(MODELS["vit"]).double()
    wc.init_skipless_(model, generator=seeded())
    for attn in attentions(model):
        assert kappa(effective(attn)[0]) == pytest.approx(1, abs=1e-10)
    for _, linear in linears(model):
        assert kappa(through(linear)) == pytest.approx(1, abs=1e-10)
    assert all(p.dtype == torch.float64 for p in model.parameters())


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        (vit(), {"z": "cauchy"}, "cauchy"),
        (vit(), {"alpha": math.nan}, "alpha.*nan"),
        (vit(), {"beta": math.inf}, "beta.*inf"),
        (Family(name="resnet18", patch=1), {}, "ResNet"),
    ],
)
def test_refusals(family, options, words):
    model = fresh(family)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=words):
        wc.init_skipless_(model, generator=seeded(), **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # nothing half done


def test_talking_heads_are_refused_or_done_in_part_and_said():
    """CaiT mixes the logits of its heads: there is no W_Q W_Kᵀ to set."""
    model = fresh(vit("cait_xxs24_224"))
    queries = [m.qkv.weight.detach()[:96].clone() for m in model.modules() if hasattr(m, "proj_l")]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            wc.init_skipless_(model, generator=seeded())
            refused = ""
        except ValueError as error:
            refused = str(error)
    assert any(re.search("(?i)talking|cait", words) for words in [refused, *(str(w.message) for w in said)])
    if refused:
        return
    for attn, before in zip([m for m in model.modules() if hasattr(m, "proj_l")], queries, strict=True):
        assert torch.equal(attn.qkv.weight[:96], before)
        units = torch.eye(48)
        with torch.no_grad():
            W = attn.proj(functional.linear(units, attn.qkv.weight[96:])).numpy()
        assert kappa(W) == pytest.approx(1, abs=1e-5)


# --- mimetic -----------------------------------------------------------------------------------------------


def test_mimetic_heads_and_values():
    """Mimetic initialization (ICML 2023): W_Q W_Kᵀ ≈ .7 Z + .7 I by head, W_V W_O ≈ .4 Z − .4 I as a whole."""
    d, model = 32, fresh(MANY)
    result = wc.mimetic_(model, generator=seeded())
    assert result is None or result is model
    heads, products = numbers_of(model)
    assert skipless_oracles.same_distribution(heads, skipless_oracles.drawn_heads(150, d, 8, 0.7, 0.7)).max() < 4.5
    Z = (np.stack(products) + 0.4 * np.eye(d)) / 0.4 * math.sqrt(d)
    assert abs(Z.mean()) < 4 / math.sqrt(Z.size) and Z.var() == pytest.approx(1, abs=0.1)
    assert np.abs(np.trace(np.stack(products), axis1=1, axis2=2) / d + 0.4).max() < 5 * 0.4 / d
    again = fresh(MANY)
    wc.mimetic_(again, generator=seeded())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))
