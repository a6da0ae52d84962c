"""`probe` as a whole: every family, batches, what is not finite, what is left behind, bad input."""

import copy
import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch
from block_cases import MODELS, SWIN, VIT, blocks_of, images_of
from test_generic_blocks import OwnModel
from torch import nn

from wellcond.probes import QUANTITIES, TOKEN_QUANTITIES, Row, probe
from wellcond.probes import quantities as q


def table(rows):
    return {(row.layer, row.site, row.quantity): row for row in rows}


@pytest.mark.parametrize("family", MODELS, ids=str)
def test_every_family_is_probed_and_left_as_it_was(family):
    model, images = family.create().train(), images_of(family)
    next(model.children()).eval()  # a frozen part
    modes = [module.training for module in model.modules()]
    kinds, keys = [type(m) for m in model.modules()], [sorted(m.__dict__) for m in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    rows = probe(model, [images], quantities=QUANTITIES)
    json.dumps([dataclasses.asdict(row) for row in rows], allow_nan=False)
    assert [row.layer for row in rows] == sorted(row.layer for row in rows)
    assert {row.layer for row in rows} == set(range(len(blocks_of(model))))
    assert [module.training for module in model.modules()] == modes
    assert [type(m) for m in model.modules()] == kinds
    assert [sorted(m.__dict__) for m in model.modules()] == keys
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("family", [VIT, SWIN], ids=str)
def test_batches_merge(family):
    model, images = family.create(), images_of(family, 7)
    whole = table(probe(model, [images]))
    for sizes in ([3, 4], [1] * 7, [6, 1]):
        split = table(probe(model, iter(images.split(sizes))))
        assert split.keys() == whole.keys()
        for key, row in whole.items():
            assert (split[key].num_images, split[key].num_infinite) == (7, row.num_infinite)
            for column in ("value", "std", "floor_count"):
                want = getattr(row, column)
                got = getattr(split[key], column)
                assert got == want or got == pytest.approx(want, rel=1e-4, abs=1e-5), (key, column)


def test_moments_do_not_cancel():
    from wellcond.probes.rows import Moments, moments_of

    values = 1e9 + np.random.default_rng(0).standard_normal(1000)
    moments = Moments()
    for part in np.array_split(values, 13):
        moments.add(*moments_of(np.append(part, np.inf)[None])[0])
    assert moments.mean == pytest.approx(values.mean(), rel=1e-15)
    assert moments.std == pytest.approx(values.std(), rel=1e-6)
    assert (moments.num_finite, moments.num_infinite) == (1000, 13)


def test_rank_deficient_zero_and_broken_tokens():
    torch.manual_seed(0)
    X = torch.randn(5, 6, 4)
    X[1, :, 3] = X[1, :, 0] + X[1, :, 1]  # rank 3
    X[2] = 0
    X[3, 0, 0] = torch.nan
    X[4, 2:] = 0
    got = q.of_tokens(X, TOKEN_QUANTITIES)
    assert got["log_kappa"].isfinite().tolist() == [True, False, False, False, False]
    assert got["log_kappa"][1] == torch.inf and got["log_kappa"][4] == torch.inf
    assert got[q.FLOOR][[0, 1, 2, 4]].tolist() == [0, 1, 4, 2] and got[q.FLOOR][3].isnan()
    for name in ("effective_rank", "stable_rank", "token_cosine", "kurtosis"):
        assert got[name].isfinite().tolist() == [True, True, False, False, True], name
    x, y = X[4, 0].double(), X[4, 1].double()  # two tokens that are not zero
    assert got["token_cosine"][4].item() == pytest.approx(float(x @ y / x.norm() / y.norm()), rel=1e-12)
    assert q.kurtosis(torch.full((1, 3, 7), 0.1)).isnan().all()
    assert q.token_cosine(X[:1, :1]).isnan().all()


def test_kurtosis_of_a_gaussian_is_three():
    assert q.kurtosis(torch.randn(1, 1000, 1000)).item() == pytest.approx(3, abs=0.02)
    assert q.kurtosis(1e-30 * torch.randn(1, 300, 300).double()).item() == pytest.approx(3, abs=0.1)


class Patched(nn.Module):
    """Writes into the stream before the blocks: image 0 rank-deficient, 1 zero, 2 broken."""

    def forward(self, x):
        x = x.clone()
        x[0] = x[0, :1]
        x[1] = 0
        x[2, 0, 0] = torch.inf
        return x


def test_rows_count_what_is_not_finite_and_hold_no_nan():
    model = VIT.create()
    model.norm_pre = Patched()
    rows = probe(model, [images_of(VIT, 4)])
    json.dumps([dataclasses.asdict(row) for row in rows], allow_nan=False)
    by = table(rows)
    entry = by[0, "sab_in", "log_kappa"]
    n, d = entry.n, entry.d
    assert (entry.num_images, entry.num_infinite) == (4, 3)
    assert entry.floor_count == pytest.approx((min(n, d) - 1 + min(n, d) + 0) / 3)
    assert by[0, "sab_in", "effective_rank"].num_infinite == 2
    assert by[0, "attention", "attention_entropy"].num_infinite == 1  # uniform for the first two
    assert by[0, "attention", "attention_log_kappa"].num_infinite == 3
    assert by[0, "sab_in", "kurtosis"].floor_count == 0
    alone = table(probe(model, [images_of(VIT, 4)[:3]], quantities=["log_kappa"]))[0, "sab_in", "log_kappa"]
    assert (alone.value, alone.std, alone.num_infinite) == (None, None, 3)


def test_one_decomposition_for_each_site_and_none_where_a_block_reads_the_last(monkeypatch):
    shapes = []
    spectrum = q.spectrum
    monkeypatch.setattr(q, "spectrum", lambda X: (shapes.append(tuple(X.shape)), spectrum(X))[1])
    rows = probe(VIT.create(), [images_of(VIT)], quantities=q.SPECTRAL)
    assert len(rows) == 2 * 5 * 3
    assert len(shapes) == 5 + 4  # the second block's input is the first one's output
    shapes.clear()
    probe(VIT.create(), [images_of(VIT)], quantities=["kurtosis", "token_cosine", "attention_entropy"])
    assert not shapes


class Overwritten(nn.Module):
    """Writes over its input: the same memory, other numbers."""

    def forward(self, x):
        return x.add_(torch.arange(x.shape[1])[:, None])


def test_a_stream_that_is_written_over_is_measured_again():
    model = VIT.create()
    model.blocks.insert(1, Overwritten())
    rows = table(probe(model, [images_of(VIT)], quantities=["kurtosis", "token_cosine"]))
    assert rows[1, "sab_in", "token_cosine"].value != rows[0, "ffn_sum", "token_cosine"].value


def test_nothing_is_left_after_an_exception():
    model = VIT.create().train()
    keys = [sorted(m.__dict__) for m in model.modules()]
    kinds = [type(m) for m in model.modules()]

    def broken():
        yield images_of(VIT)
        raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        probe(model, broken())
    with pytest.raises(ValueError, match="takes 32 × 32 px"):
        probe(model, [images_of(VIT), torch.zeros(1, 3, 48, 48)])
    assert all(m.training for m in model.modules())
    assert [type(m) for m in model.modules()] == kinds
    assert [sorted(m.__dict__) for m in model.modules()] == keys


def test_inference_mode_autocast_and_half_precision():
    model, images = VIT.create(), images_of(VIT)
    want = table(probe(model, [images]))
    with torch.inference_mode():
        assert table(probe(model, [images])) == want
    with torch.autocast("cpu", torch.bfloat16):
        half = table(probe(model, [images]))
    assert half.keys() == want.keys()
    key = (0, "sab_out", "effective_rank")
    assert half[key].value == pytest.approx(want[key].value, rel=0.05)
    probe(copy.deepcopy(model).bfloat16(), [images.bfloat16()])
    exact = table(probe(copy.deepcopy(model).double(), [images.double()]))
    assert exact[key].value == pytest.approx(want[key].value, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": "class"}, "tokens='class'"),
        ({"quantities": ["kapa"]}, "'kapa'"),
        ({"quantities": []}, "nothing to measure"),
        ({"quantities": ["attention_entropy"], "attention": False}, "nothing to measure"),
        ({"batches": torch.zeros(2, 3, 32, 32)}, "one tensor"),
        ({"batches": [torch.zeros(3, 32, 32)]}, r"\(3, 32, 32\)"),
        ({"batches": [(torch.zeros(2, 3, 32, 32), torch.zeros(2))]}, "a tuple"),
        ({"batches": []}, "no images"),
        ({"batches": [torch.zeros(0, 3, 32, 32)]}, "no images"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        probe(**{"model": VIT.create(), "batches": [images_of(VIT)], **change})


def test_sizes_do_not_mix():
    model = VIT.create(dynamic_img_size=True)
    with pytest.raises(ValueError, match="images of one size"):
        probe(model, [images_of(VIT), torch.randn(1, 3, 64, 64)])


def test_rows_are_frozen():
    row = probe(VIT.create(), [images_of(VIT)], quantities="kurtosis")[0]
    assert isinstance(row, Row) and isinstance(row.value, float)
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.value = 0.0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.gpu
@pytest.mark.parametrize("family", [VIT, SWIN], ids=str)
def test_gpu_equals_cpu(family):
    model, images = family.create().double(), images_of(family, 3).double()
    want = table(probe(model, [images]))
    got = table(probe(model.cuda(), [images]))
    for key, row in want.items():
        assert got[key].num_infinite == row.num_infinite
        assert row.value is None or got[key].value == pytest.approx(row.value, rel=1e-6, abs=1e-8), key


def test_blocks_that_are_not_timms():
    model: Any = OwnModel("pre")
    images = torch.randn(3, 3, 32, 32)
    rows = probe(model, [images])
    assert {row.layer for row in rows} == {0, 1} and not any(row.site == "attention" for row in rows)
    assert not any("attention_gain" in module.__dict__ for module in model.modules())
    with pytest.raises(ValueError, match="num_prefix_tokens"):
        probe(model, [images], tokens="patch")
    model.num_prefix_tokens = 2
    assert {row.n for row in probe(model, [images], tokens="patch")} == {rows[0].n - 2}
