"""CUDA against the float64 oracle on the CPU: precisions, streams, chunks, NaN, synchronisation, fallback."""

import copy
import functools
import math
import warnings
from dataclasses import replace

import cases
import numpy as np
import oracles
import pytest
import torch
from families import FAMILIES, VIT, assert_same_gradients, by_oracle, gap
from oracles import FAST, LOG_KAPPA, LOG_SIGMA, MODEL_FAST, TOLERANCE

import wellcond as wc
from wellcond.spectral import eigen

pytestmark = pytest.mark.gpu
PATHS = [("svd", "exact"), ("svd", "fast"), ("dct", "exact"), ("dct", "fast")]
by_path = pytest.mark.parametrize(("method", "precision"), PATHS)
EPSILON = {"svd": 0.6, "dct": 0.9}
SYMMETRIC = [(3, 12, 12), (0, 5, 5), (1, 1, 1), (9, 9), (2, 3, 196, 196), (4097, 8, 8)]
BATCHES = [(1, 64, 48), (3, 64, 64), (5000, 16, 48), (1111, 64, 192), (600, 196, 768)]
BAR = {"exact": TOLERANCE["float32"], "fast": FAST}


@pytest.fixture(autouse=True)
def _full_float32():
    """Bars are measured with torch's own default: no TF32 unless the code asks for it itself."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
    torch.cuda.synchronize()


@functools.cache
def photo_like() -> torch.Tensor:
    """(8, 196, 768): 224 px images in patches of 16, on the CPU."""
    return torch.from_numpy(oracles.unfold(cases.images(8, 3, 224, 224).numpy(), 16))


@functools.cache
def photo_wanted(method: str) -> np.ndarray:
    return oracles.gray_tokens(photo_like().numpy(), method, EPSILON[method])


def error(got: torch.Tensor, want: np.ndarray) -> float:
    return oracles.relative_error(got.cpu().double().numpy(), want)


@pytest.mark.parametrize("case", cases.EXACT, ids=str)
def test_numbers(case):
    X = case.tensor()
    sigma, want = wc.singular_values(X.cuda()).cpu(), oracles.singular_values(cases.stored(X))
    assert np.abs(sigma.double().numpy() - want).max() <= TOLERANCE[case.name] * want.max()
    assert wc.numerical_floor(X.cuda()).tolist() == oracles.numerical_floor(cases.stored(X)).tolist()
    kappa = np.log(oracles.condition_number(cases.stored(X)))
    np.testing.assert_allclose(wc.condition_number(X.cuda(), log=True).cpu().numpy(), kappa, atol=LOG_KAPPA)


@pytest.mark.parametrize("case", cases.STEEP, ids=str)
def test_log_kappa_up_to_a_million(case):
    X = case.tensor()
    want = np.log(oracles.condition_number(cases.stored(X)))
    assert np.abs(wc.condition_number(X.cuda(), log=True).cpu().numpy() - want).max() <= LOG_KAPPA


@by_path
@pytest.mark.parametrize("case", cases.EXACT, ids=str)
def test_prescribed_spectra(case, method, precision):
    X = case.tensor()
    got = wc.gray_tokens(X.cuda(), method, 0.5, precision=precision)
    assert got.is_cuda and got.dtype == X.dtype
    want = oracles.gray_tokens(cases.stored(X), method, 0.5)
    bar = FAST if precision == "fast" and case.dtype == torch.float32 else TOLERANCE[case.name]
    assert error(got, want) <= bar
    if method == "svd" and case.spectrum != "rank-deficient" and case.dtype == torch.float32:
        sigma = oracles.singular_values(got.cpu().numpy())
        assert np.abs(np.log(sigma) - np.log(oracles.singular_values(want))).max() <= LOG_SIGMA[precision]


@by_path
def test_photograph_sized_tokens(method, precision):
    got = wc.gray_tokens(photo_like().cuda(), method, EPSILON[method], precision=precision)
    assert error(got, photo_wanted(method)) <= BAR[precision]


@by_path
@pytest.mark.parametrize("name", cases.PHOTOGRAPHS)
def test_photographs(name, method, precision):
    X = oracles.unfold(cases.photographs(name).numpy(), cases.PHOTOGRAPHS[name][2])
    epsilon = 0.5 if method == "svd" else 0.85
    got = wc.gray_tokens(torch.from_numpy(X).cuda(), method, epsilon, precision=precision)
    assert error(got, oracles.gray_tokens(X, method, epsilon)) <= BAR[precision]


@by_path
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype, method, precision):
    X = photo_like().to(dtype)
    got = wc.gray_tokens(X.cuda(), method, EPSILON[method], precision=precision)
    want = oracles.gray_tokens(cases.stored(X), method, EPSILON[method])
    assert got.dtype == dtype and error(got, want) <= max(BAR[precision], TOLERANCE[str(dtype)[6:]])


@by_path
def test_autocast_leaves_float32_inside(method, precision):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got = wc.gray_tokens(photo_like().cuda(), method, EPSILON[method], precision=precision)
    assert got.dtype == torch.float32 and error(got, photo_wanted(method)) <= BAR[precision]


@by_path
def test_constant_zero_and_empty(method, precision):
    X = torch.zeros(3, 196, 768)
    X[1:] = torch.from_numpy(oracles.unfold(cases.constant_images(2, 224, 224).numpy(), 16))
    got = wc.gray_tokens(X.cuda(), method, 0.9, precision=precision)
    assert not got[0].any() and torch.isfinite(got).all()
    assert error(got[1:], oracles.gray_tokens(X[1:].numpy(), method, 0.9)) <= BAR[precision]
    assert wc.gray_tokens(X[:0].cuda(), method, 0.9, precision=precision).shape == (0, 196, 768)
    assert wc.condition_number(X[:0].cuda()).shape == (0,)
    assert math.isnan(wc.condition_number(X.cuda())[0])


@by_path
def test_side_streams(method, precision):
    """Each stream has its own input and must not read the other's workspace or outrun its own input."""
    streams = [torch.cuda.Stream() for _ in range(2)]
    inputs, results = [], []
    for repeat in range(10):
        for k, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                X = photo_like().cuda(non_blocking=True) * (1 + k + repeat)
                inputs.append(1 + k + repeat)
                results.append(wc.gray_tokens(X, method, EPSILON[method], precision=precision))
    torch.cuda.synchronize()
    for scale, Y in zip(inputs, results, strict=True):
        assert error(Y, scale * photo_wanted(method)) <= BAR[precision]


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_any_batch_size(shape, precision):
    """Large batches may be worked off in chunks; first, last and middle matrices are compared."""
    rng = torch.Generator("cuda").manual_seed(0)
    X = torch.randn(*shape, device="cuda", generator=rng) * torch.logspace(0, -2, shape[-1], device="cuda")
    Y = wc.gray_tokens(X, "svd", 0.6, precision=precision)
    assert torch.isfinite(Y).all()
    for index in sorted({0, shape[0] // 3, shape[0] // 2, shape[0] - 1}):
        want = oracles.gray_svd(X[index].cpu().numpy(), 0.6)
        assert error(Y[index], want) <= BAR[precision]
    sigma = wc.singular_values(X)
    torch.testing.assert_close(sigma.square().sum(-1), X.square().sum((-2, -1)), rtol=1e-4, atol=0)


@by_path
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_stays_in_its_own_image(method, precision, value):
    X = photo_like().cuda()
    clean = wc.gray_tokens(X, method, EPSILON[method], precision=precision)
    before = eigen.solver_name(X.device)
    X[3, 5, 7] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the guard may speak, now or at the next call
        dirty = wc.gray_tokens(X, method, EPSILON[method], precision=precision)
        others = [i for i in range(8) if i != 3]
        assert not torch.isfinite(dirty[3]).all()
        assert gap(dirty[others], clean[others]) <= 1e-6
        again = wc.gray_tokens(X[others], method, EPSILON[method], precision=precision)
    assert gap(again, clean[others]) <= 1e-5
    assert eigen.solver_name(X.device) == before  # one bad image does not cost the fast solver


@by_path
def test_no_host_synchronisation(method, precision):
    X, images = photo_like().cuda(), cases.images(8, 3, 224, 224).cuda()
    module = wc.TokenGraying(16, method, EPSILON[method], precision=precision)
    for _ in range(3):
        wc.gray_tokens(X, method, EPSILON[method], precision=precision)
        module(images)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pairs = [(wc.gray_tokens(X, method, EPSILON[method], precision=precision), module(images)) for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    Y, Z = pairs[-1]
    assert error(Y, photo_wanted(method)) <= BAR[precision]
    want = oracles.fold(photo_wanted(method), (3, 224, 224), 16)
    assert error(Z.flatten(1), want.reshape(8, -1)) <= BAR[precision]


def test_fallback_to_torch_with_one_warning(monkeypatch):
    """Without the cuSOLVER symbol everything still works, slower, and says so once."""
    X = photo_like()[:2].cuda()
    monkeypatch.setattr(eigen, "_library", lambda *args, **kwargs: None)
    monkeypatch.setattr(eigen, "_retired", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [wc.gray_tokens(X, "svd", 0.6) for _ in range(3)]
        assert eigen.solver_name(X.device) == "torch"
    assert len([w for w in caught if "wellcond" in w.filename or "cusolver" in str(w.message).lower()]) == 1
    for Y in results:
        assert error(Y, photo_wanted("svd")[:2]) <= BAR["exact"]


def test_the_batched_solver_is_used_where_torch_ships_it():
    """cuSOLVER has XsyevBatched in every CUDA 13 release; older ones may fall back."""
    allowed = {"cusolver-XsyevBatched"} if int((torch.version.cuda or "0").split(".")[0]) >= 13 else set()
    assert eigen.solver_name(torch.device("cuda")) in (allowed or {"cusolver-XsyevBatched", "torch"})
    assert eigen.solver_name(torch.device("cpu")) == "lapack"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", SYMMETRIC, ids=str)
def test_symmetric_eigensolver(shape, dtype):
    A = torch.randn(*shape, dtype=dtype, device="cuda")
    A = A + A.mT
    before = A.clone()
    values, vectors = eigen.eigh(A)
    bar = 1e-4 if dtype == torch.float32 else 1e-10
    assert torch.equal(A, before)
    assert error((vectors * values[..., None, :]) @ vectors.mT, A.cpu().numpy()) <= bar
    want = np.linalg.eigvalsh(A.cpu().double().numpy())
    only = eigen.eigvalsh(A).cpu().double().numpy()
    np.testing.assert_allclose(np.sort(only, -1), want, atol=bar * max(1, shape[-1]))


@pytest.mark.parametrize("method", EPSILON)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_models(family, method):
    plain = family.create()
    images = cases.images(3, 3, family.size, family.size)
    want = plain(by_oracle(images, family.patch, method, EPSILON[method]))
    model = wc.gray(copy.deepcopy(plain), method, EPSILON[method]).cuda()
    with torch.no_grad():
        assert gap(model(images.cuda()).cpu(), want) <= MODEL_FAST
        assert gap(model.cpu()(images), want) <= MODEL_FAST  # caches follow the device


@pytest.mark.parametrize("method", EPSILON)
def test_compiled_training_step(method):
    plain = VIT.create().cuda().train()
    model = wc.gray(copy.deepcopy(plain), method, EPSILON[method])
    images = cases.images(4, 3, 64, 64)
    step = torch.compile(model, fullgraph=method == "dct")
    step(images.cuda()).square().sum().backward()
    plain(by_oracle(images, 16, method, EPSILON[method]).cuda()).square().sum().backward()
    assert_same_gradients(model, plain, 10 * MODEL_FAST)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("shape", [(2, 3136, 48), (3, 49, 3072), (2, 1025, 6), (1, 1024, 1031)], ids=str)
def test_long_sides_by_fft(shape, precision):
    X = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 0.5
    want = oracles.gray_dct(X.double().numpy(), 0.9, True)
    assert error(wc.gray_tokens(X.cuda(), "dct", 0.9, precision=precision), want) <= BAR[precision]


def test_long_sides_of_a_compiled_and_captured_model():
    """n = 1024 of 128 px, d = 3072 of patch 32."""
    for patch, size in ((4, 128), (32, 64)):
        torch.compiler.reset()
        plain = replace(VIT, options={**VIT.options, "img_size": size, "patch_size": patch}).create().cuda().train()
        model = wc.gray(copy.deepcopy(plain), "dct", EPSILON["dct"])
        images = cases.images(2, 3, size, size)
        compiled = torch.compile(model, fullgraph=True)
        compiled(images.cuda()).square().sum().backward()
        want = plain(by_oracle(images, patch, "dct", EPSILON["dct"]).cuda())
        want.square().sum().backward()
        assert_same_gradients(model, plain, 10 * MODEL_FAST)
        static, graph = images.cuda(), torch.cuda.CUDAGraph()
        with torch.no_grad():
            compiled(static)
            with torch.cuda.graph(graph):
                got = compiled(static)
        graph.replay()
        assert gap(got.cpu(), want.detach().cpu()) <= MODEL_FAST


@pytest.mark.parametrize("epsilon", [0.5, 0.7, 0.95])
@pytest.mark.parametrize("kappa", [1.0, 3.0, 10.0])
def test_fast_on_flat_spectra(kappa, epsilon):
    """Where the top of the spectrum is flat, σ_max is hard for Lanczos."""
    for n, d in ((196, 768), (256, 192)):
        m = min(n, d)
        U, V = (torch.linalg.qr(torch.randn(k, m, dtype=torch.float64))[0] for k in (n, d))
        sigma = torch.logspace(0, -math.log10(kappa), m, dtype=torch.float64)
        X = ((U * sigma) @ V.mT).float()[None]
        noise = torch.randn(1, n, d)
        for Y in (X, noise):
            got = wc.gray_tokens(Y.cuda(), "svd", epsilon, precision="fast")
            assert error(got, oracles.gray_tokens(Y.double().numpy(), "svd", epsilon)) <= FAST


@by_path
def test_capture_in_a_cuda_graph(method, precision):
    X = photo_like().cuda()
    want = wc.gray_tokens(X, method, EPSILON[method], precision=precision)  # warms up, leaves health records behind
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = wc.gray_tokens(X, method, EPSILON[method], precision=precision)
    got.zero_()
    graph.replay()
    assert gap(got, want) <= 1e-5


def test_many_small_matrices():
    X = torch.randn(70_000, 8, 6)
    kappa = wc.condition_number(X.cuda()).cpu()
    pick = torch.arange(0, len(X), 997)
    want = torch.linalg.cond(X[pick].double())
    assert ((kappa[pick] - want) / want).abs().max() < 1e-4
    fast = wc.gray_tokens(X.cuda(), "svd", 0.7, precision="fast").cpu()
    assert error(fast[pick], oracles.gray_tokens(X[pick].double().numpy(), "svd", 0.7)) <= FAST
