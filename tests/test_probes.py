"""Rows of `probe` against numpy on tensors that were captured by hooks on the original model."""

import copy

import block_cases
import numpy as np
import pytest
import timm
import torch
from block_cases import CAIT, CONVMIXER, MODELS, SWIN, VIT, XCIT, blocks_of, images_of
from test_sites import hooked_sites

import wellcond as wc
from wellcond.probes import ATTENTION_QUANTITIES, TOKEN_QUANTITIES, probe

DEIT3 = next(family for family in MODELS if family.name.startswith("deit3"))
DISTILLED = next(family for family in MODELS if "distilled" in family.name)
FAMILIES = [VIT, DEIT3, SWIN, XCIT, CONVMIXER, CAIT, block_cases.PVT, block_cases.BEIT]
RTOL = 1e-5


def table(rows):
    return {(row.layer, row.site, row.quantity): row for row in rows}


def numpy_log_kappa(X):
    """Natural logarithm; inf if no float32 matrix of this size can tell σ_min from rounding."""
    sigma = np.linalg.svd(X, compute_uv=False)
    with np.errstate(divide="ignore", invalid="ignore"):
        kappa = sigma[0] / sigma[-1]
    return np.log(kappa) if kappa < 3e5 else np.inf if sigma[0] > 0 else np.nan


def numpy_quantities(X):
    """One image (n, d), float64, by the definitions, with loops."""
    sigma = np.linalg.svd(X, compute_uv=False)
    p = sigma / sigma.sum()
    p = p[p > 0]
    cosines = [
        X[i] @ X[j] / np.linalg.norm(X[i]) / np.linalg.norm(X[j])
        for i in range(len(X))
        for j in range(len(X))
        if i != j
    ]
    return {
        "log_kappa": numpy_log_kappa(X),
        "effective_rank": np.exp(-(p * np.log(p)).sum()),
        "stable_rank": (X**2).sum() / sigma[0] ** 2,
        "token_cosine": np.mean(cosines) if cosines else np.nan,
        "kurtosis": np.mean((X - X.mean()) ** 4) / X.var() ** 2,
    }


def assert_row(row, values):
    """The row is mean and deviation of `values` (one for each image) where they are finite."""
    values = np.array(values)
    finite = values[np.isfinite(values)]
    assert row.num_images == len(values)
    assert row.num_infinite == len(values) - len(finite), (row, values)
    if not len(finite):
        assert row.value is None and row.std is None
        return
    assert row.value == pytest.approx(finite.mean(), rel=RTOL, abs=1e-6), row
    assert row.std == pytest.approx(finite.std(), rel=1e-3, abs=1e-5), row


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_token_quantities_equal_numpy_on_hooked_tensors(family):
    model, images = family.create(), images_of(family, 3)
    want = hooked_sites(copy.deepcopy(model), images)
    rows = table(probe(model, [images], attention=False))
    checked = 0
    for (layer, site), X in want.items():
        if (layer, site, "log_kappa") not in rows:
            continue
        per_image = [numpy_quantities(x) for x in X.double().numpy()]
        for name in TOKEN_QUANTITIES:
            row = rows[layer, site, name]
            assert (row.n, row.d) == X.shape[1:]
            assert_row(row, [image[name] for image in per_image])
        checked += 1
    assert checked >= 3 * len(blocks_of(model))


def numpy_attention(A):
    """One image (maps, n, n), rows sum to 1."""
    logs = np.log(A, out=np.zeros_like(A), where=A > 0)
    return {
        "attention_entropy": -(A * logs).sum(-1).mean(),
        "attention_diagonal": np.mean([np.trace(a) / len(a) for a in A]),
        "attention_log_kappa": np.mean([numpy_log_kappa(a) for a in A]),
    }


def hooked_attention(model, images):
    """{layer: (B, maps, n, n)} of a plain ViT, from the inputs of its attention and its weights, in float64."""
    found, handles = {}, []
    for layer, block in enumerate(model.blocks):
        handles.append(
            block.attn.register_forward_pre_hook(lambda m, inputs, layer=layer: found.update({layer: (m, inputs[0])}))
        )
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    maps = {}
    for layer, (m, X) in found.items():
        W, b = m.qkv.weight.detach().double(), m.qkv.bias.detach().double()
        d = W.shape[1]
        Q, K = (X.double() @ W[i * d : (i + 1) * d].T + b[i * d : (i + 1) * d] for i in (0, 1))
        Q, K = (Y.reshape(*X.shape[:2], m.num_heads, -1).transpose(1, 2) for Y in (Q, K))
        maps[layer] = (Q @ K.mT / Q.shape[-1] ** 0.5).softmax(-1)
    return maps


def hooked_windows(model, images):
    """Maps (B · windows, H, w, w) of each block of a Swin, as its softmax gives them."""
    found, other = [], copy.deepcopy(model)
    for module in other.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
            module.softmax.register_forward_hook(lambda _m, _i, out: found.append(out))
    with torch.no_grad():
        other(images)
    assert len(found) == len(blocks_of(model))
    return found


def test_attention_quantities_equal_numpy():
    model, images = VIT.create(), images_of(VIT, 3)
    want = hooked_attention(copy.deepcopy(model), images)
    rows = table(probe(model, [images]))
    assert {key[0] for key in rows if key[1] == "attention"} == set(want)
    for layer, maps in want.items():
        per_image = [numpy_attention(A) for A in maps.numpy()]
        for name in ATTENTION_QUANTITIES:
            assert_row(rows[layer, "attention", name], [image[name] for image in per_image])
            assert (rows[layer, "attention", name].n, rows[layer, "attention", name].d) == maps.shape[-2:]


def test_attention_in_windows_is_that_of_each_image():
    model, images = SWIN.create(), images_of(SWIN, 3)
    rows = table(probe(model, [images]))
    for layer, A in enumerate(hooked_windows(model, images)):
        per_image = [numpy_attention(maps) for maps in A.double().reshape(3, -1, *A.shape[-2:]).numpy()]
        for name in ATTENTION_QUANTITIES:
            assert_row(rows[layer, "attention", name], [image[name] for image in per_image])


@pytest.mark.parametrize("family", [XCIT, CONVMIXER, CAIT], ids=str)
def test_families_without_maps_have_no_attention_rows(family):
    rows = probe(family.create(), [images_of(family)])
    assert rows and not any(row.site == "attention" for row in rows)
    with pytest.raises(ValueError, match="no softmax attention"):
        probe(family.create(), [images_of(family)], quantities=["attention_entropy"])


@pytest.mark.parametrize("family", [VIT, DISTILLED], ids=str)
def test_patch_tokens_only(family):
    model, images = family.create(), images_of(family, 2)
    prefix = model.num_prefix_tokens
    assert prefix == (2 if family is DISTILLED else 1)
    want = hooked_sites(copy.deepcopy(model), images)
    maps = hooked_attention(copy.deepcopy(model), images)
    rows = table(probe(model, [images], tokens="patch"))
    for (layer, site), X in want.items():
        for name in TOKEN_QUANTITIES:
            row = rows[layer, site, name]
            assert row.n == X.shape[1] - prefix
            assert_row(row, [numpy_quantities(x)[name] for x in X[:, prefix:].double().numpy()])
    for layer, A in maps.items():
        own = A.diagonal(0, -2, -1)[..., prefix:].mean((1, 2))
        assert_row(rows[layer, "attention", "attention_diagonal"], own.numpy())
        entropy = torch.special.entr(A)[..., prefix:, :].sum(-1).mean((1, 2))
        assert_row(rows[layer, "attention", "attention_entropy"], entropy.numpy())
        kappa = [np.mean([numpy_log_kappa(a) for a in image]) for image in A[..., prefix:, :].numpy()]
        assert_row(rows[layer, "attention", "attention_log_kappa"], kappa)


@pytest.mark.parametrize("family", [CAIT, XCIT], ids=str)
def test_patch_tokens_where_the_class_token_joins_late(family):
    """timm's CaiT and XCiT have their class token in the last stage only."""
    every = table(probe(family.create(), [images_of(family)]))
    patch = table(probe(family.create(), [images_of(family)], tokens="patch"))
    num_patches = (family.size // family.patch) ** 2
    assert {row.n for row in patch.values()} == {num_patches}
    for key, row in every.items():
        if row.n == num_patches:
            assert patch[key] == row
        elif row.n == 1:
            assert key not in patch
        else:
            assert row.n == num_patches + 1 and patch[key].n == num_patches


@pytest.mark.parametrize(
    ("name", "options", "numbers"),
    [
        ("pit_ti_224", {"img_size": 40, "depth": (1, 1, 1)}, [16, 4, 1]),
        ("pit_ti_distilled_224", {"img_size": 40, "depth": (1, 1, 1)}, [16, 4, 1]),
        ("convit_tiny", {"img_size": 32, "depth": 2, "local_up_to_layer": 1}, [4, 4]),
    ],
)
def test_class_tokens_that_the_model_does_not_count(name, options, numbers):
    model = timm.create_model(name, **options).eval()
    images = torch.randn(2, 3, options["img_size"], options["img_size"])
    rows = probe(model, [images], tokens="patch", quantities="token_cosine", attention=False)
    assert [row.n for row in rows if row.site == "sab_in"] == numbers


def test_maps_have_no_prefix():
    for family in (SWIN, CONVMIXER):
        assert probe(family.create(), [images_of(family)], tokens="patch") == probe(
            family.create(), [images_of(family)]
        )


def block_inputs(model, images):
    """What each block of a plain ViT reads, by hooks."""
    found: list[torch.Tensor] = []
    handles = [b.norm1.register_forward_pre_hook(lambda _m, inputs: found.append(inputs[0])) for b in model.blocks]
    with torch.no_grad():
        model(images)
    for handle in handles:
        handle.remove()
    return found


def assert_inputs(rows, inputs):
    for layer, X in enumerate(inputs):
        for name in TOKEN_QUANTITIES:
            assert_row(rows[layer, "sab_in", name], [numpy_quantities(x)[name] for x in X.double().numpy()])


def test_a_grayed_model_is_measured_grayed():
    images = images_of(VIT, 3)
    want = block_inputs(VIT.create(), wc.TokenGraying(16, "svd", 0.5)(images))
    model = wc.gray(VIT.create(), "svd", 0.5)
    assert_inputs(table(probe(model, [images])), want)
    assert_inputs(table(probe(wc.ungray(model), [images])), block_inputs(VIT.create(), images))


@pytest.mark.parametrize("mlp", [True, False])
def test_cut_skips_are_measured_cut_and_stay_cut(mlp):
    images = images_of(VIT, 3)
    want = block_inputs(block_cases.plainly(VIT.create(), attention=0.0, mlp=0.0 if mlp else 1.0), images)
    model = wc.cut_skips(VIT.create(), mlp=mlp)
    rows = table(probe(model, [images]))
    assert_inputs(rows, want)
    assert rows[0, "sab_out", "kurtosis"].value == rows[0, "sab_sum", "kurtosis"].value
    for block in model.blocks:
        assert (block.attention_gain, block.mlp_gain) == (0.0, 0.0 if mlp else 1.0)
        assert block._context is None and block._sinks == ()
