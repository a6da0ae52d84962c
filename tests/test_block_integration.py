"""Models with gains under the rest of PyTorch and wellcond: compile, export, autocast, DDP, copies, graying."""

import copy
import io
from typing import Any

import pytest
import torch
from block_cases import CONVMIXER, MODELS, SWIN, VIT, XCIT, blocks_of, images_of, plainly
from torch import nn

import wellcond as wc
from wellcond.blocks import SITES, adapt, adapted_blocks, record, unadapt
from wellcond.skips import cut_skips, restore_skips, set_gains

CUT = {"attention": 0.0, "mlp": 0.0, "lpi": 0.0}


def gains(model, name="attention"):
    return [getattr(block, f"{name}_gain") for block in adapted_blocks(model) if f"{name}_gain" in block.gains]


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
    restore_skips(first)
    wc.ungray(second)
    assert torch.equal(first(images), wc.gray(family.create(), "dct", 0.8)(images))
    assert torch.equal(second(images), plainly(family.create(), **CUT)(images))
    wc.ungray(first)
    restore_skips(second)
    plain = family.create()
    for net in (first, second):
        assert [type(m) for m in net.modules()] == [type(m) for m in plain.modules()]
        assert torch.equal(net(images), plain(images))


def test_exported_with_its_gains():
    model, images = cut_skips(VIT.create()), images_of(VIT)
    exported = torch.export.export(model, (images,)).module()
    restore_skips(model)
    torch.testing.assert_close(exported(images), plainly(VIT.create(), **CUT)(images))


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
