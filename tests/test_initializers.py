"""init_skipless_, suo_, mimetic_: what the products of the layers are, seen through the layers themselves."""

import copy
import math
from typing import Any

import numpy as np
import oracles
import pytest
import timm
import torch
from block_cases import BEIT, CAIT, CONVMIXER, EVA, MAXVIT, MODELS, PVT, SWIN, SWINV2, VIT, XCIT
from families import Family
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrizations

import wellcond as wc
from wellcond.blocks import matrices_of
from wellcond.initializers.drawing import factors
from wellcond.spectral import team

REFUSED = ("cait", "xcit", "pvt", "convmixer")
FIT = [family for family in MODELS if not family.name.startswith(REFUSED)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def vit(**options) -> Any:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **options})


def linear_map(layer: nn.Module, width: int) -> np.ndarray:
    """The matrix W of X ↦ X W, from what the layer does to unit vectors; its bias taken off."""
    layer = copy.deepcopy(layer).double()
    X = torch.eye(width, dtype=torch.float64)
    if isinstance(layer, nn.Conv2d):
        return (layer(X[:, :, None, None])[:, :, 0, 0] - layer(0 * X[:1, :, None, None])[:, :, 0, 0]).detach().numpy()
    return (layer(X) - layer(0 * X[:1])).detach().numpy()


def projections(block) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray, np.ndarray]:
    """(W_Q and W_K of each head, W_V, W_O) of X W, with X (n, d), as the families lay their heads out."""
    attention = block.attn
    d, H = attention.proj.weight.shape[0], attention.num_heads
    if getattr(attention, "qkv", None) is not None:
        W = linear_map(attention.qkv, d)
        if getattr(attention, "head_first", False):
            parts = W.reshape(d, H, 3, -1).transpose(2, 0, 1, 3)
        else:
            parts = W.reshape(d, 3, H, -1).transpose(1, 0, 2, 3)
    else:
        layers = (attention.q_proj, attention.k_proj, attention.v_proj)
        parts = np.stack([linear_map(layer, d).reshape(d, H, -1) for layer in layers])
    Q, K, V = parts
    heads = range(H)
    return [Q[:, h] for h in heads], [K[:, h] for h in heads], V.reshape(d, -1), linear_map(attention.proj, d)


# ---- W_V W_O


@pytest.mark.parametrize("family", FIT, ids=str)
def test_values_and_output_are_c_squared_times_orthogonal_in_every_family(family: Family):
    model = wc.init_skipless_(family.create(), generator=seeded())
    for name, block in ((m.name, model.get_submodule(m.name)) for m in matrices_of(model)):
        _, _, V, P = projections(block)
        sigma = np.linalg.svd(V @ P, compute_uv=False)
        assert sigma[0] / sigma[-1] - 1 < 1e-5, name
        assert abs(sigma[0] - 9) < 1e-4, name
        assert np.abs(V @ V.T - 9 * np.eye(len(V))).max() < 1e-4 and np.abs(P @ P.T - 9 * np.eye(len(P))).max() < 1e-4


def test_it_is_orthogonal_over_all_heads_not_inside_each():
    """Every head alone has rank d_h; only the sum over heads is orthogonal. As the module computes it, too."""
    model = wc.init_skipless_(vit(), c=2.0, generator=seeded())
    attention = copy.deepcopy(model.blocks[1].attn).double()
    X = torch.randn(1, 1, 48, dtype=torch.float64, generator=seeded(1))  # one token: softmax is 1, so out = X W_V W_O
    with torch.no_grad():
        assert abs(float(attention(X).norm() / X.norm()) - 4) < 1e-5
    _, _, V, P = projections(model.blocks[1])
    head = np.linalg.svd(V[:, :16] @ P[:16], compute_uv=False)
    assert (head[:16] > 3.99).all() and (head[16:] < 1e-5).all()


# ---- W_Q W_Kᵀ


def best_rank(M: np.ndarray, rank: int) -> np.ndarray:
    U, S, Vt = np.linalg.svd(M)
    return (U[:, :rank] * S[:rank]) @ Vt[:rank]


@pytest.mark.parametrize("z", ["normal", "uniform"])
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.6), (0.1, 5.0), (0.1, 0.0), (0.0, 1.0)])
def test_queries_and_keys_are_the_best_approximation_of_each_heads_own_matrix(alpha, beta, z):
    """The random numbers again, in the order that the docstring states: W_V, W_O, then Z of each head, then the MLP."""
    model = wc.init_skipless_(vit(), alpha=alpha, beta=beta, z=z, generator=seeded(7))
    g, d = seeded(7), 48
    products = []
    for block in model.blocks:
        Q, K, _, _ = projections(block)
        for _ in range(2):
            torch.randn(d, d, dtype=torch.float64, generator=g)
        for head in range(3):
            if z == "normal":
                Z = torch.randn(d, d, dtype=torch.float64, generator=g).numpy() / math.sqrt(d)
            else:
                Z = (torch.rand(d, d, dtype=torch.float64, generator=g).numpy() - 0.5) * math.sqrt(12 / d)
            want = best_rank(alpha * Z + beta * np.eye(d), 16)
            product = Q[head] @ K[head].T
            if alpha:
                assert np.abs(product - want).max() < 1e-5 * np.abs(want).max()
            else:  # all singular values of βI are equal: any 16 of them
                assert np.allclose(np.linalg.svd(product, compute_uv=False), [beta] * 16 + [0] * 32, atol=1e-6)
            gram = Q[head].T @ Q[head]
            assert np.allclose(gram, np.diag(np.diag(gram)), atol=1e-5), "balanced: both hold the root of S"
            assert np.allclose(gram, K[head].T @ K[head], atol=1e-5)
            products.append(product)
        for shape in ((192, 48), (192, 48)):
            torch.randn(*shape, dtype=torch.float64, generator=g)
    assert not alpha or min(np.abs(a - b).max() for a in products for b in products if a is not b) > 0.01


@pytest.mark.parametrize("rank", [2, 6])
@pytest.mark.parametrize("tail", [(1.0, 0.5, 0.1), (1e-3, 1e-5, 1e-12), (1e-9, 0.0, 0.0), (0.0, 0.0, 0.0)])
def test_factors_of_matrices_that_are_nearly_or_wholly_singular(tail, rank):
    sigma = np.array([4.0, 3.0, 2.0, *tail])
    M, U, V = oracles.prescribed(6, 6, sigma, np.random.default_rng(0))
    L, R = (factor.numpy() for factor in factors(torch.from_numpy(M), rank))
    np.testing.assert_allclose(L @ R.T, (U * sigma)[:, :rank] @ V[:, :rank].T, rtol=0, atol=1e-12)
    large = sigma[:rank] > 1e-4
    for W in (L[:, large], R[:, large]):
        np.testing.assert_allclose(W.T @ W, np.diag(sigma[:rank][large]), rtol=0, atol=1e-10)
    assert all(np.abs(factor).max() < 3 for factor in (L, R)), "what is drowned does not blow up"


def test_factors_of_nothing():
    assert all(factor.abs().max() < 1e-6 for factor in factors(torch.zeros(3, 3, dtype=torch.float64), 2))


def test_uniform_z_has_the_variance_of_the_normal_one():
    d = 192
    for z in ("normal", "uniform"):
        model = wc.init_skipless_(vit(embed_dim=d, depth=1, num_heads=1), alpha=1.0, beta=0.0, z=z, generator=seeded())
        Q, K, _, _ = projections(model.blocks[0])
        assert abs(np.square(Q[0] @ K[0].T).sum() / d - 1) < 0.02  # d² entries of variance 1/d: nothing was cut off


def test_temperature_multiplies_the_logits_and_nothing_else():
    plain = wc.init_skipless_(vit(), generator=seeded())
    hot = wc.init_skipless_(vit(), temperature=lambda depth: 1 + depth, generator=seeded())
    for number, factor in enumerate((1.0, 1.5, 2.0)):
        (Q, K, V, P), (Q_hot, K_hot, V_hot, P_hot) = (projections(m.blocks[number]) for m in (plain, hot))
        for head in range(3):
            assert np.allclose(Q_hot[head], factor * Q[head], rtol=1e-6) and np.array_equal(K_hot[head], K[head])
        assert np.array_equal(V, V_hot) and np.array_equal(P, P_hot)


# ---- the MLP, and what is not a matrix


@pytest.mark.parametrize(("out", "columns"), [(48, 12), (12, 48), (20, 20), (5, 1)])
def test_suo_keeps_the_mean_square(out, columns):
    layer = nn.Linear(columns, out, bias=False).double()
    assert wc.suo_(layer.weight, generator=seeded()) is layer.weight
    X = torch.randn(40_000, columns, dtype=torch.float64, generator=seeded(1))
    with torch.no_grad():
        each = layer(X).square().mean(-1) / X.square().mean(-1)
    assert abs(float(each.mean()) - 1) < 0.02
    if out >= columns:
        assert float((each - 1).abs().max()) < 1e-10, "for every x, not only on average"
    sigma = np.linalg.svd(layer.weight.detach().numpy(), compute_uv=False)
    assert np.allclose(sigma, max(math.sqrt(out / columns), 1), atol=1e-10)


def test_suo_is_uniform_it_has_no_preferred_sign():
    signs = [wc.suo_(torch.empty(3, 3), generator=seeded(i)).diagonal().sign() for i in range(400)]
    assert torch.stack(signs).mean(0).abs().max() < 0.2


def test_suo_takes_one_by_one_convolutions_and_refuses_the_rest():
    layer = nn.Conv2d(6, 9, 1)
    wc.suo_(layer.weight, seeded())
    W = layer.weight.detach().reshape(9, 6).double().numpy()
    assert np.allclose(W.T @ W, 1.5 * np.eye(6), atol=1e-6)
    for bad, message in (
        (nn.Conv2d(6, 9, 3).weight, "several pixels"),
        (torch.zeros(4), "linear layer"),
        (torch.zeros(4, 4, dtype=torch.int64), "int64"),
        ([[1.0]], "list"),
    ):
        with pytest.raises(ValueError, match=message):
            wc.suo_(bad)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("family", [VIT, SWIN, EVA, BEIT, SWINV2, MAXVIT], ids=str)
def test_biases_norms_and_layer_scale(family: Family):
    options = {"init_values": 1e-6} if family in (VIT, BEIT) else {}
    model = wc.init_skipless_(family.create(**options), generator=seeded())
    for found in matrices_of(model):
        for name, p in model.get_submodule(found.name).named_parameters():
            if any(word in name for word in ("relative_position", "cpb", "logit_scale", "rel_pos")):
                continue
            if "norm" in name or "gamma" in name or name.startswith("ls"):
                assert (p == (0 if name.endswith("bias") else 1)).all(), name
            elif p.ndim == 1:
                assert not p.any(), name
        for layer in ("fc1", "fc2"):
            W = getattr(model.get_submodule(found.name).mlp, layer, None)
            if W is not None:
                sigma = np.linalg.svd(W.weight.detach().double().flatten(1).numpy(), compute_uv=False)
                assert sigma[0] / sigma[-1] - 1 < 1e-5


def test_what_is_outside_the_blocks_stays():
    before, model = vit(), vit()
    wc.init_skipless_(model, generator=seeded())
    for (name, a), b in zip(before.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b) != (name.startswith("blocks.") and a.ndim > 1), name
    assert list(before.state_dict()) == list(model.state_dict())


# ---- over depth, seeds, devices of numbers


def test_one_number_a_sequence_or_a_function_of_depth():
    shapes = [4.0, [1.0, 2.0, 3.0], np.array([1.0, 2.0, 3.0]), lambda depth: 1 + 2 * depth]
    wanted = [(4.0, 4.0, 4.0)] + 3 * [(1.0, 2.0, 3.0)]
    for c, want in zip(shapes, wanted, strict=True):
        model = wc.init_skipless_(vit(), c=c, generator=seeded())
        got = [np.linalg.norm(block.attn.proj.weight.detach().numpy(), 2) for block in model.blocks]
        assert np.allclose(got, want, rtol=1e-5)


def test_the_same_seed_gives_the_same_bits_whatever_the_dtype_and_the_global_state():
    torch.manual_seed(1)
    a = wc.init_skipless_(vit(), generator=seeded(3)).state_dict()
    torch.manual_seed(2)
    b = wc.init_skipless_(vit(), generator=seeded(3)).state_dict()
    c = wc.init_skipless_(vit().double(), generator=seeded(3)).state_dict()
    other = wc.init_skipless_(vit(), generator=seeded(4)).state_dict()
    for name, value in a.items():
        assert torch.equal(value, b[name]), name
        if "attn.qkv.weight" in name or "fc1.weight" in name:
            assert torch.equal(value, c[name].float()) and not torch.equal(value, other[name])
    state = torch.random.get_rng_state()
    wc.init_skipless_(vit(), generator=seeded())
    torch.manual_seed(0)
    first = wc.init_skipless_(vit()).blocks[0].attn.qkv.weight
    torch.manual_seed(0)
    assert torch.equal(first, wc.init_skipless_(vit()).blocks[0].attn.qkv.weight)
    torch.random.set_rng_state(state)


@pytest.mark.skipif(team._library() is None, reason="torch has not loaded GNU's OpenMP and MKL here")
@pytest.mark.parametrize("initialize", [wc.init_skipless_, wc.mimetic_])
def test_the_number_of_threads_does_not_matter(initialize):
    """torchrun gives each process one. Weights of 8 bytes show the last bit."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            wide = vit(embed_dim=192, depth=1, num_heads=4).double()
            found.append(initialize(wide, generator=seeded()).blocks.state_dict())
    finally:
        torch.set_num_threads(before)
    first, *others = found
    assert all(torch.equal(value, other[name]) for other in others for name, value in first.items())


@pytest.mark.gpu
def test_the_device_of_the_model_does_not_matter():
    on_cpu = wc.init_skipless_(vit(), generator=seeded(3)).state_dict()
    on_gpu = wc.init_skipless_(vit().cuda(), generator=seeded(3)).state_dict()
    assert all(torch.equal(value, on_gpu[name].cpu()) for name, value in on_cpu.items())
    with pytest.raises(ValueError, match="one of the CPU"):
        wc.init_skipless_(vit().cuda(), generator=torch.Generator("cuda"))


def test_weights_pinned_to_a_millionth():
    """What seed 0 gives, written down once: another machine, or another version, must give the same."""
    model = wc.init_skipless_(vit(), generator=seeded())
    block = model.blocks[0]
    got = [float(W.detach().flatten()[k]) for W in (block.attn.qkv.weight, block.attn.proj.weight, block.mlp.fc1.weight)
           for k in (0, 777)]  # fmt: skip
    assert np.allclose(got, PINNED, atol=1e-6), got


PINNED = [0.124123730, 0.040640581, -0.159750998, -0.353639603, -0.173263684, -0.049028888]


# ---- refusals


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (CAIT, r"'blocks\.0'.*talking heads"),
        (XCIT, r"'blocks\.0'.*over channels"),
        (PVT, r"'stages\.0\.blocks\.0'.*pooled"),
        (CONVMIXER, r"no attention"),
    ],
    ids=str,
)
@pytest.mark.parametrize("initialize", [wc.init_skipless_, wc.mimetic_])
def test_families_without_such_matrices_are_refused_whole(family, message, initialize):
    model = family.create()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        initialize(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_unfit_block_at_the_end_leaves_the_first_ones_alone():
    model = vit()
    model.blocks[2].mlp = nn.Sequential(nn.Linear(48, 48))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"'blocks\.2'.*MLP.*Sequential"):
        wc.init_skipless_(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, nn.utils.spectral_norm], ids=["new", "old"])
@pytest.mark.parametrize(
    "change", [wc.init_skipless_, wc.mimetic_, lambda m: wc.calibrate_(m, torch.zeros(1, 3, 32, 32))]
)
def test_weights_that_are_computed_are_refused_where_they_would_be_written(wrap, change):
    """What is written into them is overwritten by the next forward."""
    model = vit()
    wrap(model.blocks[1].mlp.fc2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"'blocks\.1': the weight of mlp\.fc2 is computed.*remove_parametrizations"):
        change(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert wc.verify_init(model).rows, "they can be read"


@pytest.mark.parametrize("part", ["attn.qkv", "attn.proj", "mlp.fc1"])
def test_layers_inside_an_adapter_are_refused(part):
    """As of low-rank adapters, whose product is not the weight alone."""
    model = vit()
    block = model.blocks[1]
    block.set_submodule(part, nn.Sequential(block.get_submodule(part)))
    for ask in (wc.init_skipless_, wc.mimetic_, wc.verify_init):
        with pytest.raises(ValueError, match=r"'blocks\.1'.*its layer Sequential is no nn.Linear; adapters and quant"):
            ask(model)


def test_weights_without_numbers_are_refused():
    with torch.device("meta"):
        model = vit()
    for use in (wc.init_skipless_, wc.mimetic_, wc.verify_init):
        with pytest.raises(ValueError, match=r"'blocks\.0' is on the device meta.*to_empty"):
            use(model)


def test_weights_that_are_sharded_are_refused(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = fully_shard(vit(), mesh=init_device_mesh("cpu", (1,)))
        for use in (wc.init_skipless_, wc.mimetic_, wc.verify_init):
            with pytest.raises(ValueError, match=r"'blocks\.0' is sharded.*before sharding"):
                use(model)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": math.nan}, "alpha must be finite.*nan"),
        ({"alpha": torch.ones(3, device="meta")}, "alpha must be finite numbers, and one is tensor"),
        ({"c": 0}, "c must be positive.*0"),
        ({"c": -1}, "c must be positive"),
        ({"temperature": [1.0, 1.0]}, "temperature has 2 values for 3 blocks"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"beta": "0.6"}, "'0.6'"),
        ({"beta": {0: 1.0, 1: 2.0, 2: 3.0}}, "beta must be finite numbers, and one is {0: 1.0"),
        ({"alpha": 0, "beta": [1, 0, 1]}, "both 0 in block 1"),
        ({"z": "gauss"}, "z='gauss'.*normal"),
        ({"alpha": 1e300}, r"alpha is 1e\+300, which makes .* choose it from -1e\+06 to 1e\+06"),
        ({"c": 1e-40}, r"c is 1e-40, which makes .* choose it from 1e-06 to 1e\+06"),
        ({"temperature": [1, 1e20, 1]}, r"temperature is 1e\+20"),
        ({"beta": 10**400}, "beta must be finite numbers, and one is 1000"),
        ({"alpha": 1e-320, "beta": 0}, "both nearly 0 in block 0"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_options_change_nothing(options, message):
    model = vit()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=message):
        wc.init_skipless_(model, **options)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_heads_narrower_than_the_tokens_and_normalised_queries():
    model = vit()
    for block in model.blocks:
        block.attn = timm.layers.attention.Attention(48, num_heads=3, attn_head_dim=8)
    with pytest.raises(ValueError, match="3 heads of width 8 take tokens of width 48"):
        wc.init_skipless_(model)
    normalised = vit(qk_norm=True)
    with pytest.raises(ValueError, match="queries and keys are normalised"):
        wc.init_skipless_(normalised, temperature=2.0)
    wc.init_skipless_(normalised, generator=seeded())
    with pytest.raises(ValueError, match="no transformer blocks"):
        wc.init_skipless_(timm.create_model("resnet18"))
    with pytest.raises(ValueError, match="pass a module"):
        wc.init_skipless_("vit_tiny_patch16_224")  # pyright: ignore[reportArgumentType]


def test_it_works_on_a_cut_and_a_linear_model():
    plain = wc.init_skipless_(vit(), generator=seeded()).state_dict()
    model = wc.set_attention(wc.cut_skips(vit()), "linear")
    assert wc.init_skipless_(model, generator=seeded()) is model
    assert all(torch.equal(value, plain[name]) for name, value in model.state_dict().items())


# ---- mimetic


def test_mimetic_products():
    d = 48
    model = wc.mimetic_(vit(), generator=seeded(5))
    before = vit()
    g = seeded(5)
    for block, old in zip(model.blocks, before.blocks, strict=True):
        Q, K, V, P = projections(block)
        Z = [torch.randn(d, d, dtype=torch.float64, generator=g).numpy() / math.sqrt(d) for _ in range(4)]
        assert np.abs(V @ P - (0.4 * Z[0] - 0.4 * np.eye(d))).max() < 1e-5
        for head in range(3):
            want = best_rank(0.7 * Z[head + 1] + 0.7 * np.eye(d), 16)
            assert np.abs(Q[head] @ K[head].T - want).max() < 1e-5
        assert torch.equal(block.mlp.fc1.weight, old.mlp.fc1.weight)
    for bad in ((0.7,), 0.7, "ab", (0.7, math.inf)):
        with pytest.raises(ValueError, match=r"query_key.*\(0\.7, 0\.7\)"):
            wc.mimetic_(model, query_key=bad)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"value_output is \(0, 0\).*zero and stay so"):
        wc.mimetic_(model, value_output=(0, 0))


# positions


def test_positions_are_drawn_anew_and_nothing_else_changes():
    plain, drawn = vit(), vit()
    wc.init_skipless_(plain, generator=seeded())
    wc.init_skipless_(drawn, positions=0.3, generator=seeded())
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, drawn.state_dict()[name]) == (name != "pos_embed"), name
    assert float(drawn.pos_embed.detach().std()) == pytest.approx(0.3, rel=0.1) and drawn.pos_embed.requires_grad
    again = vit()
    wc.init_skipless_(again, positions=0.3, generator=seeded())
    assert torch.equal(again.pos_embed, drawn.pos_embed)
    tokens = [
        model.norm_pre(model._pos_embed(model.patch_embed(torch.zeros(1, 3, 32, 32)))) for model in (plain, drawn)
    ]
    near, far = (torch.pdist(t[0]).mean() for t in tokens)
    assert far > 5 * near


@pytest.mark.parametrize("positions", [0.0, -1.0, math.nan, math.inf, 1e300, True, "0.3"])
def test_a_deviation_is_positive(positions):
    model = vit()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="give a positive standard deviation"):
        wc.init_skipless_(model, positions=positions)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_a_model_without_learned_positions_is_refused():
    model = timm.create_model("swin_tiny_patch4_window7_224", img_size=32, window_size=4, depths=(1,), num_heads=(2,))
    with pytest.raises(ValueError, match="SwinTransformer has no learned position embeddings to draw; leave"):
        wc.init_skipless_(model, positions=0.3)
