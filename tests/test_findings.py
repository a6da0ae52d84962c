"""Findings on models whose weights are set so that the answer is known, and on rows written by hand."""

from typing import Any

import pytest
import torch
from block_cases import VIT, images_of
from families import SMALL, Family
from torch import nn

import wellcond as wc
from wellcond.diagnosis.findings import findings
from wellcond.diagnosis.picture import papers_picture
from wellcond.diagnosis.result import Advice, GrayingStep
from wellcond.diagnosis.sites import Sites
from wellcond.probes import Measured, Row
from wellcond.skips import set_gains

DEEP = Family(name="vit_tiny_patch16_224", patch=16, size=64, options={"img_size": 64, **SMALL, "depth": 5})
PARTS: dict[str, Any] = {"variants": False, "jacobian": False, "advice": False}


def found(model, kind, images=None):
    images = images_of(DEEP, 3) if images is None else images
    return [f for f in wc.diagnose(model, images, **PARTS).findings if f.kind == kind]


def healthy():
    return DEEP.create()


@torch.no_grad()
def collapsing(block, kind="constant"):
    """From `block` on all tokens are alike: its MLP adds one large vector to all, or its attention forgets them."""
    model = healthy()
    mlp = model.blocks[block].mlp
    mlp.fc2.weight.zero_()
    if kind == "constant":
        mlp.fc2.bias.copy_(1e3 * torch.randn(48))
    else:  # uniform attention and no skips: every token is the mean, plus nothing
        model.blocks[block].attn.qkv.weight[:96].zero_()
        model.blocks[block].attn.qkv.bias[:96].zero_()
        gains = [1.0] * 5
        gains[block] = 0.0
        set_gains(model, attention=gains)
    return model


def test_a_healthy_model_has_no_warning():
    diagnosis = wc.diagnose(healthy(), images_of(DEEP, 3))
    assert {finding.severity for finding in diagnosis.findings} == {"note"}
    assert not {"rank_collapse", "not_finite", "heavy_tails", "numerical_floor"} & {f.kind for f in diagnosis.findings}


@pytest.mark.parametrize("block", [0, 2, 4])
@pytest.mark.parametrize("kind", ["constant", "uniform"])
def test_collapse_is_found_at_its_block(block, kind):
    (finding,) = found(collapsing(block, kind), "rank_collapse")
    assert (finding.layer, finding.severity) == (block, "warning")
    assert f"block {block}" in finding.text and "cosine" in finding.evidence


def test_collapse_before_the_first_block_is_not_the_models_fault():
    model = healthy()
    nn.init.zeros_(model.pos_embed)
    model.cls_token.data.zero_()
    flat = torch.ones(2, 3, 64, 64)
    model.patch_embed.proj.bias.data.mul_(100)
    (finding,) = found(model, "rank_collapse", flat)
    assert finding.layer == 0 and "before the first block" in finding.text


class Spiked(nn.Module):
    """A few entries far from all others."""

    def forward(self, x):
        x = x.clone()
        x[:, :2, 7] = 1e3
        return x


class Broken(nn.Module):
    def forward(self, x):
        x = x.clone()
        x[1, 0, 0] = torch.inf
        return x


class Deficient(nn.Module):
    """Channel 3 repeats channel 4."""

    def forward(self, x):
        x = x.clone()
        x[..., 3] = x[..., 4]
        return x


def test_heavy_tails_begin_where_they_begin():
    model = healthy()
    model.blocks.insert(3, Spiked())
    (finding,) = found(model, "heavy_tails")
    assert finding.layer == 3 and "kurtosis" in finding.evidence


def test_what_is_not_finite_is_named_by_its_first_place():
    model = healthy()
    model.blocks.insert(2, Broken())
    (finding,) = found(model, "not_finite")
    assert finding.layer == 2 and "block 2, block input, on 1 of 3 images" in finding.evidence
    assert finding.severity == "warning"


def test_the_floor_is_named():
    wide = Family(name=VIT.name, patch=8, size=64, options={"img_size": 64, "patch_size": 8, **SMALL})
    model = wide.create()  # 65 tokens of width 48: a repeated channel makes a singular value vanish
    model.norm_pre = Deficient()
    (finding,) = found(model, "numerical_floor", torch.randn(2, 3, 64, 64))
    assert finding.layer == 0 and "1.0 of 48" in finding.evidence and "2 of 2 images" in finding.evidence


def rows(values, n=197, d=192, floor_count=0.0):
    """log κ by (layer, site); None is infinite."""
    return [
        Row(layer=layer, site=site, quantity="log_kappa", value=value, std=None if value is None else 0.0,
            floor_count=floor_count or float(value is None), num_infinite=0 if value is not None else 4, num_images=4,
            n=n, d=d)
        for (layer, site), value in values.items()
    ]  # fmt: skip


def blocks(out, attention_sum, ffn_sum, count=3):
    return {
        (layer, site): value
        for layer in range(count)
        for site, value in (("sab_out", out), ("sab_sum", attention_sum), ("ffn_sum", ffn_sum))
    }


@pytest.mark.parametrize(
    ("out", "sums", "there"),
    [(6.0, 3.0, True), (4.6, 3.0, True), (4.4, 3.0, False), (3.0, 6.0, False), (None, 3.0, True), (3.0, None, False)],
)
def test_the_papers_picture_is_there_or_not(out, sums, there):
    finding = papers_picture(Sites(rows(blocks(out, sums, sums))))
    assert finding.kind == ("as_in_the_papers" if there else "not_as_in_the_papers")
    assert "197 × 192 tokens, n ≥ d" in finding.evidence
    assert "n < d" in papers_picture(Sites(rows(blocks(out, sums, sums), d=768))).evidence


def test_the_papers_picture_where_nothing_compares():
    for values in (blocks(None, None, None), {(0, "sab_in"): 3.0}):
        finding = papers_picture(Sites(rows(values)))
        assert finding.kind == "not_as_in_the_papers" and "cannot be seen" in finding.text
    assert "has none" in papers_picture(Sites(rows(blocks(6.0, 3.0, 3.0))), attends=False).text


def judged(values, advice=None, **options):
    measured = Measured(rows=rows(values), spectra=[], not_finite={}, no_map={})
    return {finding.kind: finding for finding in findings(measured, advice, **options)}


def test_the_skip_carries_an_ill_conditioned_attention():
    values = blocks(6.0, 5.0, 3.0) | {(1, "sab_out"): 7.5, (2, "sab_out"): None}
    finding = judged(values)["attention_ill_conditioned"]
    assert finding.layer == 2 and "blocks 1–2" in finding.text and "∞" in finding.evidence
    assert "attention_ill_conditioned" not in judged(blocks(6.0, 5.0, 3.0))
    assert "attention_ill_conditioned" not in judged(values, attends=False)
    assert "attention_ill_conditioned" not in judged(blocks(None, None, None))


def advice(before, **epsilon):
    steps = [GrayingStep(method=m, epsilon=e, log_kappa=before * 0.9, num_infinite=0) for m, e in epsilon.items() if e]
    return Advice(
        patch_size=(16, 16), n=196, d=768, log_kappa=before, target=0.91 * before, epsilon=epsilon, sweep=tuple(steps)
    )


def test_graying_is_advised_where_it_helps():
    values = blocks(6.0, 3.0, 3.0)
    both = judged(values, advice(8.0, svd=0.9, dct=0.92))["graying"]
    assert 'method="dct", epsilon=0.92' in both.remedy and "from 8.00 to 7.20" in both.text
    assert 'method="svd", epsilon=0.9)' in judged(values, advice(8.0, svd=0.9, dct=None))["graying"].remedy
    assert "No ε" in judged(values, advice(8.0, svd=None, dct=None))["graying"].text
    assert "well conditioned" in judged(values, advice(1.0, svd=0.9, dct=0.92))["graying"].text
    assert "already" in judged(values, advice(8.0, svd=0.9, dct=0.92), graying="DCT at ε = 0.95")["graying"].text
    assert "graying" not in judged(values)


def test_half_precision_is_named():
    assert (
        "bfloat16"
        in judged(blocks(6.0, 3.0, 3.0), arithmetic="bfloat16 (autocast over float32)")["numerical_floor"].text
    )
    assert "numerical_floor" not in judged(blocks(6.0, 3.0, 3.0), arithmetic="float32 (products in TF32)")
