"""The generic adapter: it proves itself on a batch, bit for bit, or refuses."""

import copy
from typing import Any

import block_cases
import pytest
import timm
import torch
from block_cases import VIT
from timm.layers.drop import DropPath
from torch import nn

from wellcond import cut_skips, restore_skips
from wellcond.blocks import adapt, record, unadapt


class Attention(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.inner = nn.MultiheadAttention(d, 3, batch_first=True, dropout=0.1)

    def forward(self, x, bias=None):
        y = self.inner(x, x, x, need_weights=False)[0]
        return y if bias is None else y + bias


class Own(nn.Module):
    """A user's block. `kind` is what its forward does; LayerScale hides the branches at first sight."""

    def __init__(self, kind="pre", scale=0.0, d=48):
        super().__init__()
        self.kind = kind
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = Attention(d)
        self.mlp = nn.Sequential(nn.Linear(d, 96), nn.GELU(), nn.Dropout(0.2), nn.Linear(96, d))
        if kind != "post":
            self.gamma_1, self.gamma_2 = (nn.Parameter(scale * torch.ones(d)) for _ in range(2))
        self.drop_path = DropPath(0.5)

    def forward(self, x, bias=None):
        if self.kind == "pre":
            x = x + self.drop_path(self.gamma_1 * self.attn(self.norm1(x), bias))
            return x + self.drop_path(self.gamma_2 * self.mlp(self.norm2(x)))
        if self.kind == "post":
            x = x + self.drop_path(self.norm1(self.attn(x, bias)))
            return x + self.drop_path(self.norm2(self.mlp(x)))
        if self.kind == "parallel":
            y = self.gamma_1 * self.attn(self.norm1(x), bias)
            return x + self.drop_path(y) + self.drop_path(self.gamma_2 * self.mlp(self.norm2(x)))
        x = x + self.drop_path(self.gamma_1 * self.attn(self.norm1(x), bias))
        y = self.gamma_2 * self.mlp(self.norm2(x))
        return x + (y.detach() if self.kind == "detached" else self.drop_path(2 * y))


class OwnModel(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = nn.Conv2d(3, 48, 8, 8)
        self.blocks = nn.ModuleList([Own(kind) for _ in range(2)])
        self.head = nn.Linear(48, 5)

    def forward(self, images):
        x = self.embed(images).flatten(2).mT
        for i, block in enumerate(self.blocks):
            x = block(x, bias=0.1 * i * x if i else None)
        return self.head(x.mean(1))


@pytest.mark.parametrize("kind", ["pre", "post"])
def test_generic_adapter_proves_itself_and_cuts(kind):
    model, images = OwnModel(kind).train(), torch.randn(2, 3, 32, 32)
    plain = copy.deepcopy(model)
    state = torch.get_rng_state()
    blocks: list[Any] = adapt(model, images)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training for m in model.modules()) and all(p.grad is None for p in model.parameters())
    assert not any(block._forward_pre_hooks for block in blocks)
    for net in (plain, model):
        torch.manual_seed(0)
        net(images).square().sum().backward()
    grads = [[p.grad for p in net.parameters() if p.grad is not None] for net in (model, plain)]
    assert grads[0] and all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    cut_skips(model.eval(), images=images)
    block, X = blocks[0], torch.randn(2, 16, 48)
    got = block(X)
    b: Any = plain.eval().blocks[0]
    want = b.norm1(b.attn(X)) if kind == "post" else b.gamma_1 * b.attn(b.norm1(X))
    want = b.norm2(b.mlp(want)) if kind == "post" else b.gamma_2 * b.mlp(b.norm2(want))
    assert torch.equal(got, want)
    with record(model) as sites:
        model(images)
    assert torch.equal(sites[1, "sab_in"], sites[0, "ffn_sum"])
    restore_skips(model)
    assert torch.equal(model(images), plain(images)) and type(model.blocks[0]) is Own


@pytest.mark.parametrize("kind", ["parallel", "doubled", "detached"])
def test_generic_adapter_refuses_what_it_cannot_prove(kind):
    """Each of them is hidden by a LayerScale of 0, or differs in the gradients alone."""
    model, images = OwnModel(kind), torch.randn(2, 3, 32, 32)
    before = [type(m) for m in model.modules()]
    with pytest.raises(ValueError, match=r"'blocks.0' \(Own\).*output or gradients differ"):
        cut_skips(model, images=images)
    assert [type(m) for m in model.modules()] == before


def test_generic_adapter_refuses_a_block_that_returns_more_than_its_tokens():
    """As MViT v2 does: tokens and their grid."""

    class Pair(Own):
        def forward(self, x, bias=None):
            return super().forward(x, bias), x.shape

    class PairModel(OwnModel):
        def forward(self, images):
            x = self.embed(images).flatten(2).mT
            for block in self.blocks:
                x, _ = block(x)
            return self.head(x.mean(1))

    model, images = PairModel("pre"), torch.randn(2, 3, 32, 32)
    model.blocks = nn.ModuleList([Pair("pre"), Pair("pre")])
    with pytest.raises(ValueError, match=r"'blocks.0' \(Pair\) returns a tuple"):
        adapt(model, images)
    assert [type(block) for block in model.blocks] == [Pair, Pair]


def test_generic_adapter_asks_for_a_batch_and_names_obstacles():
    model, images = OwnModel("pre"), torch.randn(1, 3, 32, 32)
    with pytest.raises(ValueError, match=r"Own\) is of no family.*pass images="):
        cut_skips(model)
    model.blocks.append(Own("pre"))
    model.blocks[2].mixin = 3  # type: ignore[assignment]
    with pytest.raises(ValueError, match="members of its own named mixin"):
        adapt(model, images)
    del model.blocks[2].mixin
    model.unused = Own("pre")
    with pytest.raises(ValueError, match=r"'unused' .* not called on the batch"):
        adapt(model, images)
    with pytest.raises(ValueError, match=r"does not run on images of shape .*\(.*channels.*\); pass images="):
        adapt(model.train(), images[:, :1])  # the words of the model, and nothing is left behind
    assert not any(m._forward_pre_hooks for m in model.modules()) and model.blocks[0].training
    assert type(model.blocks[0]) is Own


def test_a_subclass_with_its_own_forward_has_to_prove_itself():
    class Louder(block_cases.vit.Block):
        def forward(self, x, **_kwargs):
            return 2 * super().forward(x)

    class Renamed(block_cases.vit.Block):
        pass

    model, images = VIT.create(), torch.randn(2, 3, 32, 32)
    model.blocks[1].__class__ = Renamed
    assert len(adapt(model)) == 2
    unadapt(model)
    assert type(model.blocks[1]) is Renamed
    model.blocks[1].__class__ = Louder
    with pytest.raises(ValueError, match="Louder"):
        adapt(model)
    with pytest.raises(ValueError, match="differ"):
        adapt(model, images)
    assert type(model.blocks[0]) is block_cases.vit.Block


@pytest.mark.parametrize("name", ["vit_relpos_small_patch16_224", "vit_srelpos_small_patch16_224", "convit_tiny"])
def test_other_models_of_timm_prove_themselves(name):
    options: dict[str, Any] = {"local_up_to_layer": 1} if name == "convit_tiny" else {"embed_dim": 48, "num_heads": 3}
    model = timm.create_model(name, depth=2, num_classes=5, img_size=32, **options)
    images = torch.randn(2, 3, 32, 32)
    want = model.eval()(images)
    assert len(adapt(model, images)) == 2 and torch.equal(model(images), want)
