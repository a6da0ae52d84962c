"""cut_skips, restore_skips, set_gains: what they set, what they refuse."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import timm
import torch
from block_cases import CAIT, CONVMIXER, VIT, XCIT, blocks_of, images_of
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

from wellcond.blocks import adapt, adapted_blocks, find_blocks, record
from wellcond.skips import cut_skips, restore_skips, set_gains

CUT = {"attention": 0.0, "mlp": 0.0, "lpi": 0.0}


def gains(model, name="attention"):
    return [getattr(block, f"{name}_gain") for block in adapted_blocks(model) if f"{name}_gain" in block.gains]


# ---- gains


def test_cut_and_restore():
    model = VIT.create()
    images = images_of(VIT)
    want = model(images)
    assert cut_skips(model) is model and gains(model) == gains(model, "mlp") == [0.0, 0.0]
    assert restore_skips(model) is model and not adapted_blocks(model)
    assert torch.equal(model(images), want)
    cut_skips(model, mlp=False)
    assert gains(model) == [0.0, 0.0] and gains(model, "mlp") == [1.0, 1.0]
    cut_skips(model, attention=False)  # what is False stays as it is
    assert gains(model) == gains(model, "mlp") == [0.0, 0.0]
    restore_skips(model)
    cut_skips(model, False, False)
    assert torch.equal(model(images), want)
    assert restore_skips(restore_skips(model)) is model


def test_xcit_has_a_third_skip_and_convmixer_one():
    model = cut_skips(XCIT.create(), attention=False, mlp=False)
    assert gains(model, "lpi") == [0.0, 0.0] and gains(model) == [1.0] * 4
    set_gains(model, lpi=[0.5, 0.25], mlp=lambda depth: 1 - depth)
    assert gains(model, "lpi") == [0.5, 0.25] and gains(model, "mlp") == pytest.approx([1, 2 / 3, 1 / 3, 0])
    cut_skips(model)
    assert not any(gains(model) + gains(model, "lpi") + gains(model, "mlp"))
    model = cut_skips(CONVMIXER.create())
    assert gains(model) == [0.0, 0.0] and not hasattr(adapted_blocks(model)[0], "mlp_gain")


def test_schedules_over_depth():
    model = CAIT.create()  # two blocks of each stage
    assert set_gains(model, attention=0.5) is model
    assert gains(model) == [0.5] * 4 and gains(model, "mlp") == [1.0] * 4
    numbers: list[Any] = [1, 0.75, np.float32(0.5), torch.tensor(0.25)]
    set_gains(model, mlp=numbers)
    assert gains(model, "mlp") == [1.0, 0.75, 0.5, 0.25] and gains(model) == [0.5] * 4
    assert all(type(gain) is float for gain in gains(model, "mlp"))
    set_gains(model, attention=lambda depth: 1 - 0.4 * depth)
    assert gains(model) == pytest.approx([1, 1 - 0.4 / 3, 1 - 0.8 / 3, 0.6])
    set_gains(model, attention=np.linspace(1, 0, 4), mlp=torch.ones(()))
    assert gains(model) == pytest.approx([1, 2 / 3, 1 / 3, 0]) and gains(model, "mlp") == [1.0] * 4
    options: dict[str, Any] = VIT.options | {"depth": 1}
    one = timm.create_model(VIT.name, **options)
    assert gains(set_gains(one, attention=lambda depth: depth)) == [0.0]


def test_a_schedule_computes_block_by_block():
    model = VIT.create()
    X = torch.randn(2, 5, 48)
    plain = copy.deepcopy(model)
    set_gains(model, attention=[0.5, 0.0], mlp=[1.0, -2.0])
    for block, original, a, m in zip(model.blocks, plain.blocks, (0.5, 0.0), (1.0, -2.0), strict=True):
        y = original.ls1(original.attn(original.norm1(X))) + (a * X if a else 0)
        torch.testing.assert_close(block(X), original.mlp(original.norm2(y)) + m * y)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"attention": math.nan}, r"finite number.*attention is nan"),
        ({"mlp": [1.0, math.inf]}, "one of mlp is inf"),
        ({"attention": [1.0, 1.0, 1.0]}, "attention has 3 gains for 2 blocks"),
        ({"attention": []}, "0 gains for 2 blocks"),
        ({"attention": True}, "is True; 1 keeps the skip"),
        ({"attention": "0.5"}, "is '0.5'"),
        ({"attention": lambda depth: None}, "is None"),
        ({"attention": torch.ones(2, 2)}, "finite number"),
        ({"lpi": 0.5}, "VisionTransformer has no skip of lpi"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_gains_change_nothing(bad, message):
    model = set_gains(VIT.create(), attention=0.25)
    with pytest.raises(ValueError, match=message):
        set_gains(model, **{"mlp": 0.5, **bad})
    assert gains(model) == [0.25, 0.25] and gains(model, "mlp") == [1.0, 1.0]


# ---- refusals


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("vit_pwee_patch16_reg1_gap_256", {"img_size": 32}, "share one sum"),
        ("vit_dpwee_patch16_reg1_gap_256", {"img_size": 32}, "share one sum"),
        ("vit_small_patch16_18x2_224", {"img_size": 32}, "several attentions"),
        ("maxvit_tiny_pm_256", {"embed_dim": (32,), "depths": (1,), "block_type": ("PM",)}, "window and its grid"),
        ("crossvit_tiny_240", {}, "one branch of the model to another"),
        ("resnet18", {}, "ResNet has no transformer blocks"),
        ("mixer_s32_224", {}, "no transformer blocks"),
        ("vit_relpos_small_patch16_224", {"img_size": 32}, "pass images= a small batch"),
    ],
    ids=str,
)
def test_models_that_cannot_be_adapted_are_refused_whole(name, options, reason):
    depth: dict[str, Any] = {"depth": 1} if name.startswith("vit_") else {}
    model = timm.create_model(name, **options, **depth)
    kinds = [type(module) for module in model.modules()]
    for refused in (cut_skips, adapt, set_gains):
        with pytest.raises(ValueError, match=reason):
            refused(model)
    with pytest.raises(ValueError, match=reason), record(model):
        pass
    assert [type(module) for module in model.modules()] == kinds


@pytest.mark.parametrize("first", ["cut", "wrapped"])
def test_blocks_inside_a_wrapper_are_found(first):
    """A wrapper of checkpointing shows the members of its block, and was taken for a block of no known family."""
    images, model = images_of(VIT), VIT.create()
    want = cut_skips(VIT.create())(images)
    plain = type(model.blocks[0])
    for step in (first, {"cut": "wrapped", "wrapped": "cut"}[first]):
        if step == "cut":
            cut_skips(model)
        else:
            apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, plain))
    assert torch.equal(model(images), want)
    assert len(adapted_blocks(model)) == len(find_blocks(model)) == len(model.blocks)
    restore_skips(model)
    assert torch.equal(model(images), VIT.create()(images)) and not adapted_blocks(model)


def test_a_forward_on_the_instance_is_refused():
    model = VIT.create()
    model.blocks[1].forward = lambda x: x
    with pytest.raises(ValueError, match=r"'blocks.1' has a forward set on the instance"):
        cut_skips(model)
    assert len(blocks_of(model)) == 2
