"""calibrate_: the mass that it promises is the mass that attention has, and a second model needs no images."""

import copy
from typing import Any

import pytest
import timm
import torch
from block_cases import CAIT

import wellcond as wc
from wellcond.probes import probe


def model(**options) -> Any:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 5}
    made = timm.create_model("vit_tiny_patch16_224", **{**sizes, **options})
    return wc.cut_skips(wc.init_skipless_(made, alpha=0.2, beta=1.0, generator=torch.Generator().manual_seed(0)))


def masses(model, images) -> list[float]:
    rows = probe(model, [images], quantities=["attention_diagonal"])
    return [row.value for row in rows if row.site == "attention" and row.value is not None]


@pytest.fixture(scope="module")
def images():
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_every_block_gets_the_mass_of_the_first(images):
    vit = model()
    before = masses(vit, images)
    assert before[2] < before[0] - 0.1, "there is something to calibrate"
    taus = wc.calibrate_(vit, images)
    after = masses(vit, images)
    assert taus[0] == 1.0 and len(taus) == 3
    assert after[0] == before[0] and abs(after[1] - before[0]) < 0.01
    assert after[2] > before[2] + 0.1


def test_a_target(images):
    vit = model()
    taus = wc.calibrate_(vit, images, target=0.4, limits=(0.01, 16))
    assert masses(vit, images) == pytest.approx([0.4] * 3, abs=0.01)
    assert taus[0] < 1


def test_under_autocast(images):
    """It keeps the weights that it has cast, so every temperature seemed to give the same mass."""
    vit = model()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        taus = wc.calibrate_(vit, images, target=0.4, limits=(0.01, 16))
    assert masses(vit, images) == pytest.approx([0.4] * 3, abs=0.02)
    assert taus == pytest.approx(wc.calibrate_(model(), images, target=0.4, limits=(0.01, 16)), rel=0.1)


def test_images_of_another_dtype_are_brought_to_the_models(images):
    """As `diagnose` and `verify_init` do; a float64 batch was an error of the first convolution."""
    assert wc.calibrate_(model(), images.double()) == wc.calibrate_(model(), images)
    half = model().bfloat16()
    assert len(wc.calibrate_(half, images)) == 3 and half.pos_embed.dtype == torch.bfloat16


def test_the_temperatures_are_the_whole_of_it(images):
    vit = model()
    modes = [module.training for module in vit.train().modules()]
    taus = wc.calibrate_(vit, images)
    assert [module.training for module in vit.modules()] == modes
    again = copy.deepcopy(vit)
    wc.init_skipless_(again, alpha=0.2, beta=1.0, temperature=taus, generator=torch.Generator().manual_seed(0))
    for name, value in vit.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=1e-6, atol=1e-7)


def test_out_of_reach_takes_the_best_within_the_limits(images):
    vit = model()
    taus = wc.calibrate_(vit, images, target=0.999999, limits=(1, 2))
    assert all(1 <= tau <= 2 for tau in taus) and taus[0] == 2


def test_refusals_change_nothing(images):
    vit = model()
    before = copy.deepcopy(vit.state_dict())
    for options, message in (
        ({"target": 1.0}, "target is 1.0"),
        ({"limits": (2, 1)}, r"limits is \(2, 1\)"),
        ({"limits": (0, 1)}, "limits"),
        ({"limits": (1e-300, 1e300)}, r"limits is \(1e-300"),
        ({"limits": 4}, "limits is 4; give the smallest"),
    ):
        with pytest.raises(ValueError, match=message):
            wc.calibrate_(vit, images, **options)  # pyright: ignore[reportArgumentType]
    assert all(torch.equal(value, before[name]) for name, value in vit.state_dict().items())
    with pytest.raises(ValueError, match="talking heads"):
        wc.calibrate_(CAIT.create(), images)
    with pytest.raises(ValueError, match=r"block 'blocks.0' normalises its queries and keys.*calibrated"):
        wc.calibrate_(model(qk_norm=True), images)
    linear = wc.set_attention(model(), "linear")
    before = copy.deepcopy(linear.state_dict())
    with pytest.raises(ValueError, match="linear"):
        wc.calibrate_(linear, images)
    assert all(torch.equal(value, before[name]) for name, value in linear.state_dict().items())
