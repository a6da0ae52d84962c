"""`diagnose` as a whole: numbers against numpy on hooked tensors, every family, what is left behind, bad input."""

import base64
import copy
import io
from types import SimpleNamespace
from typing import Any

import block_cases as bc
import numpy as np
import oracles
import pytest
import timm
import torch
from block_cases import CAIT, CONVMIXER, MAXVIT, PVT, SWIN, SWINV2, VIT, XCIT, images_of
from PIL import Image
from test_generic_blocks import OwnModel
from test_probes import assert_row, block_inputs, numpy_quantities, table
from test_sites import hooked_sites

import wellcond as wc
from wellcond.blocks import SITES, adapt, adapted_blocks
from wellcond.diagnosis import Diagnosis
from wellcond.probes import TOKEN_QUANTITIES
from wellcond.skips import set_gains

PARTS: dict[str, Any] = {"variants": False, "jacobian": False, "advice": False}


def near_the_floor(X):
    """Is a κ so large that float32 hardly tells whether it is finite?"""
    kappa = np.linalg.cond(X.double().numpy())
    return bool(((kappa > 1e5) & (kappa < 3e7)).any())


def snapshot(model):
    """All that a diagnosis must not change."""
    return (
        [type(m) for m in model.modules()],
        [sorted(m.__dict__) for m in model.modules()],
        [m.training for m in model.modules()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        [[getattr(b, gain) for gain in b.gains] + [b._context, b._sinks] for b in adapted_blocks(model)],
        {name: value.clone().tolist() for name, value in model.state_dict().items()},
        torch.random.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("family", [VIT, SWIN, CAIT, XCIT, PVT, CONVMIXER, MAXVIT, SWINV2], ids=str)
def test_every_family(family):
    num_images = 1 if family is MAXVIT else 2
    model, images = family.create().train(), images_of(family, num_images)
    next(model.children()).eval()  # a frozen part
    before, want = snapshot(model), hooked_sites(copy.deepcopy(model).eval(), images)
    diagnosis = wc.diagnose(model, images)
    assert snapshot(model) == before
    assert (diagnosis.num_images, diagnosis.image_size) == (num_images, (family.size, family.size))
    rows = table(diagnosis.rows)
    for (layer, site), X in want.items():
        if (layer, site, "log_kappa") in rows:
            per_image = [numpy_quantities(x) for x in X.double().numpy()]
            for name in TOKEN_QUANTITIES:
                if name != "log_kappa" or not near_the_floor(X):
                    assert_row(rows[layer, site, name], [image[name] for image in per_image])
    assert {(s.layer, s.site) for s in diagnosis.spectra} == {(r.layer, r.site) for r in diagnosis.rows} - {
        place for place in ((r.layer, r.site) for r in diagnosis.rows) if place[1][:4] in ("head", "atte")
    }
    kinds = [finding.kind for finding in diagnosis.findings]
    assert len({"as_in_the_papers", "not_as_in_the_papers"} & set(kinds)) == 1
    told = " ".join(diagnosis.missing)
    assert ("mlp skips cut" in diagnosis.variants) != ("mlp skips cut" in told)
    assert "attention skips cut" in diagnosis.variants
    assert bool(diagnosis.jacobians) != ("Jacobian: no block" in told)
    assert (diagnosis.advice is None) == ("Graying:" in told) == (family is MAXVIT)
    assert ("Attention maps" in told) == (family in (CAIT, XCIT, PVT, CONVMIXER))
    assert ("only the class token is written" in told) == (family is CAIT)
    assert str(diagnosis) and diagnosis.arithmetic == "float32"
    shown = []
    diagnosis._repr_pretty_(SimpleNamespace(text=shown.append), False)  # what IPython asks for
    assert shown == [str(diagnosis)]


@pytest.mark.parametrize("family", [VIT, XCIT], ids=str)
def test_variants_equal_a_model_without_those_skips(family):
    images = images_of(family, 3)
    diagnosis = wc.diagnose(family.create(), images, jacobian=False, advice=False)
    gains = {"attention skips cut": {"attention": 0.0}, "mlp skips cut": {"mlp": 0.0}}
    assert set(diagnosis.variants) == set(gains)
    for name, gain in gains.items():
        rows = table(diagnosis.variants[name])
        assert {row.quantity for row in rows.values()} == {"log_kappa", "token_cosine"}
        for layer, X in enumerate(block_inputs(bc.plainly(family.create(), **gain), images)):
            for quantity in ("log_kappa", "token_cosine"):
                values = [numpy_quantities(x)[quantity] for x in X.double().numpy()]
                assert_row(rows[layer, "sab_in", quantity], values)


def test_gains_that_were_set_are_measured_and_kept():
    images = images_of(VIT, 3)
    model = set_gains(VIT.create(), attention=[0.5, 0.25], mlp=0.75)
    before = snapshot(model)
    diagnosis = wc.diagnose(model, images, jacobian=False, advice=False)
    assert snapshot(model) == before

    def want(**gain):
        other = VIT.create()
        for block, mine in zip(bc.blocks_of(other), ({"attention": 0.5}, {"attention": 0.25}), strict=True):
            both = {**mine, "mlp": 0.75, "lpi": 1.0, **gain}
            block.forward = lambda x, block=block, both=both: bc.PLAIN[type(block)](block, x, gain=both)
        return block_inputs(other, images)

    found = {"as it is": diagnosis.rows, **diagnosis.variants}
    gains = {"as it is": {}, "attention skips cut": {"attention": 0.0}, "mlp skips cut": {"mlp": 0.0}}
    for name, gain in gains.items():
        values = [numpy_quantities(x)["token_cosine"] for x in want(**gain)[1].double().numpy()]
        assert_row(table(found[name])[1, "sab_in", "token_cosine"], values)
    cut = wc.diagnose(wc.cut_skips(VIT.create()), images, jacobian=False, advice=False)
    assert not cut.variants and sum("cut already" in sentence for sentence in cut.missing) == 2


def test_batches_are_streamed_once_and_counted():
    model, images = VIT.create(), images_of(VIT, 45)
    seen, done = [], []

    def batches():
        for part in images.split([20, 1, 20, 4]):
            seen.append(len(part))
            yield part

    streamed = wc.diagnose(model, batches(), progress=done.append, **PARTS)
    assert (seen, done) == ([20, 1, 20, 4], [20, 21, 41, 45])
    assert streamed.num_images == 45 and {row.num_images for row in streamed.rows} == {45}
    whole = table(wc.diagnose(model, images, **PARTS).rows)
    for row in streamed.rows:
        want = whole[row.layer, row.site, row.quantity]
        assert row.value == pytest.approx(want.value, rel=1e-4, abs=1e-5)
    cut = wc.diagnose(model, iter(images.split(20)), jacobian=False, advice=False)
    assert {row.num_images for row in cut.variants["mlp skips cut"]} == {32}


@pytest.mark.parametrize("at", ["source", "progress", "model", "size"])
def test_the_model_is_as_it_was_after_an_exception(at, monkeypatch):
    model = set_gains(VIT.create().train(), mlp=0.5)
    before = snapshot(model)

    def broken(*_):
        raise RuntimeError("in the model")

    def batches():
        yield images_of(VIT)
        if at == "source":
            raise OSError("disk")
        if at == "model":
            monkeypatch.setattr(type(model), "forward_head", broken)
        yield images_of(VIT) if at != "size" else torch.zeros(1, 3, 48, 48)

    def progress(_count):
        if at == "progress":
            raise KeyboardInterrupt

    with pytest.raises((OSError, KeyboardInterrupt, RuntimeError, ValueError)):
        wc.diagnose(model, batches(), progress=progress)
    assert snapshot(model) == before


def test_an_exception_while_skips_are_cut_restores_them(monkeypatch):
    from wellcond.diagnosis import variants

    def broken(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(variants, "probe", broken)
    for model in (VIT.create(), set_gains(VIT.create(), attention=0.5)):
        before = snapshot(model)
        with pytest.raises(KeyboardInterrupt):
            wc.diagnose(model, images_of(VIT))
        assert snapshot(model) == before


def test_jacobians_equal_jacrev():
    """The middle block's attention on the first image, grayed by the oracle, in float64 with plain torch."""
    model, images = VIT.create(), images_of(VIT, 2)
    curves = {(c.method, c.epsilon): c for c in wc.diagnose(model, images, variants=False).jacobians}
    assert set(curves) == {
        (None, None), ("svd", 0.9), ("svd", 0.7), ("svd", 0.5), ("dct", 0.95), ("dct", 0.9), ("dct", 0.85)
    }  # fmt: skip
    block: Any = copy.deepcopy(model.blocks[1]).double()
    block.attn.fused_attn = False
    for (method, epsilon), curve in curves.items():
        image = images[:1].numpy()
        image = image if method is None or epsilon is None else oracles.gray_images(image, 16, method, epsilon)
        inputs: list[torch.Tensor] = []
        handle = model.blocks[1].norm1.register_forward_hook(lambda _m, _i, out, inputs=inputs: inputs.append(out))
        with torch.no_grad():
            model(torch.as_tensor(image, dtype=torch.float32))
        handle.remove()
        Y = inputs[0].double()
        J = torch.func.jacrev(lambda y: block.ls1(block.attn(y)))(Y).reshape(Y.numel(), Y.numel())
        sigma = torch.linalg.svdvals(J.detach())
        assert (curve.layer, curve.part, curve.complete, curve.n, curve.d) == (1, "attention", True, *Y.shape[1:])
        assert np.array(curve.sigma) == pytest.approx(sigma.numpy(), rel=1e-3, abs=1e-5 * float(sigma[0]))
        assert curve.log_kappa == pytest.approx(float(torch.log(sigma[0] / sigma[-1])), abs=0.05)


def test_a_large_jacobian_is_bounded_not_written():
    model = bc._small("vit_tiny_patch16_224", 112, depth=1).create()
    curve = wc.diagnose(model, torch.randn(1, 3, 112, 112), variants=False, advice=False).jacobians[0]
    assert curve.n * curve.d > 2048 and not curve.complete and len(curve.sigma) == 24
    assert curve.kappa_at_least is not None and curve.kappa_at_least > 1


def test_blocks_of_ones_own():
    model: Any = OwnModel("pre")
    images, before = torch.randn(3, 3, 32, 32), snapshot(model)
    diagnosis = wc.diagnose(model, images)
    assert snapshot(model) == before
    assert diagnosis.model == "OwnModel" and len(diagnosis.variants) == 2
    assert any("Graying: OwnModel" in sentence for sentence in diagnosis.missing)


def test_a_grayed_model_says_so():
    diagnosis = wc.diagnose(wc.gray(VIT.create(), "svd", 0.7), images_of(VIT), variants=False)
    graying = next(finding for finding in diagnosis.findings if finding.kind == "graying")
    assert "already: SVD at ε = 0.7" in graying.text
    assert [curve.method for curve in diagnosis.jacobians] == [None]
    assert any("grays its input already" in sentence for sentence in diagnosis.missing)


def test_arithmetic_is_the_models_or_the_callers():
    images = images_of(VIT)
    half = wc.diagnose(VIT.create().bfloat16(), images)  # images are brought to its dtype
    assert half.arithmetic == "bfloat16" and half.jacobians and half.advice
    assert any(f.kind == "numerical_floor" and "bfloat16" in f.text for f in half.findings)
    with torch.autocast("cpu", torch.bfloat16):
        autocast = wc.diagnose(VIT.create(), images, **PARTS)
    assert autocast.arithmetic == "bfloat16 (autocast over float32)"
    exact = wc.diagnose(VIT.create().double(), images, **PARTS)
    assert exact.arithmetic == "float64"
    with torch.inference_mode():
        assert wc.diagnose(VIT.create(), images).rows == wc.diagnose(VIT.create(), images).rows


def test_one_image_patch_tokens_and_parts_left_out():
    diagnosis = wc.diagnose(VIT.create(), images_of(VIT, 1), tokens="patch", name="mine", **PARTS)
    assert (diagnosis.model, diagnosis.num_images, diagnosis.tokens) == ("mine", 1, "patch")
    assert (diagnosis.variants, diagnosis.jacobians, diagnosis.advice, diagnosis.missing) == ({}, [], None, [])
    assert {row.n for row in diagnosis.rows if row.site in SITES} == {4}
    assert wc.diagnose(VIT.create(), images_of(VIT, 1), **PARTS).model == "vit_tiny_patch16_224"


def test_blocks_of_a_single_token_and_derivatives_that_are_missing_are_told_in_words():
    pit = timm.create_model("pit_ti_224", img_size=16, depth=(1, 1, 1)).eval()
    told = wc.diagnose(pit, torch.randn(2, 3, 16, 16), tokens="patch", **PARTS).missing
    assert told == ["κ after attention in blocks 0–2: they see a single token, and κ of one token is 1"]
    options: dict[str, Any] = {"embed_dim": 24, "num_heads": 2, "depth": 1}
    convit: Any = timm.create_model("convit_tiny", img_size=32, **options).eval()
    attention = convit.blocks[0].attn

    class Single(type(attention)):
        def forward(self, x):  # as that of older versions of timm, whose positions stay in float32
            return self.proj(super().forward(x).float())

    attention.__class__ = Single
    told = wc.diagnose(convit, images_of(VIT), **{**PARTS, "jacobian": True}).missing
    assert any("block 0: its Single is not computed, or not differentiated, in float64 (" in line for line in told)


def test_images_that_require_a_gradient_are_taken_without_it():
    """Nothing is differentiated with respect to them, and the model is not grayed."""
    model, images = VIT.create(), images_of(VIT, 2)
    want = wc.diagnose(model, images, **PARTS).rows
    asking = images.clone().requires_grad_()
    assert wc.diagnose(model, asking, **PARTS).rows == want == wc.diagnose(model, [asking * 1], **PARTS).rows
    assert asking.grad is None


class Student(torch.nn.Module):
    """Beside a deeper teacher, which is not called."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student = timm.create_model("test_vit", depth=5), VIT.create()

    def forward(self, x):
        return self.student(x)


def test_blocks_that_images_do_not_reach_are_told_and_left_out():
    images = images_of(VIT)
    diagnosis = wc.diagnose(Student().eval(), images, variants=False)
    num_blocks = len(adapt(VIT.create()))
    assert {row.layer for row in diagnosis.rows} == set(range(5, 5 + num_blocks))
    assert "Rows of blocks 0–4: the model does not call them on images" in diagnosis.missing
    assert {curve.layer for curve in diagnosis.jacobians} == {5 + num_blocks // 2}
    told = wc.verify_init(Student().eval(), images)
    assert "Logits and Jacobian: the model does not call it on images (blocks 0–4)" in told.missing
    assert any(row.site == "jacobian" and row.layer == 5 for row in told.rows)


class Twice(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x) + self.model(2 * x.flip(-1))


def test_of_blocks_that_are_called_twice_rows_and_spectra_are_of_the_first_call():
    """Rows were of the last call, spectra of both."""
    images, model = images_of(VIT), VIT.create()
    once, twice = (wc.diagnose(m, images, **PARTS) for m in (model, Twice(model)))
    assert twice.rows == once.rows and twice.spectra == once.spectra
    last = max(row.layer for row in once.rows)
    told = f"Later calls of blocks 0–{last}: the model calls them more than once on an image; rows are of the first"
    assert twice.missing == [told] and not once.missing


def test_thumbnails_are_pictures_in_their_own_colours():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    model = VIT.create()
    mean, std = (np.array(model.pretrained_cfg[name]) for name in ("mean", "std"))
    images = torch.from_numpy(((pixels / 255 - mean) / std).transpose(0, 3, 1, 2)).float()
    pictures = wc.diagnose(model, images, variants=False, jacobian=False, target=0.01).thumbnails
    assert [p.title for p in pictures] == ["image 1", "image 2"] and {p.note for p in pictures} == {"as it is"}
    for picture, want in zip(pictures, pixels, strict=True):
        assert (np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.png)))) == want).all()
    del model.pretrained_cfg, model.default_cfg
    grayed = wc.diagnose(model, images, variants=False, jacobian=False).thumbnails
    assert any("SVD at ε" in p.note for p in grayed)
    first = np.asarray(Image.open(io.BytesIO(base64.b64decode(grayed[0].png))))
    assert first.min() == 0 and first.max() == 255


def test_images_that_are_not_finite():
    images = images_of(VIT, 3)
    images[1, 0, 0, 0] = torch.nan
    diagnosis = wc.diagnose(VIT.create(), images)
    finding = next(f for f in diagnosis.findings if f.kind == "not_finite")
    assert finding.layer == 0 and "1 of 3 images" in finding.evidence and finding.severity == "warning"
    assert finding.remedy.startswith("Look at the images")
    assert diagnosis.advice is not None
    broken = wc.diagnose(VIT.create(), images[1:2])
    assert all(row.value is None for row in broken.rows if row.quantity == "log_kappa")
    assert broken.advice is None and any("every image holds NaN" in sentence for sentence in broken.missing)
    assert any("Jacobian" in sentence for sentence in broken.missing)
    assert isinstance(broken, Diagnosis) and str(broken)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "vit_tiny_patch16_224"}, "model is a str"),
        ({"model": torch.nn.Linear(3, 3)}, "no transformer blocks"),
        ({"images": []}, "no images"),
        ({"images": torch.zeros(0, 3, 32, 32)}, "no images"),
        ({"images": torch.zeros(3, 32, 32)}, r"\(3, 32, 32\)"),
        ({"images": [torch.zeros(3, 32, 32)]}, r"\(3, 32, 32\)"),
        ({"images": torch.zeros(1, 3, 32, 32, dtype=torch.uint8)}, "uint8"),
        ({"tokens": "class"}, "tokens='class'"),
        ({"target": -1.0}, "target=-1.0"),
        ({"target": float("nan")}, "target=nan"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        wc.diagnose(**{"model": VIT.create(), "images": images_of(VIT), **change})


@pytest.mark.gpu
def test_gpu_equals_cpu():
    images = images_of(VIT, 3).double()
    want = wc.diagnose(VIT.create().double(), images)
    model = VIT.create().double().cuda()
    state = torch.cuda.get_rng_state()
    got = wc.diagnose(model, images)  # images are moved
    assert torch.equal(torch.cuda.get_rng_state(), state)
    for a, b in zip(got.rows, want.rows, strict=True):
        assert a.value == pytest.approx(b.value, rel=1e-6, abs=1e-8)
    for a, b in zip(got.jacobians, want.jacobians, strict=True):
        assert a.sigma == pytest.approx(b.sigma, rel=1e-6, abs=1e-9)
    there, here = wc.diagnose(model, images.cuda()).advice, got.advice
    assert there is not None and here is not None
    assert there.log_kappa == pytest.approx(here.log_kappa, rel=1e-9)
    assert there.epsilon == pytest.approx(here.epsilon, abs=2e-3)


def test_adapted_models_stay_adapted():
    model = VIT.create()
    adapt(model)
    before = snapshot(model)
    wc.diagnose(model, images_of(VIT))
    assert snapshot(model) == before
