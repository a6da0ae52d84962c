"""Monitor in a training loop: the rows of `probe`, the same training bit for bit, every kind of wrapper, misuse."""

import copy
import io
import json
import random
import warnings
from typing import Any

import pytest
import torch
import torch._dynamo
from block_cases import CAIT, CONVMIXER, MODELS, SWIN, VIT, XCIT, images_of
from test_generic_blocks import OwnModel
from test_probes import table
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

import wellcond as wc
from wellcond.blocks import adapted_blocks
from wellcond.monitor import Monitor, WellcondWarning
from wellcond.monitor.batch import FirstBatch
from wellcond.monitor.measuring import Together
from wellcond.probes import QUANTITIES, TOKEN_QUANTITIES, probe


def assert_same_rows(got, want, rel=1e-6):
    got, want = table(got), table(want)
    assert got.keys() == want.keys()
    for key, row in want.items():
        assert got[key].num_infinite == row.num_infinite and got[key].num_images == row.num_images
        assert (got[key].n, got[key].d) == (row.n, row.d)
        for column in ("value", "std", "floor_count"):
            expected = getattr(row, column)
            assert getattr(got[key], column) == (expected and pytest.approx(expected, rel=rel, abs=10 * rel)), key


def train(model, steps=6, *, call=None, monitor=None, autocast=False, batch=4, accumulate=1, size=32):
    """A loop of somebody's own: dropout and drop-path, AdamW, a seed; returns all that the training decides."""
    torch.manual_seed(3)
    model.train()
    call = model if call is None else call
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.Generator().manual_seed(5)
    for _ in range(steps):
        for _ in range(accumulate):
            images = torch.randn(batch, 3, size, size, generator=data)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                out = call(images)
                out = out[0] if isinstance(out, tuple) else out
                functional.cross_entropy(out.float(), torch.arange(batch) % 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step()
    return {**{k: v.clone() for k, v in model.state_dict().items()}, "next": torch.rand(3)}


def assert_same_training(got, want):
    assert got.keys() == want.keys() and all(torch.equal(got[key], want[key]) for key in want)


@pytest.fixture
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("family", [VIT, SWIN, CAIT, XCIT, CONVMIXER], ids=str)
def test_rows_are_those_of_probe_and_training_is_the_same(family):
    plain, model = family.create(), family.create()
    kinds, keys = [type(m) for m in model.modules()], [sorted(m.__dict__) for m in model.modules()]
    want = train(plain)
    images = images_of(family, 3)
    with Monitor(model, every=3, images=images, budget=None) as monitor:
        got = train(model, monitor=monitor)
        assert all(m.training for m in model.modules())
    assert_same_training(got, want)
    assert [m.step for m in monitor.history] == [1, 3, 6]
    assert_same_rows(monitor.rows, probe(model, [images], attention=False))
    assert [type(m) for m in model.modules()] == kinds
    assert [sorted(m.__dict__) for m in model.modules()] == keys


@pytest.mark.parametrize("family", MODELS, ids=str)
def test_sites_that_wait_for_each_other_have_the_numbers_of_those_that_do_not(family):
    model, images = family.create(), images_of(family)
    want = probe(model, [images])
    monitor = Monitor(model, images=images, quantities=QUANTITIES)
    monitor.step()
    assert_same_rows(monitor.rows, want)


def test_few_wait_where_memory_is_short(monkeypatch):
    model, images = VIT.create(), images_of(VIT)
    monkeypatch.setattr(Together.__init__, "__defaults__", (1,))
    monitor = Monitor(model, images=images)
    monitor.step()
    assert_same_rows(monitor.rows, probe(model, [images], attention=False))


class Overwritten(nn.Module):
    """Writes over its input: the same memory, other numbers."""

    def forward(self, x):
        return x.add_(torch.arange(x.shape[1])[:, None])


def test_a_stream_that_is_written_over_is_measured_before():
    model, images = VIT.create(), images_of(VIT)
    model.blocks.insert(1, Overwritten())
    monitor = Monitor(model, images=images)
    monitor.step()
    assert_same_rows(monitor.rows, probe(model, [images], attention=False))


def test_the_first_images_of_the_first_training_batch():
    model = VIT.create()
    monitor = Monitor(model, every=4, images=2, budget=None)
    with torch.no_grad():
        model(images_of(VIT, 5) + 1)  # an evaluation before is no training
    train(model, 4, monitor=monitor)
    first = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(5))[:2]
    assert_same_rows(monitor.rows, probe(model, [first], attention=False))
    assert not model._forward_pre_hooks
    monitor = Monitor(model)
    model(x=images_of(VIT, 3))
    monitor.step()
    assert monitor.rows[0].num_images == 3 and not model._forward_pre_hooks


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("given", ["wrapper", "images", "in place"])
def test_compiled_training_is_the_same_without_recompiling(given):
    options: dict[str, Any] = {"backend": "aot_eager", "fullgraph": True}
    plain = VIT.create()
    want = train(plain, call=torch.compile(plain, **options))
    torch.compiler.reset()
    model = VIT.create()
    call: Any = torch.compile(model, **options)
    if given == "in place":
        model.compile(**options)
        call = model
    seen, images = (call, 4) if given == "wrapper" else (model, images_of(VIT, 4))
    monitor = Monitor(seen, every=2, budget=None, images=images)
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(error_on_recompile=True), monitor:
        got = train(model, call=call, monitor=monitor)
    assert_same_training(got, want)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert [m.step for m in monitor.history] == [1, 2, 4, 6]


@pytest.mark.usefixtures("_fresh_compiler")
def test_a_compiled_model_that_hides_its_batches_is_not_passed_over_in_silence():
    model = VIT.create()
    monitor = Monitor(model)
    with pytest.warns(WellcondWarning, match="pass images=") as said:
        train(model, 4, call=torch.compile(model, backend="aot_eager"), monitor=monitor)
    assert len(said) == 1 and not monitor.history


def test_a_block_compiled_on_its_own_is_measured():
    model, images = VIT.create(), images_of(VIT)
    want = probe(model, [images], attention=False)
    model.blocks[0] = torch.compile(model.blocks[0], backend="aot_eager")
    monitor = Monitor(model, images=images)
    monitor.step()
    assert_same_rows(monitor.rows, want)


@pytest.mark.parametrize("kind", ["autocast", "accumulation", "checkpointing", "adapted", "float64"])
def test_ways_to_train(kind):
    def make():
        model = VIT.create()
        if kind == "checkpointing":
            model.set_grad_checkpointing()
        return wc.cut_skips(model, mlp=False) if kind == "adapted" else model

    options = {"autocast": kind == "autocast", "accumulate": 2 if kind == "accumulation" else 1}
    want = train(make(), **options)
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", WellcondWarning)  # without skips its rank does collapse
        with Monitor(model, every=2, budget=None) as monitor:
            got = train(model, monitor=monitor, **options)
    assert_same_training(got, want)
    assert len(monitor.history) == 4
    assert bool(adapted_blocks(model)) == (kind == "adapted")


def test_step_inside_autocast_leaves_no_casts_behind():
    """A weight cast without gradients and kept by autocast would have no gradient in the rest of the region."""
    model, images = VIT.create(), images_of(VIT)
    monitor = Monitor(model, every=1, images=images, budget=None)
    with torch.autocast("cpu", torch.bfloat16):
        monitor.step()
        model(images).sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    half = table(monitor.rows)
    monitor.step()
    assert half != table(monitor.rows)


def test_step_inside_autocast_measures_the_weights_of_now():
    """Autocast keeps the casts of a training pass, and the optimizer does not tell it that the weights have changed."""
    model, images = VIT.create(), images_of(VIT)
    monitor = Monitor(model, images=images)
    with torch.autocast("cpu", torch.bfloat16):
        model(images).sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1.5)
        monitor.step()
    with torch.autocast("cpu", torch.bfloat16):
        want = probe(model, [images], attention=False)
    assert_same_rows(monitor.rows, want)


def test_half_precision_batches_under_autocast():
    model = VIT.create()
    monitor = Monitor(model)
    with torch.autocast("cpu", torch.bfloat16):
        model(images_of(VIT).bfloat16()).sum().backward()
    monitor.step()
    assert monitor.rows


class Restless(nn.Module):
    """Draws random numbers in evaluation too."""

    def forward(self, x):
        return x + 1e-3 * torch.randn_like(x)


def test_random_states_are_left_alone():
    model, twin = VIT.create(), VIT.create()
    model.norm_pre, twin.norm_pre = Restless(), Restless()
    state = random.getstate()
    assert_same_training(train(model, monitor=Monitor(model, every=1, budget=None)), train(twin))
    assert random.getstate() == state


def _ddp(rank, world, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        model = VIT.create()
        wrapped = nn.parallel.DistributedDataParallel(model)
        path = folder / f"{rank}.jsonl"
        with Monitor(wrapped, every=2, budget=None, path=path) as monitor:
            got = train(model, 4, call=wrapped, monitor=monitor)
        assert len(monitor.history) == (3 if rank == 0 else 0)
        want = VIT.create()
        want = train(want, 4, call=nn.parallel.DistributedDataParallel(want))
        assert_same_training(got, want)
        assert path.exists() == (rank == 0)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("world", [1, 2])
def test_ddp(world, tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    if world == 1:
        _ddp(0, 1, tmp_path)
    else:
        spawn(_ddp, (world, tmp_path), nprocs=world)
    assert len((tmp_path / "0.jsonl").read_text().splitlines()) == 3


def test_copies_of_the_model_carry_nothing_of_the_monitor():
    model = VIT.create()
    monitor = Monitor(model)
    twin = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (twin, loaded):
        assert not any(isinstance(hook, FirstBatch) for hook in other._forward_pre_hooks.values())
        other(images_of(VIT))
    assert not monitor._has_images()
    model(images_of(VIT))
    monitor.step()
    copy.deepcopy(model)(images_of(VIT))
    assert monitor.rows


def test_the_model_is_left_as_it_was_after_an_exception(monkeypatch):
    def broken(*_):
        raise RuntimeError("in the model")

    model = VIT.create().train()
    kinds, keys = [type(m) for m in model.modules()], [sorted(m.__dict__) for m in model.modules()]
    with pytest.raises(RuntimeError, match="mine"), Monitor(model):
        raise RuntimeError("mine")
    assert not model._forward_pre_hooks
    with pytest.raises(ValueError, match="takes 32 × 32 px"):
        Monitor(model, images=torch.zeros(1, 3, 48, 48))
    monitor = Monitor(model, images=images_of(VIT))
    monkeypatch.setattr(type(model), "forward_head", broken)
    with pytest.raises(RuntimeError, match="in the model"):
        monitor.step()
    assert all(m.training for m in model.modules())
    assert [type(m) for m in model.modules()] == kinds
    assert [sorted(m.__dict__) for m in model.modules()] == keys


def test_blocks_that_are_not_timms():
    model: Any = OwnModel("pre")
    monitor = Monitor(model)
    model(torch.randn(3, 3, 32, 32)).sum().backward()
    monitor.step()
    assert {row.layer for row in monitor.rows} == {0, 1} and not adapted_blocks(model)


def test_what_is_measured_can_be_chosen():
    model, images = VIT.create(), images_of(VIT)
    monitor = Monitor(model, images=images, quantities=["kurtosis", "attention_entropy"])
    monitor.step()
    assert {row.quantity for row in monitor.rows} == {"kurtosis", "attention_entropy"}
    assert set(Monitor(model)._quantities) == set(TOKEN_QUANTITIES)


class FSDPModule:  # by its name: torch's own needs a process group
    pass


def test_misuse_is_one_line():
    model = VIT.create()
    sharded = VIT.create()
    sharded.__class__ = type("FSDPVit", (FSDPModule, type(sharded)), {})
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (model, {"every": 0}, "every=0"),
        (model, {"every": 2.5}, r"every=2\.5"),
        (model, {"keep": 0}, "keep=0"),
        (model, {"budget": 0}, "budget=0"),
        (model, {"images": 0}, "images=0"),
        (model, {"images": [torch.zeros(2, 3, 32, 32)]}, "images is a list; pass a number"),
        (model, {"images": torch.zeros(3, 32, 32)}, r"\(3, 32, 32\)"),
        (model, {"images": "photo.png"}, r"photo\.png"),
        (model, {"quantities": ["kapa"]}, "'kapa'"),
        (nn.Linear(2, 2), {}, "no transformer blocks"),
        ("vit", {}, "model is a str"),
        (sharded, {}, "FSDP"),
    ]
    for module, options, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            Monitor(module, **options)
        assert "\n" not in str(error.value)
    assert not model._forward_pre_hooks
    monitor = Monitor(model)
    monitor.close()
    monitor.close()
    with pytest.raises(ValueError, match="closed"):
        monitor.step()


def test_rows_and_history_are_plain():
    model = VIT.create()
    monitor = Monitor(model, every=1, budget=None, keep=2)
    assert monitor.rows == [] and monitor.share == 0
    train(model, 4, monitor=monitor)
    assert [m.step for m in monitor.history] == [3, 4] and 0 < monitor.share < 1
    json.dumps([vars(row) for row in monitor.rows], allow_nan=False)
