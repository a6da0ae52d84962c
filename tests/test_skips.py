"""cut_skips, restore_skips, set_gains; and adapted models under compile, autocast, DDP, deepcopy, graying."""

import copy
import io
import math
from typing import Any

import numpy as np
import pytest
import timm
import torch
from block_cases import CAIT, CONVMIXER, MODELS, SWIN, VIT, XCIT, blocks_of, plainly
from torch import nn

import wellcond as wc
from wellcond.blocks import SITES, adapt, adapted_blocks, record, unadapt
from wellcond.skips import cut_skips, restore_skips, set_gains

CUT = {"attention": 0.0, "mlp": 0.0, "lpi": 0.0}


def images_of(family, batch=2):
    return torch.randn(batch, 3, family.size, family.size, generator=torch.Generator().manual_seed(1))


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
    set_gains(model, mlp=[1, 0.75, np.float32(0.5), torch.tensor(0.25)])
    assert gains(model, "mlp") == [1.0, 0.75, 0.5, 0.25] and gains(model) == [0.5] * 4
    assert all(type(gain) is float for gain in gains(model, "mlp"))
    set_gains(model, attention=lambda depth: 1 - 0.4 * depth)
    assert gains(model) == pytest.approx([1, 1 - 0.4 / 3, 1 - 0.8 / 3, 0.6])
    set_gains(model, attention=np.linspace(1, 0, 4), mlp=torch.ones(()))
    assert gains(model) == pytest.approx([1, 2 / 3, 1 / 3, 0]) and gains(model, "mlp") == [1.0] * 4
    one = timm.create_model(VIT.name, **VIT.options | {"depth": 1})
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
        ("mixer_s32_224", {"num_blocks": 1}, "no transformer blocks"),
        ("vit_relpos_small_patch16_224", {"img_size": 32}, "pass images= a small batch"),
    ],
    ids=str,
)
def test_models_that_cannot_be_adapted_are_refused_whole(name, options, reason):
    depth = {"depth": 1} if name.startswith("vit_") else {}
    model = timm.create_model(name, **options, **depth)
    kinds = [type(module) for module in model.modules()]
    for refused in (cut_skips, adapt, set_gains):
        with pytest.raises(ValueError, match=reason):
            refused(model)
    with pytest.raises(ValueError, match=reason), record(model):
        pass
    assert [type(module) for module in model.modules()] == kinds


def test_a_forward_on_the_instance_is_refused():
    model = VIT.create()
    model.blocks[1].forward = lambda x: x
    with pytest.raises(ValueError, match=r"'blocks.1' has a forward set on the instance"):
        cut_skips(model)
    assert len(blocks_of(model)) == 2


# ---- the rest of PyTorch


@pytest.fixture
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("family", [VIT, SWIN], ids=str)
def test_compiled_whole_and_again_when_a_gain_changes(family):
    model = family.create()
    plain = copy.deepcopy(model)
    adapt(model)
    images = images_of(family)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

    def check(**values):
        set_gains(model, **{name: values.get(name, 1.0) for name in ("attention", "mlp")})
        want = plainly(copy.deepcopy(plain), **values)(images)
        got = compiled(images)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        return got

    whole, cut = check(), check(**CUT)
    assert float((whole - cut).detach().norm()) > 0.1
    torch.testing.assert_close(check(attention=0.5), check(attention=0.5))
    check()
    adapted_blocks(model)[1].mlp_gain = 0.0  # one block alone, set by hand
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_training_step_and_recording():
    model = cut_skips(VIT.create())
    plain = plainly(VIT.create(), **CUT)
    images = images_of(VIT)
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    for net in (compiled, plain):
        net(images).square().sum().backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-4, rtol=1e-4)
    with record(compiled) as sites:
        compiled(images)
    with record(model) as again:
        model(images)
    assert len(sites) == 2 * len(SITES) and all(torch.equal(X, again[key]) for key, X in sites.items())
    torch.testing.assert_close(compiled(images), model(images), atol=1e-5, rtol=1e-5)
    assert len(sites) == 2 * len(SITES)


@pytest.mark.usefixtures("_fresh_compiler")
def test_compiled_before_the_skips_are_cut():
    model, images = VIT.create(), images_of(VIT)
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(images)
    cut_skips(compiled)
    torch.testing.assert_close(compiled(images), plainly(VIT.create(), **CUT)(images), atol=1e-5, rtol=1e-5)
    restore_skips(compiled)
    torch.testing.assert_close(compiled(images), VIT.create()(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", MODELS, ids=str)
def test_autocast(family):
    plain = family.create()
    model = adapt_copy(plain)
    images = images_of(family)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(images), plain(images))
        cut_skips(model)
        got = model(images)
        with record(model) as sites:
            model(images)
        restore_skips(model)
        with record(model) as whole:
            model(images)
    assert got.isfinite().all()
    assert all(sites[key].dtype == whole[key].dtype for key in sites if key[1].endswith("_sum"))


def adapt_copy(model):
    model = copy.deepcopy(model)
    adapt(model)
    return model


@pytest.mark.parametrize("family", MODELS, ids=str)
def test_deepcopy_and_pickle_keep_gains_and_no_sink(family):
    model = set_gains(family.create(), attention=0.5)
    images = images_of(family)
    calls = []
    with record(model, lambda *call: calls.append(call)):
        model(images)
        twin = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
    num_calls = len(calls)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (twin, loaded):
        assert type(adapted_blocks(other)[0]) is type(adapted_blocks(model)[0])
        assert gains(other) == [0.5] * len(gains(model))
        assert torch.equal(other(images), model(images)) and len(calls) == num_calls
    restore_skips(twin)
    assert blocks_of(twin) and gains(model) == [0.5] * len(gains(model))
    assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}


@pytest.mark.parametrize("family", [VIT, XCIT], ids=str)
def test_ddp(family, tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    model = cut_skips(family.create())
    plain = plainly(family.create(), **CUT)
    images = images_of(family)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        with record(wrapped) as sites:
            out = wrapped(images)
        out.square().sum().backward()
        set_gains(wrapped, attention=1.0, mlp=1.0)
        assert set(gains(model)) == {1.0} and sites
    finally:
        torch.distributed.destroy_process_group()
    want = plain(images)
    want.square().sum().backward()
    assert torch.equal(out, want)
    grads = [[p.grad for p in net.parameters() if p.grad is not None] for net in (model, plain)]
    assert grads[0] and all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("family", [VIT, SWIN, CONVMIXER, XCIT], ids=str)
def test_graying_and_cutting_in_either_order(family):
    first, second = family.create(), family.create()
    images = images_of(family)
    cut_skips(wc.gray(first, "dct", 0.8))
    wc.gray(cut_skips(second), "dct", 0.8)
    want = plainly(wc.gray(family.create(), "dct", 0.8), **CUT)(images)
    assert torch.equal(first(images), want) and torch.equal(second(images), want)
    restore_skips(first), wc.ungray(second)
    assert torch.equal(first(images), wc.gray(family.create(), "dct", 0.8)(images))
    assert torch.equal(second(images), plainly(family.create(), **CUT)(images))
    wc.ungray(first), restore_skips(second)
    plain = family.create()
    for net in (first, second):
        assert [type(m) for m in net.modules()] == [type(m) for m in plain.modules()]
        assert torch.equal(net(images), plain(images))


def test_functional_call_and_checkpoints_do_not_know_of_gains():
    plain = VIT.create()
    model = set_gains(VIT.create(), attention=0.5)
    assert list(model.state_dict()) == list(plain.state_dict())
    images = images_of(VIT)
    assert torch.equal(torch.func.functional_call(model, plain.state_dict(), (images,)), model(images))
    plain.load_state_dict(model.state_dict())
    unadapt(model)
    assert torch.equal(plain(images), model(images))


def test_a_class_built_on_the_adapted_one_is_left_with_gain_one():
    """As FSDP does: the class has changed since, so it cannot go back."""
    model, images = VIT.create(), images_of(VIT)
    want = model(images)
    cut_skips(model)
    block = model.blocks[0]
    block.__class__ = type("Sharded", (type(block),), {})
    restore_skips(model)
    assert type(block).__name__ == "Sharded" and gains(model) == [1.0]
    assert torch.equal(model(images), want)
