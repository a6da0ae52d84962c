"""Dropped paths: timm's distribution and scale, and the same for a sample in any batch, process, chunk or compiler."""

import copy
import shutil
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.layers.drop import DropPath
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from training_cases import resumes_to_the_bit, run, tiny, without_labels

import wellcond
from wellcond.data.randomness import keys
from wellcond.training.dropping import Drops, KeyedDropPath, kept_rows

SMALL: dict[str, Any] = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 3, "num_heads": 2, "num_classes": 3}


def vit(**changes: Any) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", **{**SMALL, "drop_path_rate": 0.4, **changes}).double().train()


def some_keys(count: int, first: int = 0, epoch: int = 0) -> torch.Tensor:
    return keys(3, epoch, torch.arange(first, first + count))


def pictures(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def masks(layer: DropPath, drops: Drops, keys: torch.Tensor, calls: int = 1) -> np.ndarray:
    """(calls, B): what becomes of ones."""
    with drops.of(keys):
        return np.stack([layer(torch.ones(len(keys), 1, 1)).flatten().numpy() for _ in range(calls)])


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_it_is_timms_in_distribution(rate, scale):
    """The values that timm's has, and as often: within 5 deviations of a binomial number, over samples and over calls;
    and no call says anything of another."""
    theirs = DropPath(rate, scale_by_keep=scale).train()
    ours = copy.deepcopy(theirs)
    drops, count = Drops(ours), 20_000
    found = masks(ours, drops, some_keys(count), calls=4)
    assert set(found.flatten()) == set(theirs(torch.ones(1000, 1, 1)).flatten().numpy())
    kept = found > 0
    deviation = np.sqrt(rate * (1 - rate) / count)
    assert np.abs(kept.mean(1) - (1 - rate)).max() < 5 * deviation
    assert np.abs(kept.mean() - (1 - rate)) < 5 * deviation / 2
    correlation = np.corrcoef(kept) - np.eye(4)
    neighbours = np.corrcoef(kept[0, :-1], kept[0, 1:])[0, 1]
    assert max(np.abs(correlation).max(), abs(neighbours)) < 5 / np.sqrt(count)


def test_a_sample_has_its_mask_in_any_batch_and_another_in_the_next_epoch():
    layer = DropPath(0.5)
    drops = Drops(layer)
    whole = masks(layer, drops, some_keys(64), calls=3)
    parts = [masks(layer, drops, some_keys(16, first), calls=3) for first in range(0, 64, 16)]
    assert np.array_equal(np.concatenate(parts, 1), whole)
    assert not np.array_equal(masks(layer, drops, some_keys(64, epoch=1), calls=3), whole)


def test_rows_of_a_sample_are_neighbours_and_differ():
    """As DINO's crops: (B, V, …) flattened; the views of a sample are its own in a smaller batch, too."""
    whole = kept_rows(some_keys(32), 7, 32 * 6, 0.5).view(32, 6)
    assert torch.equal(kept_rows(some_keys(8, 16), 7, 8 * 6, 0.5).view(8, 6), whole[16:24])
    assert torch.equal(kept_rows(some_keys(32), 9, 32, 0.5), whole[:, 2])
    assert len({tuple(column) for column in whole.T.tolist()}) == 6


def test_large_and_small_crops_draw_apart():
    layer = DropPath(0.5)
    drops = Drops(layer)
    with drops.of(some_keys(64)):
        large, small = (layer(torch.ones(64 * V, 1)).view(64, V) for V in (2, 4))
    assert len({tuple(column) for column in torch.cat([large, small], 1).T.tolist()}) == 6


def test_the_gradient_is_the_masks():
    layer, x = DropPath(0.5), pictures(6, 2, 3).requires_grad_()
    with Drops(layer).of(some_keys(6)):
        y = layer(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient * x, y) and set(gradient.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("name", ["vit", "cait", "swin"])
def test_models_keep_rates_names_and_evaluation(name):
    """CaiT calls one module twice in a block, Swin's tokens are (B, H, W, d)."""
    small: dict[str, Any] = {"num_classes": 3, "drop_path_rate": 0.4}
    build = {
        "vit": vit,
        "cait": lambda: timm.create_model("cait_xxs24_224", img_size=32, embed_dim=16, depth=2, num_heads=2, **small),
        "swin": lambda: timm.create_model(
            "swin_tiny_patch4_window7_224",
            img_size=32,
            window_size=4,
            embed_dim=8,
            depths=(2, 2),
            num_heads=(1, 2),
            **small,
        ),
    }
    model = build[name]().double().train()
    plain = copy.deepcopy(model)
    drops = Drops(model)
    ours, theirs = ([m for m in net.modules() if isinstance(m, DropPath)] for net in (model, plain))
    assert ours and all(type(m) is KeyedDropPath for m in ours)
    assert [m.drop_prob for m in ours] == [m.drop_prob for m in theirs]
    assert list(model.state_dict()) == list(plain.state_dict())
    x = pictures(8, 3, *(8, 8) if name == "vit" else (32, 32))
    with drops.of(some_keys(8)):
        whole = model(x)
    chunks = []
    for i in (0, 4):
        with drops.of(some_keys(4, i)):
            chunks.append(model(x[i : i + 4]))
    torch.testing.assert_close(torch.cat(chunks), whole, rtol=0, atol=1e-10)
    torch.manual_seed(5)
    outside = model(x)  # no step: timm's own draws
    torch.manual_seed(5)
    assert torch.equal(outside, plain(x)) and not torch.equal(outside, whole)
    with drops.of(some_keys(8)):
        assert torch.equal(model.eval()(x), plain.eval()(x))


def test_a_module_called_twice_draws_twice():
    layer = DropPath(0.5)
    first, second = masks(layer, Drops(layer), some_keys(64), calls=2)
    assert not np.array_equal(first, second)


def test_torchs_generator_is_not_asked():
    model = vit()
    before = torch.get_rng_state()
    with Drops(model).of(some_keys(8)):
        model(pictures(8, 3, 8, 8)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_models_that_compute_again_in_the_backward_pass_keep_timms():
    model: Any = vit()
    model.set_grad_checkpointing()
    Drops(model)
    assert {type(m) for m in model.modules() if isinstance(m, DropPath)} == {DropPath}


def test_compiled_it_is_the_same():
    """One graph for all steps: neither the keys nor the count of draws compile anything anew."""
    model = vit(depth=2)
    drops, graphs = Drops(model), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, dynamic=False, fullgraph=True, backend=graphs)
    x = pictures(16, 3, 8, 8)
    for epoch in range(3):
        results = []
        for call in (model, compiled):
            model.zero_grad()
            with drops.of(some_keys(8, epoch=epoch)):
                y = call(x)
                y.square().sum().backward()
            results.append([y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)
    assert graphs.frame_count == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor writes C++ for a CPU")
def test_compiled_to_code_it_is_the_same():
    layer = DropPath(0.5)
    drops, compiled, x = Drops(layer), torch.compile(layer, dynamic=False, fullgraph=True), torch.ones(16, 5)
    results = []
    for call in (layer, compiled):
        with drops.of(some_keys(8)):
            results.append(call(x))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ["supervised", "mae", "dino"])
def test_resumed_to_the_bit(name, tmp_path, monkeypatch):
    config = tiny(ema=0.9, accumulate=2) if name == "supervised" else without_labels(name, accumulate=2)
    resumes_to_the_bit(config, tmp_path, monkeypatch, at=8)


def test_what_is_saved_and_loaded_is_timms(tmp_path):
    run(tiny(ema=0.9), tmp_path / "run")
    model = wellcond.load(tmp_path / "run")
    assert {type(m) for m in model.modules() if isinstance(m, DropPath)} == {DropPath}
