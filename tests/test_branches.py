"""Branches as functions of normalised tokens, attention maps, and the generic adapter's proof."""

from typing import Any

import pytest
import timm
import torch
from block_cases import BEIT, CAIT, CONVMIXER, EVA, MAXVIT, MODELS, PVT, SWIN, SWINV2, VIT, XCIT, images_of
from torch import nn

from wellcond.blocks import adapt, attention_map, normalise, record, sub_block


def assert_close(got, want, tolerance=1e-5):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def recorded(family) -> tuple[list[Any], dict]:
    model = family.create()
    blocks = adapt(model)
    with torch.no_grad(), record(model) as sites:
        model(images_of(family))
    return blocks, sites


@pytest.mark.parametrize("family", MODELS, ids=str)
def test_sub_blocks_lead_from_site_to_site(family):
    """normalise ∘ branch on the recorded input is the recorded branch, in evaluation (no drop-path)."""
    blocks, sites = recorded(family)
    for layer, block in enumerate(blocks):
        steps = {"attention": ("sab_in", "sab_out"), "mlp": ("sab_sum", "ffn_out")}
        if "lpi_gain" in block.gains:
            steps |= {"lpi": ("sab_sum", "lpi_out"), "mlp": ("lpi_sum", "ffn_out")}
        for which, (start, end) in steps.items():
            if f"{which}_gain" not in block.gains:
                with pytest.raises(ValueError, match=f"no sub-block '{which}'; it has attention"):
                    sub_block(block, which)
                continue
            with torch.no_grad():
                got = sub_block(block, which)(normalise(block, which, sites[layer, start]))
            assert_close(got, sites[layer, end])


@pytest.mark.parametrize("family", [VIT, BEIT, EVA, SWIN, SWINV2, PVT, MAXVIT], ids=str)
def test_sub_blocks_can_be_differentiated(family):
    blocks, sites = recorded(family)
    X = normalise(blocks[-1], "attention", sites[len(blocks) - 1, "sab_in"])[:1, :, :].detach()
    f = sub_block(blocks[-1], "attention")
    V, U = torch.randn_like(X), torch.randn_like(X)
    pull = torch.func.vjp(f, X)[1]
    push = torch.func.jvp(f, (X,), (V,))[1]
    h = 1e-2
    with torch.no_grad():
        finite = (f(X + h * V) - f(X - h * V)) / (2 * h)
        assert float((pull(U)[0] * V).sum()) == pytest.approx(float((U * push).sum()), rel=1e-3, abs=1e-3)
        assert_close(push, finite, 3e-2)


def values(attention, X):
    """(B, H, n, d_h), of any qkv or kv projection of timm."""
    B, n, _ = X.shape
    if hasattr(attention, "kv"):
        return attention.kv(X).reshape(B, n, 2, attention.num_heads, -1)[:, :, 1].transpose(1, 2)
    if attention.qkv is None:
        return attention.v_proj(X).reshape(B, n, attention.num_heads, -1).transpose(1, 2)
    y = attention.qkv(X).reshape(B, n, 3, -1)[:, :, 2]
    if getattr(attention, "v_bias", None) is not None:
        y = y + attention.v_bias
    return y.reshape(B, n, attention.num_heads, -1).transpose(1, 2)


TOKEN_MAPS = [f for f in MODELS if f.name.startswith(("vit_", "deit", "beit", "eva"))]


@pytest.mark.parametrize("family", TOKEN_MAPS, ids=str)
def test_attention_map_times_values_is_the_attention(family):
    """The model itself attends by the fused kernel: another path than the one the map comes from."""
    blocks, sites = recorded(family)
    for layer, block in enumerate(blocks):
        X = normalise(block, "attention", sites[layer, "sab_in"])
        B, n, _ = X.shape
        heads = []
        handle = block.attn.proj.register_forward_pre_hook(lambda _m, inputs, heads=heads: heads.append(inputs[0]))
        with torch.no_grad():
            sub_block(block, "attention")(X)
            A = attention_map(block, X)
        handle.remove()
        assert A.shape == (B, block.attn.num_heads, n, n) and bool((A >= 0).all())
        assert_close(A.sum(-1), torch.ones(B, block.attn.num_heads, n))
        mixed = (A @ values(block.attn, X)).transpose(1, 2).reshape(B, n, -1)
        norm = getattr(block.attn, "norm", nn.Identity())
        assert_close(norm(mixed), heads[0])
        assert block.attn.fused_attn and not block.attn.attn_drop._forward_pre_hooks


def test_attention_map_is_softmax_of_queries_and_keys():
    blocks, sites = recorded(VIT)
    attn, X = blocks[0].attn, normalise(blocks[0], "attention", sites[0, "sab_in"])
    Wq, Wk, _ = attn.qkv.weight.chunk(3)
    bq, bk, _ = attn.qkv.bias.chunk(3)
    A = attention_map(blocks[0], X)
    for h in range(3):
        rows = slice(16 * h, 16 * (h + 1))
        logits = (X @ Wq[rows].mT + bq[rows]) @ (X @ Wk[rows].mT + bk[rows]).mT / 4
        assert_close(A[:, h], logits.exp() / logits.exp().sum(-1, keepdim=True))


@pytest.mark.parametrize("family", [SWIN, SWINV2], ids=str)
def test_window_maps_respect_the_mask_of_shifted_windows(family):
    blocks, sites = recorded(family)
    A = attention_map(blocks[1], normalise(blocks[1], "attention", sites[1, "sab_in"])).detach()
    assert A.shape == (2 * 4, 2, 16, 16)  # an 8 × 8 map in four windows of 4 × 4
    assert_close(A.sum(-1), torch.ones(8, 2, 16))
    forbidden = (blocks[1].attn_mask < 0)[None, :, None].expand(2, 4, 2, 16, 16).reshape(A.shape)
    assert forbidden.any() and float(A[forbidden].max()) < 1e-20 < float(A[~forbidden].min())


def test_window_maps_of_maxvit_and_full_map_of_pvt():
    blocks, sites = recorded(MAXVIT)
    A = attention_map(blocks[0], normalise(blocks[0], "attention", sites[0, "sab_in"]))
    w = blocks[0].partition_size[0] ** 2
    assert A.shape[1:] == (1, w, w)
    blocks, sites = recorded(PVT)
    n = sites[2, "sab_in"].shape[1]
    assert attention_map(blocks[2], normalise(blocks[2], "attention", sites[2, "sab_in"])).shape == (2, 2, n, n)
    with pytest.raises(ValueError, match=r"keys are pooled, so its map is 64 × 4"):
        attention_map(blocks[0], normalise(blocks[0], "attention", sites[0, "sab_in"]))


@pytest.mark.parametrize(
    ("family", "layer", "reason"),
    [
        (CAIT, 0, "talking heads"),
        (CAIT, 3, "class token"),
        (XCIT, 0, "over channels"),
        (XCIT, 3, "class token"),
        (CONVMIXER, 0, "depthwise convolution"),
    ],
    ids=str,
)
def test_maps_that_do_not_exist_are_refused(family, layer, reason):
    blocks, sites = recorded(family)
    with pytest.raises(ValueError, match=reason):
        attention_map(blocks[layer], sites[layer, "sab_in"])


def test_differential_and_linear_attention_are_no_softmax():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, attn_layer="diff")
    X = torch.randn(1, 5, 192)
    with pytest.raises(ValueError, match="one map for each head"):
        attention_map(adapt(model)[0], X)

    class Halved(nn.Module):
        fused_attn, num_heads, attn_drop = True, 1, nn.Identity()

        def forward(self, x):
            return self.attn_drop((x @ x.mT)[:, None] / 2)[:, 0] @ x

    block: Any = adapt(VIT.create())[0]
    block.attn = Halved()
    with pytest.raises(ValueError, match="do not sum to 1"):
        attention_map(block, X[..., :48])
    assert block.attn.fused_attn is True
    block.attn = nn.Identity()
    with pytest.raises(ValueError, match="does not show its attention map"):
        attention_map(block, X[..., :48])


def test_what_the_branch_needs_is_asked_for():
    model = EVA.create()
    X = torch.randn(1, 5, 48)
    with pytest.raises(ValueError, match="not an adapted block; take it from adapt"):
        sub_block(model.blocks[0], "attention")
    block = adapt(model)[0]
    with pytest.raises(ValueError, match="run `with record"):
        sub_block(block, "attention")
    with pytest.raises(ValueError, match="run `with record"):
        attention_map(block, X)
    with record(model):
        model(images_of(EVA))
    with pytest.raises(ValueError, match=r"\(B, n, d\), got \(5, 48\)"):
        sub_block(block, "attention")(X[0])
    assert block._context is not None
    rope = block._context[2]["rope"]
    expected = model.blocks[0].attn(X, rope=rope)
    assert_close(sub_block(block, "attention")(X), expected)
    assert not torch.allclose(expected, model.blocks[0].attn(X))
