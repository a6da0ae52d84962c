"""set_activation: moments by quadrature, C-maps against two-dimensional quadrature, and the model around it."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import timm
import torch
from block_cases import BEIT, CONVMIXER, EVA, MAXVIT, SWIN, VIT
from scipy import special
from torch import nn

import wellcond as wc
from wellcond.activations import CentredGELU, TailoredReLU, tailored_slope

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def vit(depth=3, **options) -> Any:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": depth, "num_heads": 3, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **options})


def cosine_after(act, c: float) -> float:
    """C(c) of the activation: E[φ(u) φ(v)]/E[φ(u)²], by quadrature over the plane; fine for kinks to 1e-3."""
    u = torch.from_numpy(np.linspace(-8, 8, 1601))
    p = torch.exp(-(u**2) / 2)
    p = p / p.sum()
    U, W = torch.meshgrid(u, u, indexing="ij")
    V = c * U + math.sqrt(1 - c * c) * W
    joint = p[:, None] * p[None, :]
    return float((joint * act(U) * act(V)).sum() / (p * act(u) ** 2).sum())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_centred_gelu_has_mean_zero_and_variance_one(approximate):
    y = CentredGELU(nn.GELU(approximate=approximate))(torch.from_numpy(NODES)).numpy()
    bar = 1e-12 if approximate == "none" else 1e-4
    assert abs((WEIGHTS * y).sum()) < bar and abs((WEIGHTS * y**2).sum() - 1) < bar
    x = np.linspace(-3, 3, 7)
    want = x * special.ndtr(x)
    got = CentredGELU(nn.GELU())(torch.from_numpy(x)).numpy()
    slope = (got[-1] - got[0]) / (want[-1] - want[0])
    assert np.allclose(got, slope * want + got[3], atol=1e-12), "a GELU, moved and scaled"


def test_unrelated_tokens_stay_unrelated_under_centred_gelu_and_not_under_gelu():
    assert abs(cosine_after(CentredGELU(nn.GELU()), 0.0)) < 1e-9
    assert cosine_after(nn.GELU(), 0.0) > 0.18


@pytest.mark.parametrize(("act", "slope"), [(nn.GELU(), 1.07), (CentredGELU(nn.GELU()), 1.32)], ids=["gelu", "centred"])
def test_how_fast_differences_grow(act, slope):
    """C'(1) = E[φ'²]/E[φ²], the numbers of the docstring."""
    x = torch.from_numpy(NODES).requires_grad_()
    y = act(x)
    (derivative,) = torch.autograd.grad(y.sum(), x)
    ratio = (WEIGHTS * derivative.numpy() ** 2).sum() / (WEIGHTS * y.detach().numpy() ** 2).sum()
    assert ratio == pytest.approx(slope, abs=0.005)


@pytest.mark.parametrize("depth", [6, 12, 24])
def test_tailored_slope_takes_a_chain_to_eta(depth):
    act = TailoredReLU(nn.GELU(), tailored_slope(depth, 0.5))
    c = 0.0
    for _ in range(depth):
        c = cosine_after(act, c)
    assert abs(c - 0.5) < 2e-3
    u = torch.from_numpy(np.linspace(-8, 8, 160001))
    p = torch.exp(-(u**2) / 2)
    assert abs(float((p * act(u) ** 2).sum() / p.sum()) - 1) < 1e-6
    assert tailored_slope(1, 0.5) == 0.0


@pytest.mark.parametrize("kind", ["centred-gelu", "tat"])
def test_set_and_back(kind):
    model = vit()
    gelus = [block.mlp.act for block in model.blocks]
    keys, x = list(model.state_dict()), torch.randn(2, 3, 32, 32)
    names = [name for name, _ in model.named_modules()]
    y = model(x)
    assert wc.set_activation(model, kind) is model
    assert list(model.state_dict()) == keys and [name for name, _ in model.named_modules()] == names
    once = model(x)
    assert not torch.allclose(once, y)
    assert torch.equal(wc.set_activation(model, kind)(x), once), "a second call changes nothing"
    other = "tat" if kind == "centred-gelu" else "centred-gelu"
    wc.set_activation(wc.set_activation(model, other), kind)
    assert torch.equal(model(x), once)
    twin = copy.deepcopy(model)
    wc.set_activation(model, "gelu")
    assert torch.equal(model(x), y) and [block.mlp.act for block in model.blocks] == gelus
    assert torch.equal(twin(x), once) and torch.equal(wc.set_activation(twin, "gelu")(x), y)


def test_export_and_compile_see_it():
    model = wc.set_activation(wc.init_skipless_(wc.cut_skips(vit())), "centred-gelu").eval()
    x = torch.randn(2, 3, 32, 32)
    exported = torch.export.export(model, (x,)).module()
    torch.testing.assert_close(exported(x), model(x))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))
    wc.set_activation(model, "tat")
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("family", [SWIN, BEIT, MAXVIT, VIT], ids=str)
def test_families(family):
    model = wc.set_activation(family.create(), "centred-gelu")
    assert any(isinstance(module, CentredGELU) for module in model.modules())


def test_refusals_change_nothing():
    for model, message in (
        (EVA.create(), "gate"),
        (CONVMIXER.create(), "no MLP"),
        (vit(act_layer=nn.ReLU), r"'blocks\.0'.*ReLU"),
    ):
        with pytest.raises(ValueError, match=message):
            wc.set_activation(model, "centred-gelu")
        assert not any(isinstance(module, CentredGELU) for module in model.modules())
    with pytest.raises(ValueError, match="'relu' is unknown"):
        wc.set_activation(vit(), "relu")
    with pytest.raises(ValueError, match="eta is 1"):
        wc.set_activation(vit(), "tat", eta=1)
    with pytest.raises(ValueError, match="eta is 'half'; choose a cosine"):
        wc.set_activation(vit(), "tat", eta="half")  # pyright: ignore[reportArgumentType]
