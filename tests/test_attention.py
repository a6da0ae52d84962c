"""set_attention: the numbers against loops in float64, what it leaves alone, what it refuses."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import timm
import torch
from block_cases import BEIT, CAIT, CONVMIXER, EVA, MAXVIT, PVT, SWIN, SWINV2, VIT, XCIT, images_of
from oracles import relative_error
from timm.layers.attention import Attention
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wellcond as wc
from wellcond.attention import LinearAttention, linear_attention
from wellcond.blocks import adapt, attention_map, record
from wellcond.probes import probe


def loops(Q, K, V, k):
    """out_i = (1/k) Σ_j (q_i · k_j) v_j, one token after the other."""
    out = np.zeros((len(Q), V.shape[1]))
    for i in range(len(Q)):
        for j in range(len(K)):
            out[i] += sum(Q[i, a] * K[j, a] for a in range(Q.shape[1])) / k * V[j]
    return out


def by_hand(attention, x, k):
    """A whole attention with its projections, head by head, in numpy; no dropout."""

    def linear(layer, y):
        bias = 0 if layer.bias is None else layer.bias.detach().numpy()
        return y @ layer.weight.detach().numpy().T + bias

    def normed(norm, y):
        if isinstance(norm, nn.Identity):
            return y
        mean, var = y.mean(-1, keepdims=True), y.var(-1, keepdims=True)
        return (y - mean) / np.sqrt(var + norm.eps) * norm.weight.detach().numpy() + norm.bias.detach().numpy()

    out = []
    for tokens in x.numpy():
        d = attention.qkv.out_features // 3
        q, key, v = np.split(linear(attention.qkv, tokens), 3, axis=1)
        size, heads = d // attention.num_heads, []
        for h in range(attention.num_heads):
            part = slice(h * size, (h + 1) * size)
            q_h, k_h = normed(attention.q_norm, q[:, part]), normed(attention.k_norm, key[:, part])
            heads.append(loops(q_h, k_h, v[:, part], k))
        out.append(linear(attention.proj, normed(attention.norm, np.concatenate(heads, axis=1))))
    return np.stack(out)


@pytest.mark.parametrize(("n", "d"), [(9, 4), (4, 9), (5, 5), (1, 3)])
def test_both_orders_are_the_loops(n, d):
    rng = np.random.default_rng(0)
    Q, K, V = (rng.standard_normal((n, d)) for _ in range(3))
    q, key, v = (torch.from_numpy(a) for a in (Q, K, V))
    want = loops(Q, K, V, 7.0)
    assert relative_error(linear_attention(q, key, v, 7.0).numpy(), want) < 1e-12
    assert relative_error(linear_attention(q, key, v, 7.0, drop=lambda A: A).numpy(), want) < 1e-12


@pytest.mark.parametrize(("n", "d", "first"), [(9, 4, (4, 4)), (4, 9, (4, 4)), (9, 16, (9, 9))])
def test_the_cheaper_order_is_taken(n, d, first, monkeypatch):
    shapes = []
    plain = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: shapes.append(plain(a, b).shape) or plain(a, b))
    linear_attention(torch.ones(n, d), torch.ones(n, d), torch.ones(n, d), 1.0)
    assert tuple(shapes[0]) == first


@pytest.mark.parametrize("n", [3, 11])
@pytest.mark.parametrize("options", [{}, {"qk_norm": True}, {"scale_norm": True}, {"qkv_bias": True}], ids=str)
def test_a_module_is_the_loops(n, options):
    attention = Attention(12, num_heads=2, norm_layer=nn.LayerNorm, **options).double().eval()
    x = torch.randn(2, n, 12, dtype=torch.float64)
    for scale, k in ((False, 5.0), (True, 5.0 * math.sqrt(6))):
        got = wc.set_attention(attention, "linear", k=5, scale=scale)(x)
        assert relative_error(got.detach().numpy(), by_hand(attention, x, k)) < 1e-12


def test_a_gate_is_kept():
    gated: Any = Attention(12, num_heads=2, gated=True).eval()
    x = torch.randn(2, 5, 12)
    plain = copy.deepcopy(gated)
    plain.gate = None
    with torch.no_grad():
        gated.gate.weight.zero_()  # σ(0) = 1/2 in front of the projection
        if gated.gate.bias is not None:
            gated.gate.bias.zero_()
        got = wc.set_attention(gated, "linear")(x) - gated.proj.bias
        want = wc.set_attention(plain, "linear")(x) - plain.proj.bias
    torch.testing.assert_close(got, want / 2)


def test_there_and_back():
    model = VIT.create()
    images = images_of(VIT)
    before, names, softmax = model(images), list(model.state_dict()), list(model.modules())
    assert wc.set_attention(model, "linear", k=16) is model
    linear = model(images)
    assert not torch.allclose(linear, before)
    assert list(model.state_dict()) == names and list(model.modules()) == softmax
    assert {m.linear_k for m in model.modules() if isinstance(m, LinearAttention)} == {16.0}
    wc.set_attention(model, "linear", k=8)  # replaces
    assert not torch.allclose(model(images), linear)
    wc.set_attention(model, "linear")
    torch.testing.assert_close(model(images), linear, rtol=0, atol=0)
    assert "k=16" in repr(model)
    wc.set_attention(model, "softmax")
    assert torch.equal(model(images), before)
    assert {type(m) for m in model.modules() if isinstance(m, Attention)} == {Attention}
    assert not any("linear_k" in m.__dict__ for m in model.modules())
    assert wc.set_attention(wc.set_attention(model, "softmax"), "softmax") is model


@pytest.mark.parametrize(
    "name", ["deit_tiny_patch16_224", "deit3_small_patch16_224", "vit_small_patch14_reg4_dinov2",
             "vit_base_patch16_siglip_224"]
)  # fmt: skip
def test_families_of_the_vit_kind(name):
    size = 28 if "14" in name.split("_")[2] else 32
    model = timm.create_model(name, img_size=size, depth=2, embed_dim=48, num_heads=3, num_classes=5).eval()
    images = torch.randn(2, 3, size, size)
    before = model(images)
    assert not torch.equal(wc.set_attention(model, "linear", k=2)(images), before)
    assert torch.equal(wc.set_attention(model, "softmax")(images), before)


@pytest.mark.parametrize(
    ("family", "reason"),
    [(BEIT, "position bias"), (EVA, "rotates"), (SWIN, "bias"), (SWINV2, "cosines"), (CAIT, "talking heads"),
     (XCIT, "channels"), (PVT, "pooled"), (MAXVIT, "bias"), (CONVMIXER, "no self-attention")],
    ids=str,
)  # fmt: skip
def test_others_are_refused_with_the_reason_and_untouched(family, reason):
    model = family.create()
    classes = [type(m) for m in model.modules()]
    with pytest.raises(ValueError, match=reason):
        wc.set_attention(model, "linear")
    assert [type(m) for m in model.modules()] == classes
    adapt(model)
    with pytest.raises(ValueError, match=reason):  # also when its blocks are adapted
        wc.set_attention(model, "linear")
    assert wc.set_attention(model, "softmax") is model


class Own(Attention):
    def forward(self, x, attn_mask=None, is_causal=False):
        return 2 * super().forward(x, attn_mask, is_causal)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2)


class NoneHere(nn.Module):
    """Where a block may have an attention and this one does not (MobileViT's convolutions)."""

    def __init__(self):
        super().__init__()
        self.attn, self.inner = nn.Identity(), Attention(8)


def test_an_identity_is_no_attention():
    model = NoneHere()
    wc.set_attention(model, "linear")
    assert isinstance(model.inner, LinearAttention) and type(model.attn) is nn.Identity


@pytest.mark.parametrize(("model", "message"), [
    (Own(8), "a forward of its own"), (Plain(), "only timm's"), (nn.Linear(2, 2), "no self-attention"), ("vit", "vit"),
])  # fmt: skip
def test_strangers_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        wc.set_attention(model, "linear")


@pytest.mark.parametrize("k", [0, math.nan, math.inf, "16", True, [1, 2], -0.0], ids=repr)
def test_k_is_a_finite_number_other_than_zero(k):
    model = VIT.create()
    with pytest.raises(ValueError, match=r"k=.*16"):
        wc.set_attention(model, "linear", k=k)
    assert not any(isinstance(m, LinearAttention) for m in model.modules())


def test_words_are_checked():
    with pytest.raises(ValueError, match="'cosine'"):
        wc.set_attention(VIT.create(), "cosine")
    with pytest.raises(ValueError, match="neither k"):
        wc.set_attention(VIT.create(), "softmax", k=4)


def test_a_negative_k_and_tensors_are_numbers():
    attention, x = Attention(12, num_heads=2).eval(), torch.randn(1, 5, 12)
    k: Any = torch.tensor(-4.0)
    bias = attention.proj.bias.detach()
    minus = wc.set_attention(attention, "linear", k=k)(x) - bias
    torch.testing.assert_close(minus, bias - wc.set_attention(attention, "linear", k=4)(x))


def test_a_batch_of_none_and_of_one():
    model = wc.set_attention(VIT.create(), "linear")
    assert model(torch.empty(0, 3, 32, 32)).shape == (0, 5)
    images = images_of(VIT)
    torch.testing.assert_close(model(images[:1]), model(images)[:1])


def test_masks_are_refused():
    attention = wc.set_attention(Attention(12, num_heads=2), "linear")
    with pytest.raises(ValueError, match="mask"):
        attention(torch.randn(1, 5, 12), attn_mask=torch.zeros(5, 5))
    with pytest.raises(ValueError, match="mask"):
        attention(torch.randn(1, 5, 12), is_causal=True)


def test_dropout_acts_on_the_entries_of_the_map():
    attention = wc.set_attention(Attention(12, num_heads=2, attn_drop=0.5), "linear", k=3)
    x = torch.randn(1, 9, 12)
    maps: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keep(_module, inputs, output):
        maps.append((inputs[0], output))

    attention.attn_drop.register_forward_hook(keep)
    attention.eval()(x)
    assert not maps
    attention.train()(x)
    Q, K, _ = attention.qkv(x).reshape(1, 9, 3, 2, 6).permute(2, 0, 3, 1, 4)
    whole, dropped = maps[0]
    torch.testing.assert_close(whole, Q @ K.mT / 3)
    assert ((dropped == 0) | torch.isclose(dropped, 2 * whole)).all() and (dropped == 0).any()


def test_works_with_blocks_skips_graying_and_probes():
    model = VIT.create()
    images = images_of(VIT)
    wc.set_attention(wc.cut_skips(wc.gray(model), mlp=False), "linear", k=2)
    with record(model) as sites:
        model(images)
    x, attention = sites[0, "sab_in"].double(), copy.deepcopy(model.blocks[0].attn).double()
    want = by_hand(attention, model.double().blocks[0].norm1(x).detach(), 2)
    assert relative_error(sites[0, "sab_sum"].numpy(), want) < 1e-5
    model.float()
    with pytest.raises(ValueError, match="linear"):
        attention_map(adapt(model)[0], x.float())
    rows = probe(model, [images])
    assert {row.site for row in rows} == {"sab_in", "sab_out", "sab_sum", "ffn_out", "ffn_sum"}
    with pytest.raises(ValueError, match="linear"):
        probe(model, [images], quantities=["attention_entropy"])
    wc.ungray(wc.restore_skips(wc.set_attention(model, "softmax")))
    assert torch.equal(model(images), VIT.create()(images))


def test_a_compiled_model_notices():
    model = VIT.create()
    images = images_of(VIT)
    compiled: Any = torch.compile(model, backend="eager", fullgraph=True)
    softmax = compiled(images)
    wc.set_attention(compiled, "linear", k=4)
    torch.testing.assert_close(compiled(images), model(images))
    assert not torch.allclose(compiled(images), softmax)
    wc.set_attention(model, "softmax")
    torch.testing.assert_close(compiled(images), softmax)
    torch._dynamo.reset()


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_copies_are_linear_and_apart(how):
    model = wc.set_attention(VIT.create(), "linear", k=3)
    images = images_of(VIT)
    twin = how(model)
    want = model(images)
    assert torch.equal(twin(images), want)
    wc.set_attention(model, "softmax")
    assert torch.equal(twin(images), want) and not torch.equal(model(images), want)
    wc.set_attention(twin, "softmax")
    assert torch.equal(twin(images), model(images))


def test_checkpoints_move_both_ways():
    source = VIT.create()
    linear = wc.set_attention(timm.create_model(VIT.name, num_classes=5, **VIT.options), "linear")
    linear.load_state_dict(source.state_dict())
    wc.set_attention(source, "linear").load_state_dict(linear.state_dict())
    assert torch.equal(source(images_of(VIT)), linear.eval()(images_of(VIT)))


def test_autocast_and_gradients():
    model = wc.set_attention(VIT.create(), "linear", k=4)
    images = images_of(VIT)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(images)
    full = model(images)
    assert relative_error(low.detach().float().numpy(), full.detach().numpy()) < 5e-2
    full.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_inside_ddp(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/x", rank=0, world_size=1)
    try:
        model = VIT.create()
        wrapped = DistributedDataParallel(model)
        wc.set_attention(wrapped, "linear", k=4)
        want = wc.set_attention(VIT.create(), "linear", k=4)(images_of(VIT))
        got = wrapped(images_of(VIT))
        torch.testing.assert_close(got, want)
        got.sum().backward()
    finally:
        torch.distributed.destroy_process_group()


def test_a_class_that_another_tool_built_on_ours_stays_and_computes_softmax():
    attention, x = Attention(12, num_heads=2).eval(), torch.randn(1, 5, 12)
    want = attention(x)
    wc.set_attention(attention, "linear")
    attention.__class__ = type("Sharded", (type(attention),), {})  # as fully_shard does
    wc.set_attention(attention, "softmax")
    assert torch.equal(attention(x), want) and not attention.no_map
    assert not torch.equal(wc.set_attention(attention, "linear")(x), want)
