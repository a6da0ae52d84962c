"""Schedules, groups, updates and averages, against timm, closed forms and loops."""

import math
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.optim._param_groups import param_groups_layer_decay
from torch import nn

from wellcond.config import OptimConfig
from wellcond.objectives import Supervised
from wellcond.optim import WeightAverage, average_weight, build_updates, cosine, learning_rate, parameter_groups


def vit(**options) -> nn.Module:
    words = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 5, **options}
    return timm.create_model("vit_tiny_patch16_224", **words)


@given(st.integers(0, 200), st.integers(0, 50), st.integers(51, 200), st.floats(1e-6, 1), st.floats(0, 1))
def test_cosine_against_its_definition(step, warmup, num_steps, lr, share):
    min_lr = lr * share
    if step < warmup:
        expected = lr * (step + 1) / warmup
    else:
        angle = math.pi * min(1, (step - warmup) / (num_steps - warmup))
        expected = min_lr + 0.5 * (lr - min_lr) * (1 + math.cos(angle))
    assert cosine(step, num_steps=num_steps, warmup=warmup, lr=lr, min_lr=min_lr) == pytest.approx(expected, rel=1e-12)


def test_the_learning_rate_agrees_with_torch_after_the_warm_up():
    config = OptimConfig(lr=1e-3, min_lr=1e-5, warmup_epochs=2)
    parameter = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=80, eta_min=1e-5)
    for step in range(20, 100):
        ours = learning_rate(step, config, steps_per_epoch=10, epochs=10)
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        schedule.step()


def test_constant_schedule_only_warms_up():
    config = OptimConfig(lr=1e-2, min_lr=0, warmup_epochs=1, schedule="constant")
    rates = [learning_rate(t, config, steps_per_epoch=4, epochs=3) for t in range(12)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, *[0.01] * 9])


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "cait_xxs24_224"])
def test_groups_are_those_of_timm(name):
    model: Any = timm.create_model(name, num_classes=3)
    theirs = {}
    exempt = list(model.no_weight_decay())
    for group in param_groups_layer_decay(model, 0.05, exempt, layer_decay=0.7):
        for p in group["params"]:
            theirs[p] = (group["weight_decay"], group["lr_scale"])
    ours = {
        p: (g.weight_decay, g.lr_scale)
        for g in parameter_groups(Supervised(model), weight_decay=0.05, layer_decay=0.7)
        for p in g.parameters
    }
    assert ours.keys() == theirs.keys()
    for p, (decay, scale) in theirs.items():
        assert ours[p][0] == decay and ours[p][1] == pytest.approx(scale)


def test_tokens_positions_norms_and_biases_do_not_decay():
    groups = parameter_groups(Supervised(vit(init_values=1e-5)), weight_decay=0.1)
    free = {name for g in groups if g.weight_decay == 0 for name in g.names}
    decaying = {name for g in groups if g.weight_decay for name in g.names}
    assert {"model.pos_embed", "model.cls_token", "model.norm.weight", "model.blocks.0.ls1.gamma"} <= free
    assert all(name.endswith("weight") and "norm" not in name for name in decaying)


def test_layer_decay_without_layers_is_refused():
    objective = Supervised(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"layer_decay is 0\.5, but Linear does not say what its layers are"):
        parameter_groups(objective, weight_decay=0.1, layer_decay=0.5)


def adamw_by_hand(w, gradients, *, lr, betas, eps, decay):
    """Loshchilov & Hutter (arXiv 1711.05101), Algorithm 2, with numpy."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
        w = w * (1 - lr * decay)
        w = w - lr * (m / (1 - betas[0] ** t)) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return w


def test_adamw_against_numpy_and_bad_steps_are_not_counted():
    objective = Supervised(nn.Linear(3, 2, bias=False).double())
    weight: Any = objective.model.weight
    config = OptimConfig(lr=0.1, weight_decay=0.3, betas=(0.8, 0.9))
    updates = build_updates(objective, config)
    start, rng = weight.detach().numpy().copy(), np.random.default_rng(0)
    gradients = [rng.standard_normal((2, 3)) for _ in range(5)]
    for i, gradient in enumerate(gradients):
        for bad in [True, False] if i in (0, 3) else [False]:  # a bad step before the first and the fourth
            weight.grad = torch.from_numpy(np.full_like(gradient, np.nan) if bad else gradient.copy())
            updates.set_lr(0.1)
            updates.step(torch.tensor(float(bad)))
    expected = adamw_by_hand(start, gradients, lr=0.1, betas=(0.8, 0.9), eps=1e-8, decay=0.3)
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=0, atol=1e-10)


def test_layers_learn_at_their_own_rate():
    objective = Supervised(vit())
    updates = build_updates(objective, OptimConfig(lr=1.0, layer_decay=0.5))
    updates.set_lr(0.1)
    rate_of = {updates.name_of[p]: g["lr"] for part in updates.parts for g in part.param_groups for p in g["params"]}
    assert rate_of["model.head.weight"] == pytest.approx(0.1)
    assert rate_of["model.blocks.0.attn.qkv.weight"] == pytest.approx(rate_of["model.blocks.2.attn.qkv.weight"] / 4)


def test_muon_takes_the_matrices_of_the_blocks_and_adamw_the_rest():
    updates = build_updates(Supervised(vit()), OptimConfig(name="muon"))
    muon, adamw = updates.parts
    names = {updates.name_of[p] for g in muon.param_groups for p in g["params"]}
    assert "model.blocks.1.mlp.fc1.weight" in names and not any("head" in n or "embed" in n for n in names)
    assert len(names) == 3 * 4
    assert len(names) + sum(len(g["params"]) for g in adamw.param_groups) == len(list(vit().parameters()))
    assert not updates.capturable


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("deit_tiny_distilled_patch16_224", {"embed_dim": 24, "depth": 1}),  # two heads
        ("beit_base_patch16_224", {"embed_dim": 24, "depth": 1, "num_heads": 3}),  # a table of position biases
        ("swin_tiny_patch4_window7_224", {"embed_dim": 24, "depths": (1, 1), "num_heads": (3, 3), "window_size": 4}),
        ("naflexvit_base_patch16_gap", {"embed_dim": 24, "depth": 1, "num_heads": 3}),  # patches by a linear layer
    ],
)
def test_muon_takes_no_second_head_no_table_and_no_embedding(name, options):
    model = timm.create_model(name, img_size=32, num_classes=5, **options)
    updates = build_updates(Supervised(model), OptimConfig(name="muon"))
    names = {updates.name_of[p] for g in updates.parts[0].param_groups for p in g["params"]}
    blocks = {f"model.{n}" for n, m in model.named_modules() if isinstance(m, nn.Linear) and "head" not in n}
    assert names == {f"{layer}.weight" for layer in blocks if "embeds" not in layer}


def test_state_is_by_name_and_there_from_the_start():
    updates = build_updates(Supervised(vit()), OptimConfig())
    state = updates.state()
    assert state["model.head.weight/exp_avg"].shape == (5, 16)
    assert len(state) == 3 * len(updates.parameters)


def test_average_against_a_loop():
    torch.manual_seed(0)
    module = nn.Linear(3, 2).double()
    average = WeightAverage(module)
    expected = module.weight.detach().clone()
    for step in range(30):
        with torch.no_grad():
            module.weight.add_(torch.randn(2, 3, dtype=torch.float64))
        w = average_weight(step, 0.9)
        average.update_(torch.tensor(w, dtype=torch.float64))
        expected = (1 - w) * expected + w * module.weight.detach()
    torch.testing.assert_close(average.tensors["weight"], expected, rtol=0, atol=1e-12)
    before, storage = module.weight.detach().clone(), module.weight.data_ptr()
    with average.applied() as averaged:
        torch.testing.assert_close(averaged.state_dict()["weight"], expected, rtol=0, atol=1e-12)
    assert torch.equal(module.weight, before) and module.weight.data_ptr() == storage


def test_average_weight_zero_changes_nothing():
    module = nn.Linear(3, 2)
    average = WeightAverage(module)
    before = average.tensors["weight"].clone()
    nn.init.ones_(module.weight)
    average.update_(torch.tensor(0.0))
    assert torch.equal(average.tensors["weight"], before)
