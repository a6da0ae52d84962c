"""Rows of single heads and mean spectra against numpy on tensors that were captured by hooks on the original model."""

import copy
import warnings

import numpy as np
import pytest
import torch
from block_cases import CAIT, SWIN, VIT, blocks_of, images_of
from families import SMALL, Family
from test_probes import assert_row, hooked_attention, hooked_windows, numpy_attention, table
from test_sites import hooked_sites
from torch import nn

from wellcond.probes import ATTENTION_QUANTITIES, measure, probe
from wellcond.probes import quantities as q

EPS32 = float(np.finfo(np.float32).eps)


def test_rows_of_heads_equal_numpy():
    model, images = VIT.create(), images_of(VIT, 3)
    want = hooked_attention(copy.deepcopy(model), images)
    found = probe(model, [images])
    rows = table(found)
    assert len(rows) == len(found)  # (layer, site, quantity) is unique
    num_heads = model.blocks[0].attn.num_heads
    assert {row.site for row in found if row.site.startswith("head_")} == {f"head_{h}" for h in range(num_heads)}
    for layer, maps in want.items():
        for h in range(num_heads):
            per_image = [numpy_attention(A[h : h + 1]) for A in maps.numpy()]
            for name in ATTENTION_QUANTITIES:
                assert_row(rows[layer, f"head_{h}", name], [image[name] for image in per_image])
                assert rows[layer, f"head_{h}", name].n == maps.shape[-2]


def test_rows_of_heads_average_over_windows():
    model, images = SWIN.create(), images_of(SWIN, 2)
    rows = table(probe(model, [images]))
    for layer, A in enumerate(hooked_windows(model, images)):
        for h in range(A.shape[1]):
            windows = A[:, h].double().reshape(2, -1, *A.shape[-2:]).numpy()
            for name in ATTENTION_QUANTITIES:
                values = [numpy_attention(image)[name] for image in windows]
                assert_row(rows[layer, f"head_{h}", name], values)


def test_one_singular_head_spoils_its_own_row_and_the_mean():
    A = torch.randn(2, 1, 3, 4, 4).softmax(-1)
    A[0, 0, 1] = 0.25
    got = q.of_attention(A, ATTENTION_QUANTITIES)
    assert got["attention_log_kappa"].isfinite().tolist() == [[True, False, True], [True] * 3]
    assert got[q.FLOOR][0].tolist() == [0, 3, 0]
    assert got["attention_entropy"][0, 1].item() == pytest.approx(np.log(4), rel=1e-6)


def numpy_spectrum(X):
    """Mean and deviation over images of ln σ_k/σ_max and of the floor, float32 input (B, n, d)."""
    logs, floors = [], []
    for x in X.double().numpy():
        sigma = np.linalg.svd(x, compute_uv=False)
        n, d = x.shape
        floor = max(
            np.sqrt(np.finfo(np.float64).eps * max(n, d)) * sigma[0],
            2 * EPS32 * (n**-0.5 + d**-0.5) * np.linalg.norm(x),
        )
        logs.append(np.log(sigma / sigma[0]))
        floors.append(np.log(floor / sigma[0]))
    return np.mean(logs, 0), np.std(logs, 0), np.mean(floors)


@pytest.mark.parametrize("family", [VIT, SWIN, CAIT], ids=str)
def test_mean_spectra_equal_numpy(family):
    model, images = family.create(), images_of(family, 5)
    want = hooked_sites(copy.deepcopy(model), images)
    measured = measure(model, images.split([2, 1, 2]), spectra=True)
    spectra = {(s.layer, s.site): s for s in measured.spectra}
    assert len(spectra) == len(measured.spectra) >= 4 * len(blocks_of(model))
    checked = 0
    for key, X in want.items():
        if key not in spectra:
            continue
        got = spectra[key]
        assert (got.n, got.d) == X.shape[1:] and len(got.log_sigma) == min(X.shape[1:])
        mean, std, floor = numpy_spectrum(X)
        resolved = mean > floor + 3  # rounding of float32 activations and of their square is under that
        assert np.array(got.log_sigma)[resolved] == pytest.approx(mean[resolved], abs=1e-3)
        assert np.array(got.std)[resolved] == pytest.approx(std[resolved], abs=1e-3)
        assert got.floor == pytest.approx(floor, abs=1e-5)
        assert resolved.sum() >= min(3, len(resolved))
        checked += 1
    assert checked >= 3 * len(blocks_of(model))


def test_one_decomposition_serves_rows_and_spectra(monkeypatch):
    shapes = []
    spectrum = q.spectrum
    monkeypatch.setattr(q, "spectrum", lambda X: (shapes.append(tuple(X.shape)), spectrum(X))[1])
    measured = measure(VIT.create(), [images_of(VIT)], attention=False, spectra=True)
    assert len(measured.spectra) == 10 and len(shapes) == 5 + 4
    assert measure(VIT.create(), [images_of(VIT)], attention=False).spectra == []
    assert measured.rows == probe(VIT.create(), [images_of(VIT)], attention=False)


class Patched(nn.Module):
    """Writes into the stream before the blocks: image 0 zero, 1 broken, 2 (if any) rank-deficient."""

    def forward(self, x):
        x = x.clone()
        x[0] = 0
        x[1, 0, 0] = torch.inf
        x[2:3] = x[2:3, :1]
        return x


def test_spectra_of_what_is_deficient_zero_or_broken():
    model = VIT.create()
    model.norm_pre = Patched()
    images = images_of(VIT, 4)

    def entry(measured):
        return next(s for s in measured.spectra if (s.layer, s.site) == (0, "sab_in"))

    measured = measure(model, [images], spectra=True)
    got, alone = entry(measured), entry(measure(VIT.create(), [images[3:]], spectra=True))
    assert got.log_sigma[0] == 0 and got.std[0] == 0
    assert got.log_sigma[-1] is not None and alone.log_sigma[-1] is not None
    assert got.log_sigma[-1] <= alone.log_sigma[-1] + 1e-9
    assert measured.not_finite[0, "sab_in"] == 1
    nothing = entry(measure(model, [images[:2]], spectra=True))
    assert set(nothing.log_sigma) == {None} and set(nothing.std) == {None} and nothing.floor is None
    assert measure(VIT.create(), [images]).not_finite == {}


def test_attention_that_is_no_softmax_has_no_rows():
    model = VIT.create()
    model.blocks[1].attn.attn_drop.register_forward_pre_hook(lambda _m, inputs: (2 * inputs[0],))
    model.blocks[1].attn.fused_attn = False
    measured = measure(model, [images_of(VIT), images_of(VIT)])
    sites = {(row.layer, row.site) for row in measured.rows}
    assert (0, "attention") in sites and (0, "head_0") in sites
    assert not {(1, "attention"), (1, "head_0")} & sites and (1, "sab_out") in sites
    assert "do not sum to 1" in measured.no_map[1] and 0 not in measured.no_map


@pytest.mark.gpu
def test_a_gpu_is_waited_for_once_in_a_batch():
    family = Family(name="vit_tiny_patch16_224", patch=16, size=32, options={"img_size": 32, **SMALL})
    model, images = family.create().cuda(), images_of(family, 4).cuda()
    probe(model, [images])  # the solver is loaded at the first use
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            probe(model, [images, images, images])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [w for w in waits if "synchroniz" in str(w.message)]
    assert len(waits) <= 3, [str(w.message) for w in waits]
