"""Adapters, cut skips and Jacobians on CUDA: the same bits as timm there, the same numbers as on the CPU."""

import copy

import block_cases
import pytest
import torch
from block_cases import VIT, images_of, outcome
from oracles import TOLERANCE

import wellcond as wc
from wellcond.blocks import adapt, normalise, record, sub_block
from wellcond.jacobian import jacobian_spectrum, ntk_condition

pytestmark = pytest.mark.gpu
FAMILIES = block_cases._NAMED


@pytest.fixture(autouse=True)
def _deterministic(monkeypatch):
    """Two passes of timm's own model must agree before ours can be asked to; and float32 products in full."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision(before)
    torch.cuda.synchronize()


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_bit_identical_at_gain_one(family, training):
    model, images = family.create().cuda(), images_of(family, 3).cuda()
    start = copy.deepcopy(model.state_dict())
    runs = []
    for turn in range(3):  # timm's twice, then ours
        model.load_state_dict(start)
        if turn == 2:
            adapt(model, images)
        runs.append(outcome(model, images, training))
    once, again, ours = runs
    assert torch.equal(once["out"], again["out"])
    for name, want in once.items():
        if want is None:
            assert ours[name] is None
        elif torch.equal(want, again[name]):
            assert torch.equal(want, ours[name]), name
        else:  # a kernel of timm's own model that adds in another order each time
            torch.testing.assert_close(ours[name], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_cut_skips_equal_those_on_the_cpu(family):
    model, images = family.create().double().eval(), images_of(family, 2).double()
    wc.cut_skips(model)
    want = model(images)
    got = model.cuda()(images.cuda()).cpu()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)  # XCiT without skips turns rounding into 1e-8


def test_compiled_under_autocast_with_cut_skips():
    model, images = VIT.create().cuda().eval(), images_of(VIT, 4).cuda()
    wc.cut_skips(model, mlp=False)
    with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
        want, got = model(images), torch.compile(model)(images)
    torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("method", ["exact", "lanczos"])
@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_jacobian_equals_that_on_the_cpu(part, method):
    def spectrum(device):
        torch.manual_seed(0)
        model, images = VIT.create().double().eval().to(device), images_of(VIT, 2).double().to(device)
        block = adapt(model)[0]
        with record(model) as sites, torch.no_grad():
            model(images)
        site = sites[0, "sab_in" if part == "attention" else "sab_sum"]
        X = normalise(block, part, site)
        return jacobian_spectrum(sub_block(block, part), X, method=method, module=block)

    want, got = spectrum("cpu"), spectrum("cuda")
    assert got.sigma.device.type == "cuda" or method == "lanczos"
    top = want.sigma[..., :1]
    close = (got.sigma.cpu() - want.sigma).abs() <= TOLERANCE["float64"] * 1e3 * top + want.error + got.error.cpu()
    assert close.all()


def test_ntk_equals_that_on_the_cpu():
    torch.manual_seed(0)
    layer, X = torch.nn.Linear(4, 3).double(), torch.randn(2, 5, 4, dtype=torch.float64)
    want = ntk_condition(layer, layer, X)
    got = ntk_condition(layer.cuda(), layer, X.cuda())
    torch.testing.assert_close(got.log_kappa.cpu(), want.log_kappa.cpu(), rtol=1e-8, atol=1e-8)
