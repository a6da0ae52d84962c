"""transformers' ViT, DeiT and DINOv2: bit-identical at gain 1, right at every site, grayed, diagnosed, monitored."""

import copy
import math
import re
import subprocess
import sys
import warnings
from typing import Any

import pytest
import torch
from block_cases import assert_identical, images_of, outcome
from huggingface_cases import CASES, DEIT, DEPTH, DINO, VIT, blocks_of, by_hand, plainly

import wellcond as wc
from wellcond.blocks import SITES, adapt, attention_keys, attention_map, normalise, record, sub_block, unadapt
from wellcond.graying import TokenGraying, patch_size_of
from wellcond.probes.quantities import ATTENTION_QUANTITIES

every_case = pytest.mark.parametrize("case", CASES, ids=str)
by_mode = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
by_implementation = pytest.mark.parametrize("implementation", ["eager", "sdpa"])


def assert_close(got, want, tolerance=1e-5):
    torch.testing.assert_close(got.double(), want.double(), atol=tolerance, rtol=tolerance)


@by_implementation
@by_mode
@every_case
def test_gain_one_is_bit_identical(case, training, implementation):
    plain = case.create(implementation)
    model = copy.deepcopy(plain)
    blocks = adapt(model)
    assert len(blocks) == DEPTH and all(a is b for a, b in zip(blocks, blocks_of(model), strict=True))
    images = images_of(case)
    want = outcome(plain, images, training)
    assert sum(value is not None and bool(value.any()) for value in want.values()) > len(want) / 2
    assert_identical(outcome(model, images, training), want)
    assert list(model.state_dict()) == list(plain.state_dict())
    unadapt(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert all(a.__dict__.keys() == b.__dict__.keys() for a, b in zip(model.modules(), plain.modules(), strict=True))


@pytest.mark.parametrize("gains", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.5, -0.25)], ids=str)
@by_mode
@every_case
def test_cut_skips_and_other_gains_equal_plain_functions(case, training, gains):
    attention, mlp = gains
    model = case.create()
    plain = plainly(copy.deepcopy(model), attention, mlp)
    wc.cut_skips(model, attention=attention == 0, mlp=mlp == 0) if 0.0 in gains else adapt(model)
    for block in adapt(model):
        block.attention_gain, block.mlp_gain = attention, mlp
    images = images_of(case)
    assert_identical(outcome(model, images, training), outcome(plain, images, training))
    wc.restore_skips(model)
    assert_identical(outcome(model, images), outcome(case.create(), images))


@by_implementation
@pytest.mark.parametrize("gains", [(1.0, 1.0), (0.0, 0.0)], ids=["whole", "skipless"])
@every_case
def test_sites_maps_and_branches_equal_those_by_hand(case, gains, implementation):
    model = case.create(implementation)
    if gains == (0.0, 0.0):
        wc.cut_skips(model)
    with torch.no_grad(), record(model) as sites:
        model(images_of(case))
    n = 16 + case.num_prefix
    assert sites.keys() == {(layer, site) for layer in range(DEPTH) for site in SITES}
    blocks = adapt(model)
    for layer, block in enumerate(blocks):
        with record(model):
            model(images_of(case))
        want = by_hand(block, sites[layer, "sab_in"], *gains)
        for site in SITES:
            assert sites[layer, site].shape == (2, n, 48)
            assert_close(sites[layer, site], want[site])
        for which, start, end in (("attention", "sab_in", "sab_out"), ("mlp", "sab_sum", "ffn_out")):
            with torch.no_grad():
                Y = normalise(block, which, sites[layer, start])
                assert_close(sub_block(block, which)(Y), want[end])
        with torch.no_grad():
            Y = normalise(block, "attention", sites[layer, "sab_in"])
            assert_close(attention_map(block, Y), want["map"])
        assert block.attn.config is model.config  # what was lent has been given back
        assert torch.equal(attention_keys(block, Y), block.attn.k_proj(Y))


@every_case
def test_maps_are_those_that_transformers_gives(case):
    model = case.create("eager")
    adapt(model)
    with torch.no_grad(), record(model) as sites:
        shown = model(images_of(case), output_attentions=True, output_hidden_states=True)
    for layer, block in enumerate(adapt(model)):
        Y = normalise(block, "attention", sites[layer, "sab_in"])
        assert_close(attention_map(block, Y).detach(), shown.attentions[layer])
        assert torch.equal(sites[layer, "sab_in"], shown.hidden_states[layer])


@pytest.mark.parametrize("case", [VIT, DINO], ids=str)
@by_implementation
def test_masks_reach_attention_branch_and_map(case, implementation):
    model = case.create(implementation)
    mask = torch.ones(2, 16 + case.num_prefix, dtype=torch.long)
    mask[:, -3:] = 0
    want = copy.deepcopy(model)(images_of(case), attention_mask=mask)[0]
    blocks = adapt(model)
    with torch.no_grad(), record(model) as sites:
        got = model(images_of(case), attention_mask=mask)[0]
        assert torch.equal(got, want)
        Y = normalise(blocks[1], "attention", sites[1, "sab_in"])
        assert_close(sub_block(blocks[1], "attention")(Y), sites[1, "sab_out"])
        A = attention_map(blocks[1], Y)
    assert float(A[..., -3:].max()) < 1e-20 < float(A[..., :-3].min())


def test_branches_of_eager_models_are_float64_where_the_model_is():
    """transformers' eager ViT takes the softmax in float32, which would bury small singular values of Jacobians."""
    model = VIT.create("eager").double()
    with torch.no_grad(), record(model) as sites:
        model(images_of(VIT).double())
    block = adapt(model)[1]
    Y = normalise(block, "attention", sites[1, "sab_in"]).detach()
    want = by_hand(block, sites[1, "sab_in"])
    assert_close(sub_block(block, "attention")(Y).detach(), want["sab_out"], 1e-10)
    assert_close(attention_map(block, Y).detach(), want["map"], 1e-10)
    V = torch.randn_like(Y)
    h = 1e-6
    finite = (sub_block(block, "attention")(Y + h * V) - sub_block(block, "attention")(Y - h * V)) / (2 * h)
    assert_close(torch.func.jvp(sub_block(block, "attention"), (Y,), (V,))[1], finite.detach(), 1e-6)


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "my_kernel"])
def test_other_attentions_are_refused(name):
    model = VIT.create()
    model.config._attn_implementation_internal = name
    for call in (adapt, wc.cut_skips, wc.Monitor):
        with pytest.raises(ValueError, match=rf"implementation is '{name}'.*set_attn_implementation\(\"sdpa\"\)"):
            call(model)
    assert not any("Adapted" in type(m).__name__ for m in model.modules())


def test_another_version_of_transformers_is_refused():
    model = VIT.create()
    del model.layers[1].mlp
    with pytest.raises(ValueError, match="builds it otherwise; wellcond knows it as"):
        adapt(model)


@by_mode
@pytest.mark.parametrize("method", ["svd", "dct"])
@pytest.mark.parametrize("case", [VIT, DEIT, DINO], ids=str)
def test_gray_is_graying_in_front_of_the_model(case, method, training):
    model, plain = case.create(), case.create()
    images = images_of(case)
    assert wc.gray(model, method, 0.6, precision="exact") is model
    assert list(model.state_dict()) == list(plain.state_dict()) and patch_size_of(model) == (8, 8)
    grayed = TokenGraying(8, method, 0.6, precision="exact")(images.double()).float()
    got, want = (outcome(m, x, training) for m, x in ((model, images), (plain, grayed)))
    assert_close(got["out"], want["out"], 1e-4)
    assert float((got["out"] - outcome(plain, images, training)["out"]).norm()) > 1e-2
    projection = next(name for name in got if name.endswith("patch_embeddings.projection.weight"))
    assert_close(got[projection], want[projection], 1e-3)
    wc.ungray(model)
    assert_identical(outcome(model, images), outcome(case.create(), images))


@by_implementation
@every_case
def test_diagnose_measures_what_is_there_and_leaves_the_model_alone(case, implementation):
    model, images = case.create(implementation), images_of(case)
    before = outcome(model, images)
    found = wc.diagnose(model, images, tokens="patch", jacobian=case in (VIT, DINO))
    assert_identical(outcome(model, images), before)
    row = next(r for r in found.rows if (r.layer, r.site, r.quantity) == (1, "sab_out", "log_kappa"))
    with torch.no_grad(), record(model) as sites:
        model(images)
    X = by_hand(blocks_of(model)[1], sites[1, "sab_in"])["sab_out"][:, case.num_prefix :]
    sigma = torch.linalg.svdvals(X)
    assert (row.n, row.d) == (16, 48)
    assert row.value == pytest.approx(float((sigma[:, 0] / sigma[:, -1]).log().mean()), rel=1e-3)
    assert {r.site for r in found.rows if r.quantity in ATTENTION_QUANTITIES} >= {"attention", "head_0"}
    assert found.variants.keys() == {"attention skips cut", "mlp skips cut"} and found.advice is not None
    assert bool(found.jacobians) == (case in (VIT, DINO)) and found.missing == []


def test_monitor_changes_no_bit_of_training():
    def train(monitored: bool) -> list[Any]:
        model = CASES[3].create().train()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        monitor = wc.Monitor(model, every=1, budget=None) if monitored else None
        torch.manual_seed(3)
        for _ in range(2):
            optimizer.zero_grad()
            model(pixel_values=images_of(VIT), labels=torch.tensor([0, 1])).loss.backward()
            optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if monitor is not None:
                    monitor.step()
        if monitor is not None:
            monitor.close()
            assert len(monitor.history) == 2 and {r.site for r in monitor.rows} == set(SITES)
        return [p.detach() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(train(True), train(False), strict=True))


@every_case
def test_skipless_weights_are_those_of_the_paper(case):
    """W_V W_O is c² times orthogonal, through the layers themselves; the rest of the block begins plainly."""
    model = wc.init_skipless_(case.create(), c=3.0, generator=torch.Generator().manual_seed(0))
    eye = torch.eye(48)
    for block in blocks_of(model):
        weights = {name: p.detach() for name, p in block.named_parameters()}
        through = eye @ weights["attention.v_proj.weight"].T @ weights["attention.o_proj.weight"].T
        assert_close(torch.linalg.svdvals(through), torch.full((48,), 9.0), 1e-4)
        Q, K = (weights[f"attention.{name}_proj.weight"][:16] for name in "qk")
        assert float((Q.T @ K).diagonal().mean()) > 0.1  # αZ + βI, of which a third of the directions is kept
        assert all(not bool(p.any()) for name, p in weights.items() if name.endswith("bias"))
        ones = [p for name, p in weights.items() if "lambda1" in name or re.search("norm.*weight", name)]
        assert len(ones) >= 2 and all(bool((p == 1).all()) for p in ones)
    assert wc.verify_init(wc.cut_skips(model), images_of(case), jacobian=False).findings is not None


@every_case
def test_positions_are_drawn_anew(case):
    model = wc.init_skipless_(case.create(), positions=0.3, generator=torch.Generator().manual_seed(0))
    drawn = next(p for name, p in model.named_parameters() if name.endswith("position_embeddings"))
    assert float(drawn.detach().std()) == pytest.approx(0.3, rel=0.1)


@every_case
def test_activations_that_verify_init_advises_can_be_set(case):
    model, images = case.create(), images_of(case)
    want, names = model(images)[0], list(model.state_dict())
    if case.name == "dinov2-swiglu":
        with pytest.raises(ValueError, match="SwiGLUFFN, whose activation is a gate"):
            wc.set_activation(model, "centred-gelu")
        return
    wc.set_activation(model, "centred-gelu")
    x = torch.randn(2, 5, 48)
    for block in blocks_of(model):
        own = torch.nn.functional.gelu(block.mlp.fc1(x)) - 0.5 / math.pi**0.5
        deviation = math.sqrt(1 / 3 + 1 / (2 * math.pi * 3**0.5) - 1 / (4 * math.pi))
        assert_close(block.mlp(x), block.mlp.fc2(own / deviation))
    assert not torch.equal(model(images)[0], want) and list(model.state_dict()) == names
    assert torch.equal(wc.set_activation(model, "gelu")(images)[0], want)


def test_gradient_checkpointing_gives_the_same_gradients():
    model = VIT.create()
    want = outcome(wc.cut_skips(copy.deepcopy(model)), images_of(VIT), training=True)
    model.gradient_checkpointing_enable()
    assert_identical(outcome(wc.cut_skips(model), images_of(VIT), training=True), want)


def test_transformers_is_not_imported_for_others():
    code = (
        "import sys, timm, torch, wellcond as wc; from wellcond.blocks import adapt; "
        "m = timm.create_model('vit_tiny_patch16_224', img_size=32, depth=1, embed_dim=48, num_heads=3); "
        "wc.gray(wc.cut_skips(m)); wc.diagnose(m, torch.randn(1, 3, 32, 32), jacobian=False); "
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
