"""verify_init: every number against numpy or torch.func, and a verdict that tells the three initializations apart."""

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import timm
import torch
from block_cases import CAIT, CONVMIXER, MAXVIT, SWIN, SWINV2, VIT
from test_initializers import projections

import wellcond as wc
from wellcond.blocks import adapted_blocks
from wellcond.cli import main
from wellcond.diagnosis import Verification
from wellcond.diagnosis.beginning import depth
from wellcond.diagnosis.beginning.table import cell, legend, shown_columns


def vit(**options) -> Any:
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**sizes, **options})


def skipless(**options) -> Any:
    return wc.init_skipless_(wc.cut_skips(vit()), generator=torch.Generator().manual_seed(0), **options)


@pytest.fixture(scope="module")
def images():
    return torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def kinds(verification, severity):
    return {finding.kind for finding in verification.findings if finding.severity == severity}


# ---- the weights


@pytest.mark.parametrize("family", [VIT, SWIN, MAXVIT], ids=str)
def test_rows_of_the_weights_against_numpy(family):
    model = family.create()
    found = wc.verify_init(model)
    for layer, block in enumerate(wc.blocks.find_blocks(model).values()):
        Q, K, V, P = projections(block)
        W = V @ P
        sigma = np.linalg.svd(W, compute_uv=False)
        assert found.value(layer, "value_output", "log_kappa") == pytest.approx(
            math.log(sigma[0] / sigma[-1]), rel=1e-5
        )
        size = np.linalg.norm(W) / math.sqrt(len(W))
        assert found.value(layer, "value_output", "gain") == pytest.approx(size, rel=1e-6)
        defect = np.linalg.norm(W @ W.T / size**2 - np.eye(len(W))) / math.sqrt(len(W))
        assert found.value(layer, "value_output", "orthogonality_defect") == pytest.approx(defect, rel=1e-6)
        products = [q @ k.T for q, k in zip(Q, K, strict=True)]
        dominance = [np.trace(M) / np.linalg.norm(M) for M in products]
        assert found.value(layer, "query_key", "diagonal_dominance") == pytest.approx(np.mean(dominance), abs=1e-6)
        rank = Q[0].shape[1]
        top = [np.linalg.svd(M, compute_uv=False)[:rank] for M in products]
        log_kappa = np.mean([math.log(s[0] / s[-1]) for s in top])
        assert found.value(layer, "query_key", "log_kappa") == pytest.approx(log_kappa, rel=1e-4)
        for name in ("fc1", "fc2"):
            weight = getattr(block.mlp, name).weight.detach().double().flatten(1).numpy()
            X = np.random.default_rng(0).standard_normal((20_000, weight.shape[1]))
            ratio = np.square(X @ weight.T).mean() / np.square(X).mean()
            assert found.value(layer, name, "gain") == pytest.approx(ratio, rel=0.03)


def test_the_verdict_tells_the_initializations_apart():
    good = wc.verify_init(skipless())
    assert good.verdict.startswith("Made for training without skips") and not kinds(good, "warning")
    default = wc.verify_init(wc.cut_skips(vit()))
    assert default.verdict.startswith("Not made for training without skips")
    assert kinds(default, "warning") == {"value_output", "query_key", "mlp_gain"}
    assert not kinds(wc.verify_init(vit()), "warning"), "with its skips that is no fault"
    for layer in range(3):
        assert good.value(layer, "value_output", "log_kappa") == pytest.approx(0, abs=1e-5)
        assert good.value(layer, "value_output", "gain") == pytest.approx(9, rel=1e-5)
        assert good.value(layer, "fc1", "gain") == pytest.approx(1, rel=1e-5)


def test_tokens_that_come_out_alike_from_the_right_weights(images):
    """What was just done is no remedy; without it, it is the first."""
    default = wc.cut_skips(vit(depth=12))
    (before,) = (f for f in wc.verify_init(default, images).findings if f.kind == "rank_collapse")
    assert "begin with wc.init_skipless_" in before.remedy
    made = wc.verify_init(wc.init_skipless_(default, generator=torch.Generator().manual_seed(0)), images)
    (after,) = (f for f in made.findings if f.kind == "rank_collapse")
    assert "wc.SOAP" in after.remedy and "init_skipless_" not in after.remedy and after.text in made.verdict


@pytest.mark.parametrize("heads", [1, 12, 48])
def test_narrow_heads_lean_as_well(heads):
    """Swin's have 1/24 of the width: a matrix of so low a rank is never near the identity in the whole."""
    model = wc.cut_skips(vit(embed_dim=96, num_heads=heads))
    assert "query_key" in kinds(wc.verify_init(model), "warning")
    wc.init_skipless_(model, generator=torch.Generator().manual_seed(0))
    assert not kinds(wc.verify_init(model), "warning")
    wc.init_skipless_(model, beta=0.0, generator=torch.Generator().manual_seed(0))
    assert kinds(wc.verify_init(model), "warning") == {"query_key"}


def test_orthogonal_inside_each_head_only_is_named():
    model = skipless()
    for block in model.blocks:
        with torch.no_grad():
            for head in range(3):
                rows = slice(48 + 8 * head, 48 + 8 * (head + 1))
                block.attn.qkv.weight[rows] = torch.linalg.qr(torch.randn(24, 8))[0].T
                block.attn.proj.weight[:, 8 * head : 8 * (head + 1)] = torch.linalg.qr(torch.randn(24, 8))[0]
    found = wc.verify_init(model)
    (finding,) = [finding for finding in found.findings if finding.kind == "value_output"]
    assert "inside each head only" in finding.text and finding.severity == "warning"
    assert (
        (found.value(0, "value_output", "head_log_kappa") or 0)
        < 1e-5
        < 1
        < (found.value(0, "value_output", "log_kappa") or 0)
    )


@pytest.mark.parametrize(("largest", "words"), [(1.3, "stretches some directions"), (1e3, "nearly lost")])
def test_how_far_from_orthogonal_is_told(largest, words):
    """A trained skipless model is a little off, and nothing of it is lost."""
    model = skipless()
    with torch.no_grad():
        model.blocks[1].attn.proj.weight.mul_(torch.logspace(0, math.log10(largest), 24)[:, None])
    (finding,) = [finding for finding in wc.verify_init(model).findings if finding.kind == "value_output"]
    assert finding.severity == "warning" and finding.layer == 1 and words in finding.text


def test_layer_scale_near_zero_is_named():
    model = wc.cut_skips(timm.create_model("deit3_small_patch16_224", img_size=32, embed_dim=24, depth=2, num_heads=3))
    assert "layer_scale" in kinds(wc.verify_init(model), "warning")
    assert "layer_scale" not in kinds(wc.verify_init(wc.init_skipless_(model)), "warning")


# ---- on images


def logits_of(block, X):
    """Of each head (B, H, n, n), written out."""
    attention = copy.deepcopy(block.attn).double()
    B, n, _ = X.shape
    Q, K, _ = attention.qkv(X).reshape(B, n, 3, 3, 8).permute(2, 0, 3, 1, 4)
    return Q @ K.mT / math.sqrt(8)


def tokens_of(model, images, layer):
    """What reaches the attention of that block without skips, after its norm."""
    model = copy.deepcopy(model).double().eval()
    x = model.patch_embed(images.double())
    x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], dim=1) + model.pos_embed
    for block in model.blocks[:layer]:
        x = block.mlp(block.norm2(block.attn(block.norm1(x))))
    return model.blocks[layer], model.blocks[layer].norm1(x).detach()


def test_rows_by_depth_against_the_module_written_out(images):
    model = skipless()
    found = wc.verify_init(model, images)
    for layer in range(3):
        block, X = tokens_of(model, images, layer)
        with torch.no_grad():
            L = logits_of(block, X)
        A = L.softmax(-1)
        eye = torch.eye(5, dtype=torch.bool)
        gap = L.diagonal(dim1=-2, dim2=-1) - L.masked_fill(eye, -math.inf).amax(-1)
        mass = float(A.diagonal(dim1=-2, dim2=-1).mean())
        assert found.value(layer, "attention", "attention_diagonal") == pytest.approx(mass, abs=1e-5)
        assert found.value(layer, "attention", "logit_gap") == pytest.approx(float(gap.mean()), abs=1e-4)
        assert found.value(layer, "attention", "logit_range") == pytest.approx(
            float((L.amax(-1) - L.amin(-1)).mean()), abs=1e-4
        )


@pytest.mark.parametrize(("alpha", "beta", "finite"), [(2.0, 0.6, False), (0.01, 40.0, True)])
def test_the_jacobian_against_jacrev_and_its_bound(images, alpha, beta, finite):
    """5 × 24 inputs: exact. Where Proposition 2 gives a bound, it holds; for saturated attention it gives one."""
    model = skipless(alpha=alpha, beta=beta)
    found = wc.verify_init(model, images)
    block, X = tokens_of(model, images, 0)
    block.attn.fused_attn = False
    J = torch.func.jacrev(lambda Y: block.attn(Y[None])[0])(X[0]).reshape(120, 120).detach().numpy()
    sigma = np.linalg.svd(J, compute_uv=False)
    log_kappa = math.log(sigma[0] / sigma[-1])
    assert found.value(0, "jacobian", "log_kappa") == pytest.approx(log_kappa, rel=1e-3)
    bound = found.value(0, "jacobian", "log_kappa_bound")
    assert (bound is not None) == finite
    assert bound is None or bound >= log_kappa - 1e-6
    e, b = (found.value(0, "jacobian", name) or 0.0 for name in ("sigma_max_e", "sigma_min_b"))
    assert (e < b) == finite


def test_propositions_one_limits(images):
    """Flat logits: uniform attention. A diagonal far ahead: the identity."""
    flat = wc.verify_init(skipless(alpha=1e-3, beta=0.0), images, jacobian=False)
    assert flat.value(0, "attention", "attention_diagonal") == pytest.approx(1 / 5, abs=1e-2)
    assert (flat.value(0, "attention", "logit_range") or 1) < 0.05
    sharp = wc.verify_init(skipless(alpha=0.01, beta=40.0), images, jacobian=False)
    gap = sharp.value(0, "attention", "logit_gap") or 0.0
    assert gap > 8 and (sharp.value(0, "attention", "attention_diagonal") or 0) > 0.95
    assert "diagonal_lost" in kinds(flat, "warning")


def test_the_model_is_as_it_was(images):
    model = skipless().train()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    random = torch.random.get_rng_state()
    wc.verify_init(model, [images[:2], images[2:]])
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert [block.attention_gain for block in adapted_blocks(model)] == [0, 0, 0]
    plain = vit()
    wc.verify_init(plain, images)
    assert not adapted_blocks(plain)


@pytest.mark.parametrize("family", [SWIN, SWINV2, MAXVIT, CAIT, CONVMIXER], ids=str)
def test_what_cannot_be_measured_is_said(family):
    model = family.create()
    pictures = torch.randn(2, 3, family.size, family.size)
    found = wc.verify_init(model, pictures)
    assert found.missing and found.value(0, "sab_in", "token_cosine") is not None
    if family is CAIT:  # only its class token comes out of the last blocks, and one has no cosine
        assert cell(found, found.layers[-1], ("cos", "ffn_sum", "token_cosine", str)) == "–"
    told = legend(shown_columns(found))
    assert ("V·O" in told) == (family not in (CAIT, CONVMIXER)) and ("Jacobian" in told) == (family is SWIN)
    if family in (CAIT, CONVMIXER):
        assert found.verdict.startswith("Its weights cannot be compared")
        with pytest.raises(ValueError, match=r"talking heads|no attention"):
            wc.verify_init(model)


def test_refusals():
    with pytest.raises(ValueError, match="pass a module"):
        wc.verify_init("vit_tiny_patch16_224")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no transformer blocks"):
        wc.verify_init(timm.create_model("resnet18"), torch.randn(1, 3, 64, 64))


@pytest.mark.parametrize("name", ["blocks.1.mlp.fc2.weight", "blocks.1.mlp.fc1.bias", "norm.weight", "cls_token"])
def test_a_model_that_has_diverged_is_not_made_for_training(images, name):
    diverged = skipless()
    diverged.get_parameter(name).data.view(-1)[0] = math.nan
    for look in (wc.verify_init, lambda model: wc.verify_init(model, images), lambda m: wc.calibrate_(m, images)):
        with pytest.raises(ValueError, match=f"'{name}' has weights that are NaN"):
            look(diverged)


def test_a_single_token_attends_to_itself():
    """Its logits have no others to be compared with."""
    model = vit(img_size=8, patch_size=8, class_token=False, global_pool="avg")
    found = wc.verify_init(wc.init_skipless_(model), torch.randn(2, 3, 8, 8))
    assert found.missing == ["Logits or Jacobian: it has one token, which attends to itself alone (blocks 0–2)"]


# ---- as JSON, table, page, command


def test_json_table_and_page(images, tmp_path):
    found = wc.verify_init(skipless(), images)
    assert Verification.from_json(found.to_json(tmp_path / "init.json")) == found
    content = json.loads((tmp_path / "init.json").read_text())
    assert content["format"] == "wellcond verification 1" and len(content["pictures"]) == 3
    with pytest.raises(ValueError, match="wellcond verification 1"):
        wc.diagnosis.Diagnosis.from_json(tmp_path / "init.json")
    text = str(found)
    assert found.verdict[:40] in " ".join(text.split()) and "1.0000" in text and "block" in text
    page = found.to_html(tmp_path / "init.html").read_text()
    for words in (
        "Made for training without skips",
        "W_Q W_Kᵀ",
        "α = 0.1, β = 5",
        "α = 0.1, β = 0",
        "Proposition 1",
        "Proposition 2",
        "data:image/png;base64",
    ):
        assert words in page, words
    alone = wc.verify_init(skipless()).to_html(tmp_path / "weights.html").read_text()
    assert "Proposition 2: " not in alone


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({}, 'wc.set_activation(model, "centred-gelu"), a larger β, or wc.calibrate_(model, images)'),
        ({"qk_norm": True}, 'wc.set_activation(model, "centred-gelu"), or a larger β'),
        ({"act_layer": torch.nn.ReLU}, "a larger β, or wc.calibrate_(model, images)"),
        ({"act_layer": torch.nn.ReLU, "qk_norm": True}, "a larger β"),
    ],
    ids=["vit", "normalised queries", "ReLU", "both"],
)
def test_a_lost_diagonal_has_remedies_that_the_model_takes(options, remedy):
    model = wc.cut_skips(vit(img_size=32, **options))
    wc.init_skipless_(model, beta=[6.0, 0.1, 0.0], generator=torch.Generator().manual_seed(0))
    found = wc.verify_init(model, torch.randn(2, 3, 32, 32), jacobian=False)
    said = next(finding for finding in found.findings if finding.kind == "diagonal_lost").remedy
    assert said.startswith(f"To keep it longer: {remedy}. What trained better")


def test_blocks_that_have_no_jacobian_are_not_left_out_for_their_time(monkeypatch):
    monkeypatch.setattr(depth, "LARGE", 0)  # as with large images: the first, the middle and the last block
    found = wc.verify_init(SWINV2.create(), torch.randn(2, 3, SWINV2.size, SWINV2.size))
    assert [why for why in found.missing if "norm comes after" in why]
    assert not [why for why in found.missing if "time" in why]
    vits = wc.verify_init(vit(img_size=32, depth=5), torch.randn(2, 3, 32, 32))
    assert "Jacobians, for the time they take (blocks 1, 3)" in vits.missing


def test_a_diagonal_of_one_or_two_tokens_is_not_judged():
    """Pooled keys leave PVT's last stage alone, here of one token: it was told to have no diagonal, 1.00 of 1.00."""
    model = timm.create_model("pvt_v2_b0", num_classes=5)
    found = wc.verify_init(wc.cut_skips(model), torch.randn(2, 3, 32, 32))
    assert not [finding for finding in found.findings if finding.kind.startswith("diagonal")]


def test_command(tmp_path, capsys):
    common = ["diagnose", "vit_tiny_patch16_224", "--image-size=32", "--images=2", "--device=cpu", "--init"]
    out = tmp_path / "out"
    assert main([*common, "--initialize", "skipless", "--cut", "both", "--out", str(out)]) == 0
    captured = capsys.readouterr().out
    assert "Made for training without skips" in captured and "init.html" in captured
    found = Verification.from_json(out / "init.json")
    assert found.skips == "without skips" and found.num_images == 2 and "--init" in found.command
    assert main([*common, "--no-jacobian", "--json", str(tmp_path / "x.json"), "--fail-above", "0.1"]) == 1
    assert "Not made for training" in capsys.readouterr().out
    for wrong, words in (
        (["--compare", "x.json"], "compare is of a whole diagnosis"),
        (["--initialize", "mimetic", "--pretrained"], "would replace the weights"),
    ):
        assert main([*common, *wrong]) == 2
        assert words in capsys.readouterr().err


def test_initialize_is_the_function_of_that_name(tmp_path):
    """The same seed gives the model that Python gives."""
    words = ["diagnose", "vit_tiny_patch16_224", "--image-size=32", "--images=1", "--device=cpu", "--init", "--seed=3"]
    assert main([*words, "--no-jacobian", "--initialize", "mimetic", "--json", str(tmp_path / "x.json")]) == 0
    torch.manual_seed(3)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32)
    wanted = wc.verify_init(wc.mimetic_(model, generator=torch.Generator().manual_seed(3)))
    found = Verification.from_json(tmp_path / "x.json")
    assert {(r.layer, r.site, r.quantity): r.value for r in wanted.rows}.items() <= {
        (r.layer, r.site, r.quantity): r.value for r in found.rows
    }.items()
