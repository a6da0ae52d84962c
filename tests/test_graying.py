"""Token Graying against scipy's DCT, numpy's SVD and patches cut by loops ([A], Algorithms 1 and 2)."""

import cases
import numpy as np
import oracles
import pytest
import torch
from oracles import FAST, LOG_SIGMA, TOLERANCE

import wellcond as wc
from wellcond.graying import dct, fold_patches, unfold_patches

METHODS = ("svd", "dct")
RESCALE = (True, False, "contrast")
by_method = pytest.mark.parametrize("method", METHODS)
by_rescale = pytest.mark.parametrize("rescale", RESCALE)
by_case = pytest.mark.parametrize("case", cases.EXACT, ids=str)


def error(got: torch.Tensor, want: np.ndarray) -> float:
    return oracles.relative_error(got.double().numpy(), want)


@pytest.mark.parametrize("epsilon", [0.5, 0.95])
@by_method
@by_case
def test_exact(case, method, epsilon):
    X = case.tensor()
    got = wc.gray_tokens(X, method, epsilon)
    want = oracles.gray_tokens(cases.stored(X), method, epsilon)
    assert got.dtype == X.dtype and got.shape == X.shape and got.device == X.device
    assert error(got, want) <= TOLERANCE[case.name]


@pytest.mark.parametrize("epsilon", [0.5, 0.95])
@by_method
@pytest.mark.parametrize("case", cases.FLOAT32, ids=str)
def test_fast(case, method, epsilon):
    X = case.tensor()
    got = wc.gray_tokens(X, method, epsilon, precision="fast")
    assert error(got, oracles.gray_tokens(cases.stored(X), method, epsilon)) <= FAST


@pytest.mark.parametrize("epsilon", [0.5, 0.7])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("case", [c for c in cases.FULL_RANK if c.dtype == torch.float32], ids=str)
def test_every_singular_value_in_float32(case, precision, epsilon):
    X = case.tensor()
    got = oracles.singular_values(wc.gray_tokens(X, "svd", epsilon, precision=precision).numpy())
    want = oracles.singular_values(oracles.gray_svd(cases.stored(X), epsilon))
    assert np.abs(np.log(got) - np.log(want)).max() <= LOG_SIGMA[precision]


@by_rescale
@by_method
@pytest.mark.parametrize("shape", cases.SHAPES.values(), ids=cases.SHAPES)
def test_rescaling(shape, method, rescale):
    X = 5 * torch.randn(3, *shape, dtype=torch.float64)
    X[1] *= 100  # each matrix by its own maximum
    got = wc.gray_tokens(X, method, 0.7, rescale=rescale)
    assert error(got, oracles.gray_tokens(X.numpy(), method, 0.7, rescale)) <= TOLERANCE["float64"]
    if rescale == "contrast":
        torch.testing.assert_close(got.norm(dim=(-2, -1)), X.norm(dim=(-2, -1)))
    if rescale is False:
        tops = oracles.singular_values(got.numpy())[:, 0] if method == "svd" else None
        tops = np.abs(oracles.dct2(got.numpy())).max((-2, -1)) if tops is None else tops
        np.testing.assert_allclose(tops, 1, rtol=1e-10)


def test_defaults_are_those_of_the_paper():
    """DCT, ε = 0.95, multiplied back."""
    X = torch.randn(2, 9, 12, dtype=torch.float64)
    assert error(wc.gray_tokens(X), oracles.gray_dct(X.numpy(), 0.95)) <= TOLERANCE["float64"]
    images = cases.images(2, 3, 32, 48)
    want = oracles.gray_images(images.numpy(), 16, "dct", 0.95)
    assert error(wc.TokenGraying()(images), want) <= FAST


@by_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_tokens(dtype, method):
    """The arithmetic is float32 or better: the error is the rounding of the result."""
    X = torch.randn(3, 12, 30).to(dtype)
    got = wc.gray_tokens(X, method, 0.7)
    want = oracles.gray_tokens(cases.stored(X), method, 0.7)
    assert got.dtype == dtype and error(got, want) <= TOLERANCE[str(dtype)[6:]]
    rounding = error(torch.from_numpy(want).to(dtype), want)
    assert error(got, want) <= 1.2 * rounding


@by_method
@pytest.mark.parametrize("leading", [(), (1,), (0,), (2, 3), (2, 0)], ids=str)
def test_leading_dimensions(leading, method):
    X = torch.randn(*leading, 6, 10)
    got = wc.gray_tokens(X, method, 0.6)
    assert got.shape == X.shape
    assert error(got, oracles.gray_tokens(X.numpy(), method, 0.6)) <= TOLERANCE["float32"]


@by_rescale
@by_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_all_zero_stays_zero_among_others(dtype, method, rescale):
    X = torch.randn(3, 8, 12).to(dtype)
    X[1] = 0
    got = wc.gray_tokens(X, method, 0.5, rescale=rescale)
    assert not got[1].any() and torch.isfinite(got).all()
    want = oracles.gray_tokens(cases.stored(X), method, 0.5, rescale)
    assert error(got, want) <= TOLERANCE[str(dtype)[6:]]


@by_method
def test_rank_deficient_noise_is_not_amplified(method):
    """Grey pictures at patch 4: three equal channels, so a third of the width at most carries facts."""
    grey = cases.images(2, 1, 48, 48)[:, 0]
    images = torch.stack([(grey - m) / s for m, s in zip(cases.MEAN, cases.STD, strict=True)], 1)
    X = unfold_patches(images, 4)
    assert (oracles.numerical_floor(X.numpy()) > 20).all()
    got = wc.gray_tokens(X, method, 0.5)
    assert error(got, oracles.gray_tokens(X.numpy(), method, 0.5)) <= TOLERANCE["float32"]


@pytest.mark.parametrize("epsilon", [0.7, 0.95])
@pytest.mark.parametrize("precision", ["exact", "fast"])
@by_method
def test_constant_images(method, precision, epsilon):
    """One colour per image, 224 px: rank one, so SVD graying returns the image; no amplified noise."""
    images = cases.constant_images(3, 224, 224)
    epsilon = 0.85 if (method, epsilon) == ("dct", 0.7) else epsilon  # the range the paper sweeps
    got = wc.TokenGraying(16, method, epsilon, precision=precision)(images)
    want = oracles.gray_images(images.numpy(), 16, method, epsilon)
    assert error(got.flatten(1)[:, None], want.reshape(3, 1, -1)) <= (1e-5 if precision == "exact" else FAST)
    if method == "svd":
        assert error(got.flatten(1)[:, None], images.flatten(1)[:, None].numpy()) <= FAST


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 0.7])
@pytest.mark.parametrize("by_products", [False, True])
def test_rounding_noise_of_a_constant_image_is_not_amplified(by_products, epsilon, monkeypatch):
    """Every pixel alike: one coefficient, so nothing changes; (1e-16)^0.1 of noise in each other one would drown it."""
    if by_products:
        monkeypatch.setitem(dct.LONG, "cpu", 10**9)
    for shape in ((196, 768), (3136, 48), (1031, 257)):
        X = torch.full(shape, 0.7, dtype=torch.float64)
        assert error(wc.gray_tokens(X, "dct", epsilon), X.numpy()) <= TOLERANCE["float64"]


@by_rescale
@by_method
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_scale_equivariance_at_the_ends_of_float32(precision, scale, method, rescale):
    """Squares of such entries are no float32 numbers."""
    X = torch.randn(3, 7, 12)
    got = wc.gray_tokens(X * scale, method, 0.6, rescale=rescale, precision=precision) / (scale if rescale else 1)
    want = oracles.gray_tokens(X.numpy(), method, 0.6, rescale)
    assert error(got, want) <= TOLERANCE["float32"]


@by_method
def test_input_is_not_written_and_views_are_read(method):
    X = torch.randn(4, 10, 6).transpose(-1, -2)[::2]
    before = X.clone()
    got = wc.gray_tokens(X, method, 0.6)
    assert torch.equal(X, before)
    assert error(got, oracles.gray_tokens(before.numpy(), method, 0.6)) <= TOLERANCE["float32"]


@by_method
def test_each_image_is_alone(method):
    X = torch.randn(4, 8, 12, dtype=torch.float64) * torch.tensor([1.0, 100, 0.01, 3])[:, None, None]
    together = wc.gray_tokens(X, method, 0.7)
    for x, y in zip(X, together, strict=True):
        torch.testing.assert_close(y, wc.gray_tokens(x, method, 0.7), rtol=1e-10, atol=1e-12)


# --- patches ---------------------------------------------------------------------------------------------

by_order = pytest.mark.parametrize("order", ["rows", "channels"])
by_layout = pytest.mark.parametrize(
    ("shape", "patch"),
    [((2, 3, 8, 8), 4), ((1, 3, 4, 12), 2), ((3, 1, 6, 9), 3), ((2, 4, 6, 8), (3, 2)), ((0, 3, 8, 8), 4)],
    ids=str,
)


@by_layout
@by_order
def test_unfold_and_fold_are_the_loops(order, shape, patch):
    images = torch.randn(*shape)
    tokens = unfold_patches(images, patch, order)
    want = oracles.unfold(images.numpy(), patch, order)
    assert np.array_equal(tokens.numpy(), want)
    assert torch.equal(fold_patches(tokens, tuple(shape[1:]), patch, order), images)
    free = torch.randn(tokens.shape)
    folded = fold_patches(free, tuple(shape[1:]), patch, order)
    assert np.array_equal(folded.numpy(), oracles.fold(free.numpy(), shape[1:], patch, order))


def test_the_default_order_is_rows():
    images = torch.randn(1, 3, 4, 4)
    assert torch.equal(unfold_patches(images, 2), unfold_patches(images, 2, "rows"))
    assert not torch.equal(unfold_patches(images, 2), unfold_patches(images, 2, "channels"))
    tokens = unfold_patches(images, 2)
    assert torch.equal(fold_patches(tokens, (3, 4, 4), 2), images)


# --- the module ------------------------------------------------------------------------------------------


@by_order
@by_method
@by_rescale
@pytest.mark.parametrize(("size", "patch"), [((32, 48), 8), ((16, 16), (4, 8)), ((28, 14), 14)], ids=str)
def test_token_graying(size, patch, rescale, method, order):
    images = cases.images(3, 3, *size)
    module = wc.TokenGraying(patch, method, 0.7, rescale=rescale, precision="exact", order=order)
    got = module(images)
    want = oracles.gray_images(images.numpy(), patch, method, 0.7, rescale, order)
    assert got.dtype == images.dtype and got.shape == images.shape and not got.requires_grad
    flat = (got.flatten(1)[:, None], want.reshape(3, 1, -1))
    assert error(*flat) <= TOLERANCE["float32"]


def test_order_matters_to_the_dct_and_not_to_the_svd():
    images = cases.images(2, 3, 32, 32)
    svd, dct = (
        [wc.TokenGraying(8, method, 0.7, precision="exact", order=o)(images) for o in ("rows", "channels")]
        for method in ("svd", "dct")
    )
    assert error(svd[0].flatten(1), svd[1].flatten(1).numpy()) <= TOLERANCE["float32"]
    assert error(dct[0].flatten(1), dct[1].flatten(1).numpy()) > 100 * TOLERANCE["float32"]


@by_method
def test_module_has_no_state_and_takes_any_size_in_turn(method):
    module = wc.TokenGraying(8, method, 0.6, precision="exact")
    assert not list(module.parameters())
    for shape in [(2, 3, 32, 32), (1, 3, 16, 40), (3, 1, 32, 32), (0, 3, 16, 16), (2, 3, 32, 32)]:
        images = cases.images(*shape, seed=1)
        want = oracles.gray_images(images.numpy(), 8, method, 0.6)
        assert error(module(images).flatten(1), want.reshape(shape[0], np.prod(shape[1:]))) <= 1e-5
        assert module.state_dict() == {}


@by_method
def test_module_in_each_dtype_in_turn(method):
    """Constants cached for one dtype must not serve another."""
    module = wc.TokenGraying(8, method, 0.6, precision="exact")
    for dtype in (torch.bfloat16, torch.float32, torch.float64, torch.float16, torch.float32):
        images = cases.images(2, 3, 16, 24, dtype=dtype)
        got = module(images)
        want = oracles.gray_images(cases.stored(images), 8, method, 0.6)
        assert got.dtype == dtype
        assert error(got.flatten(1), want.reshape(2, -1)) <= TOLERANCE[str(dtype)[6:]]


@by_method
def test_channels_last_images(method):
    images = cases.images(2, 3, 16, 24)
    got = wc.TokenGraying(8, method, 0.6, precision="exact")(images.to(memory_format=torch.channels_last))
    want = oracles.gray_images(images.numpy(), 8, method, 0.6)
    assert error(got.flatten(1), want.reshape(2, -1)) <= TOLERANCE["float32"]


@by_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_leaves_float32_inside(method, dtype):
    """[A] warns that low precision hurts the DCT: under autocast float32 pixels stay within the fast bar."""
    images = cases.images(2, 3, 64, 64, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = wc.TokenGraying(16, method, 0.7)(images)
    want = oracles.gray_images(cases.stored(images), 16, method, 0.7)
    assert got.dtype == dtype
    assert error(got.flatten(1), want.reshape(2, -1)) <= (FAST if dtype == torch.float32 else 1e-2)


@by_method
def test_inside_no_grad_and_inference_mode_then_training(method):
    """Constants made under inference_mode must be usable in training afterwards."""
    images = cases.images(2, 3, 24, 40, seed=5)
    module, layer = wc.TokenGraying(8, method, 0.6), torch.nn.Conv2d(3, 4, 8, 8)
    with torch.inference_mode():
        first = module(images).clone()
    layer(module(images)).sum().backward()
    assert layer.weight.grad is not None
    assert torch.equal(module(images), first)


@pytest.mark.parametrize("method", ["svd", "dct"])
@pytest.mark.parametrize("rescale", [True, False, "contrast"])
def test_half_precision_is_lowered_once(method, rescale):
    """σ_max may be too large for float16 where the grayed tokens are not."""
    X = (400 * torch.rand(1, 20, 30, dtype=torch.float64)).half()
    X = torch.cat([X] * 400, 1)
    assert torch.linalg.matrix_norm(X.double(), 2) > torch.finfo(torch.float16).max
    want = oracles.gray_tokens(X.double().numpy(), method, 0.7, rescale=rescale)
    got = wc.gray_tokens(X, method, 0.7, rescale=rescale)
    assert got.dtype == torch.float16 and oracles.relative_error(got.double().numpy(), want) < 1e-3


LONG = dct.LONG["cpu"]


@pytest.mark.parametrize("rescale", [True, False, "contrast"])
@pytest.mark.parametrize(("n", "d"), [(LONG, 3), (LONG + 1, 12), (5, LONG + 2), (1, 1031), (LONG, LONG), (3136, 48)])
def test_long_sides_by_fft_are_the_oracles(n, d, rescale):
    X = torch.randn(2, d, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)).mT + 0.5
    want = oracles.gray_dct(X.numpy(), 0.7, rescale)
    assert error(wc.gray_tokens(X, "dct", 0.7, rescale=rescale), want) <= TOLERANCE["float64"]
    assert error(wc.gray_tokens(X.float(), "dct", 0.7, rescale=rescale), want) <= TOLERANCE["float32"]
    assert error(wc.gray_tokens(X.float(), "dct", 0.7, rescale=rescale, precision="fast"), want) <= FAST


@pytest.mark.parametrize("n", [1, 2, 7, 64, 257])
@pytest.mark.parametrize("side", [-2, -1])
def test_ffts_are_the_products_and_so_are_their_gradients(n, side, monkeypatch):
    """Compiled, the FFT is one operator with a gradient of its own: graying's last step moves into a trained weight."""
    X = torch.randn(2, n, n, dtype=torch.float64, requires_grad=True)
    B = dct.dct_basis(n, torch.float64, X.device)
    for way, M in ((dct.cosines, B), (dct.from_cosines, B.mT)):
        want = X @ M.mT if side == -1 else M @ X
        weight = torch.randn_like(want)
        (gradient,) = torch.autograd.grad((want * weight).sum(), X)
        monkeypatch.setitem(dct.LONG, "cpu", 1)
        for transform in (way, lambda X, side, back=way is dct.from_cosines: dct._opaque_fft(X, side, back)):
            got = transform(X, side)
            assert error(got.detach(), want.detach().numpy()) <= TOLERANCE["float64"]
            (found,) = torch.autograd.grad((got * weight).sum(), X)
            assert error(found, gradient.numpy()) <= TOLERANCE["float64"]


@pytest.mark.parametrize("shape", [(LONG, 2), (3, 2, LONG), (0, LONG, 2)])
def test_a_long_side_takes_the_fft_and_a_short_one_the_product(shape, monkeypatch):
    """Products took three times as long as torch-dct for the 3136 patches of Swin, and for d = 3072."""
    made = []
    monkeypatch.setattr(dct, "dct_basis", lambda n, *rest: made.append(n) or dct._dct_basis(n, *rest))
    assert wc.gray_tokens(torch.randn(*shape)).shape == shape
    assert set(made) == ({2} if 0 not in shape else set())


def test_many_matrices_are_grayed_a_few_at_a_time(monkeypatch):
    X = torch.randn(5, 3, 20, 30, dtype=torch.float64)
    want = wc.gray_tokens(X)
    monkeypatch.setattr(dct, "_CACHED", 4 * 20 * 30)
    assert error(wc.gray_tokens(X), want.numpy()) <= TOLERANCE["float64"]
    monkeypatch.setattr(dct, "_CACHED", 1)
    assert error(wc.gray_tokens(X), want.numpy()) <= TOLERANCE["float64"]
