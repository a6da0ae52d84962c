"""asa-proxy and asa-kappa: their numbers against numpy and jacrev, their verdicts on made-up runs, through the CLI."""

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from timm.layers.attention import Attention
from torch import nn

import wellcond as wc
from wellcond.cli import main
from wellcond.reproduction import kappa, kappa_bounds, models, proxy, proxy_verdict


def log_kappa(X):
    sigma = np.linalg.svd(np.asarray(X, np.float64), compute_uv=False)
    return math.log(sigma[0] / sigma[-1])


def scipy_spearman(x, y):
    found: Any = scipy.stats.spearmanr(x, y)
    return found.statistic


# ---- models


def test_models_are_drawn_from_their_seed_and_leave_the_global_state():
    state = torch.random.get_rng_state()
    first, second, other = (models.build(proxy.QUICK["n < d"], "linear", seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    images, labels = models.pictures(4, 16, 0)
    assert torch.equal(first(images), second(images)) and not torch.equal(first(images), other(images))
    assert images.shape == (4, 3, 16, 16) and labels.tolist() == [0, 1, 2, 3]


def test_training_is_repeatable_and_learns():
    shape = proxy.QUICK["n ≥ d"]
    images, labels = models.pictures(20, shape.side, 0)
    model, again = (models.build(shape, "softmax", 0) for _ in range(2))
    before = nn.functional.cross_entropy(model(images), labels)
    assert models.train_(model, images, labels, 60, 0) == models.train_(again, images, labels, 60, 0)
    assert nn.functional.cross_entropy(model(images), labels) < before and not model.training
    assert torch.equal(model(images), again(images))


# ---- asa-proxy


def by_hand(block, part, x):
    """(what the branch reads, the branch) of one image, without anything of wellcond's."""
    if part == "attention":
        return block.norm1(x), lambda y: block.attn(y)
    x = x + block.attn(block.norm1(x))
    return block.norm2(x), lambda y: block.mlp(y)


@pytest.mark.parametrize("variant", ["n ≥ d, softmax, initial", "n < d, linear, initial"])
def test_proxy_measures_what_it_says(variant):
    curves = proxy.measure(variant, 3, quick=True)["curves"]
    regime, attention, _ = variant.split(", ")
    shape = proxy.QUICK[regime]
    model: Any = models.build(shape, attention, 3).double()
    images, _ = models.pictures(proxy.NUM_PICTURES, shape.side, 3, first=1_000_000)
    with torch.no_grad():
        x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images.double()))))
    for curve in [c for c in curves if c["layer"] == 0]:
        outs, jacobians = [], []
        for image in x:
            Y, branch = by_hand(model.blocks[0], curve["part"], image[None])
            Y = Y.detach()
            outs.append(log_kappa(branch(Y)[0].detach()))
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                J = torch.func.jacrev(lambda y, f=branch: f(y[None])[0])(Y[0])
            jacobians.append(log_kappa(J.detach().reshape(Y[0].numel(), -1)))
        assert curve["out"][0] == pytest.approx(np.mean(outs), rel=1e-4)
        assert curve["jacobian"][0] == pytest.approx(np.mean(jacobians), rel=1e-4)
    assert (
        len({tuple(c["out"]) for c in curves}) == len(curves) and len(set(curves[0]["out"])) == 3
    )  # graying moves them


def made_up(variant, seed, relation, noise=0.0):
    rng = np.random.default_rng(seed)
    curves = []
    for layer in range(3):
        for part in ("attention", "mlp"):
            out = rng.normal(5, 1, 11)
            jacobian = relation(out) + noise * rng.standard_normal(11)
            curves.append({"layer": layer, "part": part, "out": out.tolist(), "jacobian": jacobian.tolist()})
            curves[-1]["ntk"] = (2 * out).tolist()
    return {"variant": variant, "seed": seed, "curves": curves}


def test_proxy_verdicts():
    runs = [made_up("up", seed, np.exp) for seed in range(4)]
    runs += [made_up("down", seed, np.negative) for seed in range(4)]
    runs += [made_up("noise", seed, np.zeros_like, 1.0) for seed in range(4)]
    runs += [made_up("one", 0, np.exp)]
    judgement = proxy.judge(runs)
    verdicts = {row.name: row.verdict for row in judgement.rows}
    assert len(verdicts) == 12
    assert verdicts["up, attention"] == verdicts["up, attention and mlp"] == "a proxy"
    assert verdicts["down, mlp"] == "reversed" and verdicts["one, mlp"] == "one seed"
    assert "attention: a proxy 1, reversed 1" in judgement.verdict
    assert verdicts["noise, attention and mlp"] in ("not shown", "weakly")
    row = next(row for row in judgement.rows if row.name == "noise, mlp")
    points = [c for run in runs if run["variant"] == "noise" for c in run["curves"] if c["part"] == "mlp"]
    x, y = (np.concatenate([c[name] for c in points]) for name in ("out", "jacobian"))
    assert row.value == pytest.approx(scipy_spearman(x, y), abs=1e-4)
    same = [scipy_spearman(c["out"], c["jacobian"]) for c in points]
    assert row.more["same_block"]["value"] == pytest.approx(np.mean(same), abs=1e-4)
    assert row.more["output_ntk"]["value"] == 1.0 and len(row.values) == 4


def test_a_seed_that_is_drawn_twice_counts_twice():
    points = [
        proxy_verdict._points(made_up("v", seed, relation), ["mlp"])
        for seed, relation in enumerate((np.exp, np.negative))
    ]
    assert proxy_verdict._within(np.concatenate(points)) == pytest.approx(0)
    assert proxy_verdict._within(np.concatenate([points[0], *points])) == pytest.approx(1 / 3)


def test_proxy_counts_what_it_leaves_out():
    runs = [made_up("v", seed, np.exp) for seed in range(3)]
    for run in runs:
        for curve in run["curves"]:
            curve["jacobian"][3] = None
            if curve["part"] == "attention":
                curve["out"] = [None] * 11
    attention, mlp, both = proxy.judge(runs).rows
    assert attention.value is None and attention.verdict == both.verdict == "rank-deficient"
    assert both.more["output_ntk"]["value"] is None  # it would be that of the MLP alone
    assert (attention.more["num_points"], attention.more["num_left_out"]) == (0, 99)
    assert (mlp.more["num_points"], mlp.more["num_left_out"], mlp.more["num_jacobian_infinite"]) == (90, 9, 9)
    assert mlp.verdict == "a proxy"


def test_proxy_through_the_command_line(tmp_path, capsys):
    assert main(["reproduce", "asa-proxy", "--quick", "--seeds", "2", "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "asa-proxy.json").read_text())
    rows = {row["name"]: row for row in content["rows"]}
    assert rows["n ≥ d, linear, initial, attention"]["verdict"] == "rank-deficient"
    assert rows["n < d, linear, initial, attention"]["num_left_out"] == 0
    assert -1 <= rows["n ≥ d, softmax, trained, mlp"]["value"] <= 1
    assert "asa-proxy.json" in capsys.readouterr().out


# ---- asa-kappa


def bounded_attention(d=6):
    attention: Any = wc.set_attention(Attention(d, num_heads=1).double(), "linear", k=3)
    nn.init.zeros_(attention.proj.bias)
    return attention


def test_the_cubic_bound_is_numpys_and_holds():
    attention, X = bounded_attention(), torch.randn(4, 11, 6, dtype=torch.float64)
    bound, why = kappa_bounds.cubic_bound(attention, X)
    W = [w.detach().numpy() for w in (*attention.qkv.weight.chunk(3), attention.proj.weight)]
    want = sum(log_kappa(w) for w in W) + 3 * np.mean([log_kappa(x) for x in X])
    assert why == "" and bound == pytest.approx(want)
    for x in X:
        own, _ = kappa_bounds.cubic_bound(attention, x[None])
        assert own is not None and log_kappa(attention(x[None])[0].detach()) <= own


@pytest.mark.parametrize(
    ("change", "n", "why"),
    [(lambda a: wc.set_attention(a, "softmax"), 11, "softmax"), (lambda a: a, 5, "n < d"),
     (lambda a: setattr(a, "num_heads", 2), 11, "2 heads"), (lambda a: nn.init.ones_(a.proj.bias), 11, "biases")],
    ids=["softmax", "wide", "heads", "bias"],
)  # fmt: skip
def test_the_cubic_bound_says_where_it_does_not_apply(change, n, why):
    attention = bounded_attention()
    change(attention)
    bound, reason = kappa_bounds.cubic_bound(attention, torch.randn(1, n, 6, dtype=torch.float64))
    assert bound is None and why in reason


def test_the_cubic_bound_of_rank_deficient_tokens_says_nothing():
    X = nn.functional.layer_norm(torch.randn(1, 11, 6, dtype=torch.float64), (6,))
    bound, reason = kappa_bounds.cubic_bound(bounded_attention(), X)
    assert bound is None and "infinite" in reason


def test_the_semidefinite_case_is_numpys():
    X = np.random.default_rng(0).standard_normal((9, 5))
    M = X.T @ X / 4
    found = kappa_bounds.semidefinite_case(torch.from_numpy(X)[None], 4.0)
    assert found["out"] == pytest.approx(log_kappa(X @ M))
    assert found["sum"] == pytest.approx(log_kappa(X @ M + X))
    eigenvalues = np.linalg.eigvalsh(M)
    assert found["bound"] == pytest.approx(log_kappa(X) + math.log((1 + eigenvalues[-1]) / (1 + eigenvalues[0])))
    assert found["sum"] <= found["bound"] + 1e-12


@pytest.mark.parametrize("variant", ["n < d, linear", "n ≥ d, softmax"])
def test_kappa_measures_what_it_says(variant):
    run = kappa.measure(variant, 0, quick=True)
    shape = kappa.QUICK[variant]
    model: Any = models.build(shape, variant.split(", ")[1], 0).double()
    images, _ = models.pictures(kappa.NUM_PICTURES, shape.side, 0)
    with torch.no_grad():
        x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images.double()))))
        for layer, block in enumerate(model.blocks):
            out = block.attn(block.norm1(x))
            total = x + out
            mlp = block.mlp(block.norm2(total))
            sites = {"sab_in": x, "sab_out": out, "sab_sum": total, "ffn_out": mlp, "ffn_sum": total + mlp}
            x = total + mlp
            for site, X in sites.items():
                want = np.mean([log_kappa(tokens) for tokens in X])
                assert run["log_kappa"][site][layer] == pytest.approx(want, abs=1e-3)
    spectrum = next(s for s in run["spectra"] if s["site"] == "ffn_sum" or s["site"] == "sab_in")
    sigma = np.linalg.svd(sites_of(model, images), compute_uv=False)
    np.testing.assert_allclose(spectrum["log_sigma"], np.log(sigma / sigma[0]), atol=1e-3)
    assert not any(kappa.measure(variant, 1, quick=True)["spectra"])


def sites_of(model, images):
    """The first block's input on the first picture."""
    with torch.no_grad():
        return model._pos_embed(model.patch_embed(images.double()))[0].numpy()


def test_kappa_leaves_out_blocks_without_a_number():
    logs = {"sab_out": [5.0, None, 9.0, 8.0], "sab_sum": [1.0, 2.0, 3.0, 4.0]}
    none = [0, 0, 0, 0]
    run: Any = {"log_kappa": logs, "num_infinite": {"sab_out": [0, 2, 0, 1], "sab_sum": none}}
    assert kappa._gap(run) == 5.0  # of blocks 0 and 2
    run["num_infinite"]["sab_out"] = [1, 2, 0, 1]
    assert kappa._gap(run) is None


def test_kappa_verdicts():
    assert kappa._verdict(3.0, (1.5, 4.5), 0) == kappa.AS_IN_THE_PAPER
    assert "not far" in kappa._verdict(0.7, (0.2, 1.2), 0)
    assert kappa._verdict(-1.0, (-2.0, -0.1), 0).startswith("reversed")
    assert kappa._verdict(0.1, (-1.0, 1.2), 0) == "not shown"
    assert "SA(X) is rank-deficient" in kappa._verdict(None, None, 3)
    assert "one seed" in kappa._verdict(1.0, None, 0)


def test_kappa_through_the_command_line(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["reproduce", "asa-kappa", "--quick", "--seeds", "2", "--out", str(tmp_path), "--html", str(page)]) == 0
    content = json.loads((tmp_path / "asa-kappa.json").read_text())
    rows = {row["name"]: row for row in content["rows"]}
    assert len(rows) == 5
    linear = rows["n ≥ d, linear"]
    assert (
        linear["value"] is None
        and linear["sab_out_rank_deficient"] == "8 of 8"
        and "3 heads" in linear["cubic_why_not"]
    )
    assert "n < d" in rows["n < d, linear"]["cubic_why_not"]
    one = rows[kappa.ONE_HEAD]
    assert one["cubic_why_not"] == "" and one["log_kappa"]["sab_out"] <= one["cubic_bound"]
    for run in [run for run in content["runs"] if run["variant"] == kappa.ONE_HEAD]:
        for layer, bound in enumerate(run["bounds"]):
            assert run["log_kappa"]["sab_out"][layer] <= bound["cubic"] + 1e-3
    assert "The paper's picture does not appear" in content["verdict"] and "n ≥ d, linear" in content["verdict"]
    html = page.read_text()
    for name in rows:
        assert name.replace("<", "&lt;") in html
    assert "The bound of Proposition 4.1 does not apply" in html and "LayerNorm without a bias" in html
    assert html.count("This figure needs JavaScript") == 10
