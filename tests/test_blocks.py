"""Adapted blocks: bit-identical to timm's at gain 1, equal to plain re-implementations at any other."""

import copy
import math
from typing import Any

import block_cases
import pytest
import torch
from block_cases import MODELS, assert_identical, blocks_of, images_of, outcome, plainly
from timm.layers.drop import DropPath
from timm.models import convmixer
from torch import nn

from wellcond import cut_skips, restore_skips
from wellcond.blocks import adapt, unadapt

every_model = pytest.mark.parametrize("family", MODELS, ids=str)
by_mode = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


@by_mode
@every_model
def test_gain_one_is_bit_identical(family, training):
    plain = family.create()
    model = copy.deepcopy(plain)
    adapt(model)
    images = images_of(family)
    assert family.name == "convmixer" or any(isinstance(m, DropPath) and m.drop_prob for m in plain.modules())
    want = outcome(plain, images, training)
    assert sum(value is not None and bool(value.any()) for value in want.values()) > len(want) / 2
    assert_identical(outcome(model, images, training), want)
    unadapt(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert all(a.__dict__.keys() == b.__dict__.keys() for a, b in zip(model.modules(), plain.modules(), strict=True))


@pytest.mark.parametrize(
    "gains", [{"attention": 0.0}, {"mlp": 0.0}, {"attention": 0.0, "mlp": 0.0, "lpi": 0.0}], ids=str
)
@by_mode
@every_model
def test_cut_skips_equal_plain_functions(family, training, gains):
    model = family.create()
    plain = plainly(copy.deepcopy(model), **gains)
    if family.name == "convmixer" and "attention" not in gains:
        with pytest.raises(ValueError, match="no skip of mlp"):
            cut_skips(model, attention=False)
        return
    asked: dict[str, Any] = {name: name in gains for name in ("attention", "mlp", "lpi")}
    assert cut_skips(model, **asked) is model
    images = images_of(family)
    assert_identical(outcome(model, images, training), outcome(plain, images, training))
    assert restore_skips(model) is model
    fresh = family.create()
    fresh.load_state_dict(model.state_dict())  # batch norms have moved in training
    assert_identical(outcome(model, images), outcome(fresh, images))


@every_model
def test_other_gains_equal_plain_functions(family):
    model = family.create()
    gains = {"attention": 0.5, "mlp": -0.25, "lpi": 2.0}
    plain = plainly(copy.deepcopy(model), **gains)
    for block in adapt(model):
        for name, gain in gains.items():
            if hasattr(block, f"{name}_gain"):
                setattr(block, f"{name}_gain", gain)
    images = images_of(family)
    assert_identical(outcome(model, images, True), outcome(plain, images, True))


@every_model
def test_adapt_keeps_objects_keys_and_order(family):
    model = family.create()
    modules, keys, weights = list(model.modules()), list(model.state_dict()), list(model.parameters())
    want = blocks_of(model)
    blocks = adapt(model)
    assert len(blocks) == len(want) and all(a is b for a, b in zip(blocks, want, strict=True))
    again = [type(block) for block in blocks]
    assert [type(block) for block in adapt(model)] == again
    assert list(model.state_dict()) == keys and all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(a is b for a, b in zip(model.parameters(), weights, strict=True))
    assert all(getattr(block, gain) == 1.0 for block in blocks for gain in block.gains)
    cut_skips(model)
    fresh = family.create()
    fresh.load_state_dict(model.state_dict())
    model.load_state_dict(fresh.state_dict())


@pytest.mark.parametrize("family", [block_cases.VIT, block_cases.EVA], ids=str)
def test_masks_and_causality_reach_the_attention(family):
    plain = family.create()
    model = copy.deepcopy(plain)
    adapt(model)
    block, original = model.blocks[1], plain.blocks[1]
    X = torch.randn(2, 5, 48)
    mask = torch.rand(2, 1, 5, 5) > 0.3
    mask |= torch.eye(5, dtype=torch.bool)
    assert torch.equal(block(X, attn_mask=mask), original(X, attn_mask=mask))
    assert torch.equal(block(X, is_causal=True), original(X, is_causal=True))
    assert not torch.equal(block(X, is_causal=True), block(X))


def test_infinite_stream_does_not_reach_a_branch_without_skip():
    model = cut_skips(block_cases.CONVMIXER.create())
    block = adapt(model)[0]
    block.fn = nn.Hardtanh()
    out = block(torch.full((1, 16, 4, 4), math.inf))
    assert torch.equal(out, torch.ones(1, 16, 4, 4))


@pytest.mark.parametrize("family", [block_cases.CONVMIXER, MODELS[-2], block_cases.PVT, block_cases.SWIN], ids=str)
def test_channels_last_is_bit_identical(family):
    plain = family.create().to(memory_format=torch.channels_last)
    model = copy.deepcopy(plain)
    adapt(model)
    for images in (images_of(family), images_of(family).to(memory_format=torch.channels_last)):
        assert_identical(outcome(model, images, True), outcome(plain, images, True))


def test_strides_of_the_sum_are_the_original_s():
    """They decide which kernels run later, so they belong to bit-identity."""
    conv: Any = nn.Conv2d(4, 4, 1)
    block = convmixer.Residual(conv.to(memory_format=torch.channels_last))
    x = torch.randn(2, 4, 3, 3)
    want = block(x).stride()
    adapted = adapt(block)[0]
    assert adapted(x).stride() == want != x.stride()


def test_timm_can_still_resize_the_windows():
    family = block_cases.SWIN
    plain = family.create()
    model = copy.deepcopy(plain)
    cut_skips(model)
    for net in (plain, model):
        net.set_input_size(img_size=(48, 32), window_size=4)
    images = torch.randn(2, 3, 48, 32)
    assert torch.equal(model(images), plainly(plain, attention=0.0, mlp=0.0)(images))
