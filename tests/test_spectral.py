"""Numbers about spectra against float64 oracles, at the bars the project promises."""

import functools
import math

import cases
import numpy as np
import oracles
import pytest
import scipy.linalg
import torch
from oracles import FAST, LOG_KAPPA, LOG_SIGMA, TOLERANCE

import wellcond as wc
from wellcond import spectral
from wellcond.spectral import eigen

by_case = pytest.mark.parametrize("case", cases.EXACT, ids=str)
FUNCTIONS = ("singular_values", "condition_number", "effective_rank", "stable_rank", "numerical_floor")


def log_sigma_gap(got: np.ndarray, want: np.ndarray, floor: np.ndarray) -> float:
    """Largest |log σ − log σ̂| over the wanted values above the floor."""
    with np.errstate(divide="ignore"):
        gap = np.abs(np.log(got) - np.log(want))
    return float(np.where(want > floor[..., None], gap, 0).max())


@pytest.mark.parametrize("name", [*FUNCTIONS, "spectral_map"])
def test_top_level_names_are_the_same_objects(name):
    assert getattr(wc, name) is getattr(spectral, name)


@by_case
def test_singular_values(case):
    X = case.tensor()
    got, want = wc.singular_values(X), oracles.singular_values(cases.stored(X))
    assert got.dtype == (torch.float64 if case.dtype == torch.float64 else torch.float32)
    assert got.shape == (case.batch, min(case.n, case.d))
    assert (got.diff(dim=-1) <= 0).all() and (got >= 0).all()
    assert np.abs(got.numpy() - want).max() <= TOLERANCE[case.name] * want.max()
    if case.dtype == torch.float32:
        assert log_sigma_gap(got.numpy(), want, oracles.floor(cases.stored(X))) <= LOG_SIGMA["exact"]


@pytest.mark.parametrize("case", cases.FULL_RANK + cases.STEEP, ids=str)
def test_condition_number_of_prescribed_spectra(case):
    X = case.tensor()
    want = oracles.condition_number(cases.stored(X))
    assert np.isfinite(want).all()  # the case itself is above the floor
    log, plain = wc.condition_number(X, log=True), wc.condition_number(X)
    assert np.abs(log.numpy() - np.log(want)).max() <= LOG_KAPPA
    np.testing.assert_allclose(plain.numpy(), np.exp(log.double().numpy()), rtol=1e-4)
    assert (plain >= 1).all() and (log >= 0).all()


@pytest.mark.parametrize(("n", "d"), [(49, 3072), (50, 4096), (3136, 48)])
def test_condition_number_of_long_sides(n, d):
    """Every σ but one alike: each entry of the diagonal is a long sum of squares, whose error the small one shows."""
    rng = np.random.default_rng(0)
    sigma = np.append(np.ones(min(n, d) - 1), 1.01e-6)
    X = np.stack([oracles.prescribed(n, d, sigma, rng)[0] for _ in range(4)]).astype(np.float32)
    got = wc.condition_number(torch.from_numpy(X), log=True).numpy()
    assert np.abs(got - np.log(oracles.condition_number(X))).max() <= LOG_KAPPA


@by_case
def test_ranks(case):
    X = case.tensor()
    for name in ("effective_rank", "stable_rank"):
        got, want = getattr(wc, name)(X), getattr(oracles, name)(cases.stored(X))
        assert got.dtype == (torch.float64 if case.dtype == torch.float64 else torch.float32)
        np.testing.assert_allclose(got.numpy(), want, rtol=max(1e-9, TOLERANCE[case.name]))


@pytest.mark.parametrize("case", cases.DEFICIENT, ids=str)
def test_rank_deficient_matrices_are_infinitely_conditioned(case):
    X = case.tensor()
    count = wc.numerical_floor(X)
    assert count.dtype == torch.int64 and count.shape == (case.batch,)
    missing = max(1, min(case.n, case.d) // 3)
    assert count.tolist() == oracles.numerical_floor(cases.stored(X)).tolist() == [missing] * case.batch
    for log in (False, True):
        assert wc.condition_number(X, log=log).tolist() == [math.inf] * case.batch


@pytest.mark.parametrize("case", cases.FULL_RANK + cases.STEEP, ids=str)
def test_full_rank_matrices_have_nothing_under_the_floor(case):
    assert wc.numerical_floor(case.tensor()).tolist() == [0] * case.batch


def test_the_floor_depends_on_the_precision_used():
    """Half of the values at 1e-9 σ_max: noise for a float32 matrix, facts for a float64 one."""
    case = cases.Case(n=20, d=30, spectrum="two-level", kappa=1e9, dtype=torch.float64)
    X = case.tensor()
    assert wc.numerical_floor(X).tolist() == [0, 0] and torch.isfinite(wc.condition_number(X)).all()
    single = X.float()
    assert wc.numerical_floor(single).tolist() == [10, 10] and torch.isinf(wc.condition_number(single)).all()


NEAR_FLOOR = [  # n, d, the small value, how many at 1; the floor is float32 rounding, or the Gram matrix
    pytest.param(24, 24, 2e-7, 23, id="rounding"),
    pytest.param(4, 1000, 3e-7, 1, id="gram"),
]


@pytest.mark.parametrize(("n", "d", "small", "num_large"), NEAR_FLOOR)
def test_a_float32_value_just_under_the_floor(n, d, small, num_large):
    """It counts as noise, κ is infinite, and a map leaves it as it is: neither f of it nor zero."""
    rng = np.random.default_rng(0)
    sigma = np.where(np.arange(n) < num_large, 1.0, 1e-3)
    sigma[-1] = small
    X, U, V = oracles.prescribed(n, d, sigma, rng)
    single = torch.from_numpy(X).float()
    assert oracles.numerical_floor(single.numpy()) == 1
    assert wc.numerical_floor(single).item() == 1 and wc.condition_number(single).item() == math.inf
    above = torch.from_numpy(X + 2e-6 * np.outer(U[:, -1], V[:, -1])).float()
    assert wc.numerical_floor(above).item() == 0 and math.isfinite(wc.condition_number(above).item())
    mapped = wc.spectral_map(single, torch.ones_like).double().numpy()
    np.testing.assert_allclose(U[:, -1] @ mapped @ V[:, -1], U[:, -1] @ single.double().numpy() @ V[:, -1], atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", cases.SHAPES.values(), ids=cases.SHAPES)
def test_all_zero_has_no_ratio(shape, dtype):
    X = torch.zeros(2, *shape, dtype=dtype)
    X[1] = 1  # its neighbour is untouched: rank one, constant
    r = min(shape)
    assert wc.singular_values(X)[0].tolist() == [0] * r
    assert wc.numerical_floor(X).tolist() == [r, r - 1]
    kappa = wc.condition_number(X)
    for got in (kappa, wc.condition_number(X, log=True), wc.effective_rank(X), wc.stable_rank(X)):
        assert math.isnan(got[0]) and not math.isnan(got[1])
    assert wc.stable_rank(X)[1].item() == pytest.approx(1, rel=1e-5)
    assert wc.effective_rank(X)[1].item() == pytest.approx(1, rel=1e-4)
    assert kappa[1].item() == (math.inf if r > 1 else pytest.approx(1, rel=1e-6))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_largest_numbers_are_numbers(dtype):
    """Their sums and squares leave the range; ratios do not."""
    X = torch.full((4, 4), -1.0, dtype=dtype).fill_diagonal_(1.0)  # twice a reflection: σ = 2, four times
    huge = X * (torch.finfo(dtype).max / 2)
    for quantity in (wc.condition_number, wc.effective_rank, wc.stable_rank):
        assert quantity(huge).item() == pytest.approx(quantity(X).item(), rel=1e-5)


@pytest.mark.parametrize("case", cases.LOW, ids=str)
def test_half_precisions_are_upcast_first(case):
    X = case.tensor()
    sigma = wc.singular_values(X)
    assert sigma.dtype == torch.float32
    want = oracles.singular_values(cases.stored(X))
    assert np.abs(sigma.numpy() - want).max() <= TOLERANCE["float32"] * want.max()
    assert torch.equal(sigma, wc.singular_values(X.float()))
    assert torch.equal(wc.condition_number(X), wc.condition_number(X.float()))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("leading", [(), (1,), (0,), (2, 3), (2, 0)], ids=str)
def test_leading_dimensions(leading, name):
    X = torch.randn(*leading, 7, 5)
    got = getattr(wc, name)(X)
    tail = (5,) if name == "singular_values" else ()
    assert got.shape == (*leading, *tail)
    if X.numel():
        np.testing.assert_allclose(got.numpy(), getattr(oracles, name)(X.numpy()), rtol=1e-4)


@pytest.mark.parametrize("kind", ["random", "deficient", "zero", "with gradient", "bfloat16"])
def test_one_small_matrix_is_as_in_a_batch(kind):
    """A single one takes a shorter way: floats instead of arrays."""
    X = torch.randn(17, 9, generator=torch.Generator().manual_seed(0))
    X = {"deficient": X @ torch.ones(9, 9), "zero": 0 * X, "bfloat16": X.bfloat16()}.get(kind, X)
    X = X.requires_grad_() if kind == "with gradient" else X
    for log in (False, True):
        one, batch = wc.condition_number(X, log), wc.condition_number(torch.stack([X, X]), log)
        assert one.shape == () and one.dtype == batch.dtype and not one.requires_grad
        torch.testing.assert_close(one.expand(2), batch, equal_nan=True, rtol=1e-6, atol=0)
    assert torch.equal(wc.numerical_floor(X).expand(2), wc.numerical_floor(torch.stack([X, X])))
    with pytest.raises(ValueError, match="NaN or inf"):
        wc.condition_number(torch.full((2, 3), torch.inf))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_squares_of_float64_may_leave_its_range(scale, batch):
    X = torch.randn(*batch, 5, 8, dtype=torch.float64)
    for name in FUNCTIONS:
        got, want = getattr(wc, name)(X * scale), getattr(wc, name)(X)
        torch.testing.assert_close(got / scale if name == "singular_values" else got, want)


def test_views_are_read_and_not_written():
    X = torch.randn(5, 9, 4).transpose(-1, -2)[::2]
    before = X.clone()
    want = oracles.singular_values(X.numpy())
    np.testing.assert_allclose(wc.singular_values(X).numpy(), want, atol=1e-5)
    Y = wc.spectral_map(X, torch.sqrt)
    assert oracles.relative_error(Y.numpy(), oracles.spectral_map(X.numpy(), np.sqrt)) <= TOLERANCE["float32"]
    assert torch.equal(X, before)


def power(epsilon: float):
    return lambda sigma: sigma**epsilon


@pytest.mark.parametrize("epsilon", [0.5, 0.95])
@by_case
def test_spectral_map_exact(case, epsilon):
    """≤ 1e-10 for float64, ≤ 1e-5 and every log σ within 1e-2 for float32 up to κ = 1e5."""
    X = case.tensor()
    got, want = wc.spectral_map(X, power(epsilon)), oracles.spectral_map(cases.stored(X), power(epsilon))
    assert got.dtype == X.dtype and got.shape == X.shape
    assert oracles.relative_error(got.numpy(), want) <= TOLERANCE[case.name]
    wanted = oracles.singular_values(want)
    noise = oracles.floor(cases.stored(X)) ** epsilon
    assert log_sigma_gap(oracles.singular_values(got.numpy()), wanted, noise) <= LOG_SIGMA["exact"]


@pytest.mark.parametrize("epsilon", [0.5, 0.95])
@pytest.mark.parametrize("case", cases.FLOAT32, ids=str)
def test_spectral_map_fast(case, epsilon):
    X = case.tensor()
    got = wc.spectral_map(X, power(epsilon), precision="fast")
    want = oracles.spectral_map(cases.stored(X), power(epsilon))
    assert oracles.relative_error(got.numpy(), want) <= FAST
    noise = oracles.floor(cases.stored(X)) ** epsilon
    gap = log_sigma_gap(oracles.singular_values(got.numpy()), oracles.singular_values(want), noise)
    assert gap <= LOG_SIGMA["fast"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("n", "d"), [(12, 40), (24, 24), (50, 16)])
def test_maps_with_a_known_name(n, d, dtype):
    """1 is the polar factor, 1/σ the transposed pseudo-inverse, σ the matrix, −σ its negative, 0 nothing."""
    X = cases.Case(n=n, d=d, spectrum="log-spaced", kappa=100.0, dtype=dtype).tensor()
    polar = oracles.spectral_map(cases.stored(X), np.ones_like)
    inverse = np.linalg.pinv(cases.stored(X).astype(np.float64)).swapaxes(-1, -2)
    for f, want in [
        (torch.ones_like, polar),
        (torch.reciprocal, inverse),
        (lambda s: s, cases.stored(X)),
        (lambda s: -s, -cases.stored(X)),
    ]:
        assert oracles.relative_error(wc.spectral_map(X, f).numpy(), want) <= TOLERANCE[str(dtype)[6:]]
    assert wc.spectral_map(X, torch.zeros_like).abs().max() <= 1e-6 * X.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_under_the_floor_are_left_as_they_are(dtype):
    """f = 1 on a rank-deficient matrix is a partial isometry: f does not see the noise; zero stays zero."""
    X = cases.Case(n=20, d=30, spectrum="rank-deficient", kappa=10.0, dtype=dtype).tensor()
    X = torch.cat([X, torch.zeros(1, 20, 30, dtype=dtype)])
    got = wc.spectral_map(X, torch.ones_like)
    assert oracles.relative_error(got.numpy(), oracles.spectral_map(cases.stored(X), np.ones_like)) <= 1e-5
    assert wc.numerical_floor(got).tolist() == [6, 6, 20] and not got[2].any()


def test_map_sees_one_row_of_values_per_matrix():
    seen = []
    X = torch.randn(2, 3, 6, 9)
    Y = wc.spectral_map(X, lambda sigma: seen.append(sigma.shape) or sigma / sigma.amax(-1, keepdim=True))
    assert all(shape == (2, 3, 6) for shape in seen) and seen
    want = oracles.spectral_map(X.numpy(), lambda s: s / s[0])
    assert oracles.relative_error(Y.numpy(), want) <= TOLERANCE["float32"]


KINDS = {"small": torch.float32, "large": torch.float32, "half": torch.float16, "float64": torch.float64}


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_may_write_on_its_argument_and_answer_in_another_type(kind):
    X = torch.randn(2, 90, 100) if kind == "large" else torch.randn(2, 5, 8).to(KINDS[kind])
    U, sigma, Vh = np.linalg.svd(cases.stored(X), full_matrices=False)
    for f, wanted in ((lambda s: s.mul_(2), 2 * sigma), (lambda s: s > 1, sigma > 1), (lambda s: s.long(), sigma // 1)):
        got, estimate = spectral.spectral_map(X, f, return_error=True)
        error = oracles.relative_error(got.double().numpy(), (U * wanted[..., None, :]) @ Vh)
        assert error <= TOLERANCE[str(X.dtype)[6:]]
        assert estimate.max() <= TOLERANCE[str(X.dtype)[6:]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_negated_view_is_read(name):
    X = torch.complex(torch.randn(5, 8), torch.randn(5, 8)).conj().imag
    assert X.is_neg()
    torch.testing.assert_close(getattr(spectral, name)(X), getattr(spectral, name)(X.clone().resolve_neg()))


@pytest.mark.parametrize("shape", [(6, 9), (4, 64, 100)], ids=str)
@pytest.mark.parametrize("name", [*FUNCTIONS, "spectral_map"])
def test_numbers_of_what_is_differentiated_by_torch_func(name, shape):
    """Inside grad, vjp and jvp a tensor is a wrapper, whose type does not tell."""
    X = torch.randn(shape)
    measure = functools.partial(wc.spectral_map, f=torch.sqrt) if name == "spectral_map" else getattr(wc, name)
    wanted = measure(X)

    def loss(X):
        found = measure(X)
        assert not found.requires_grad
        torch.testing.assert_close(found, wanted)
        return X.square().sum()

    torch.testing.assert_close(torch.func.grad(loss)(X), 2 * X)
    torch.testing.assert_close(torch.func.jvp(loss, (X,), (X,))[1], 2 * X.square().sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*FUNCTIONS, "spectral_map"])
def test_numbers_inside_vmap(name, dtype):
    """Where nobody can look at a number; NaN then stays inside its own matrix, as on a GPU."""
    X = torch.randn(3, 2, 6, 9, dtype=dtype)

    def measure(X: torch.Tensor) -> torch.Tensor:
        return wc.spectral_map(X, torch.sqrt) if name == "spectral_map" else getattr(wc, name)(X)

    torch.testing.assert_close(torch.vmap(measure)(X), measure(X))
    torch.testing.assert_close(torch.vmap(torch.vmap(measure), in_dims=1, out_dims=1)(X), measure(X))
    X[1, 0, 0, 0] = torch.nan
    if name != "numerical_floor":
        unknown = torch.vmap(measure)(X).isnan().reshape(6, -1).any(-1)
        assert unknown.tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*FUNCTIONS, "spectral_map"])
def test_numbers_in_a_recorded_graph(name, dtype):
    """It computes for other matrices, too: a number that Python had read would stand in it for good."""
    from torch.fx.experimental.proxy_tensor import make_fx

    first, other = torch.randn(2, 3, 6, 9, dtype=dtype)

    def measure(X: torch.Tensor) -> torch.Tensor:
        return wc.spectral_map(X, torch.sqrt) if name == "spectral_map" else getattr(wc, name)(X)

    torch.testing.assert_close(make_fx(measure)(first)(other), measure(other))


@pytest.mark.parametrize("shape", [(0, 6, 4), (1, 6, 4), (6, 4), (2, 0, 4, 6)], ids=str)
def test_spectral_map_of_odd_batches(shape):
    X = torch.randn(*shape)
    got, error = wc.spectral_map(X, torch.sqrt, return_error=True)
    assert got.shape == X.shape and error.shape == X.shape[:-2]
    want = oracles.spectral_map(X.numpy(), np.sqrt)
    assert oracles.relative_error(got.numpy(), want) <= TOLERANCE["float32"]


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("case", cases.FULL_RANK + [c for c in cases.STEEP if c.kappa == 1e6], ids=str)
def test_the_error_estimate_is_honest(case, precision):
    """The true error is at most four times the estimate; up to κ = 1e3 the estimate itself meets the bar."""
    X = case.tensor()
    got, estimate = wc.spectral_map(X, power(0.5), precision=precision, return_error=True)
    want = oracles.spectral_map(cases.stored(X), power(0.5))
    true = [oracles.relative_error(g, w) for g, w in zip(got.numpy(), want, strict=True)]
    assert estimate.shape == (case.batch,) and torch.isfinite(estimate).all()
    oracle = 50 * oracles.EPS64 * math.sqrt(case.kappa)  # numpy's own error in √σ
    assert (np.array(true) <= 4 * estimate.double().numpy() + oracle).all()
    if case.kappa <= 1e3:
        bar = FAST if precision == "fast" and case.dtype == torch.float32 else TOLERANCE[case.name]
        assert (estimate <= bar).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(200, 2, 2), (200, 6, 3), (200, 5, 5), (50, 8, 20), (2, 197, 192)], ids=str)
def test_the_error_estimate_is_honest_where_the_answer_is_known(shape, dtype):
    """U Σ Vᵀ is X itself, to the last bit: no oracle's rounding hides ours."""
    X = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    got, estimate = wc.spectral_map(X, lambda sigma: sigma, return_error=True)
    true = torch.linalg.matrix_norm((got - X).double()) / torch.linalg.matrix_norm(X.double())
    assert (true <= 4 * estimate).all() and (true <= estimate).double().mean() >= 0.9


MAPS = {  # f, and what it makes of σ
    "polar": (torch.ones_like, np.ones_like),
    "inverse": (torch.reciprocal, np.reciprocal),
    "rank one": (lambda sigma: sigma * (torch.arange(16) < 1), lambda sigma: sigma * (np.arange(16) < 1)),
}


@pytest.mark.parametrize("d", [16, 64])
@pytest.mark.parametrize("bits", [10, 20, 30])
@pytest.mark.parametrize("name", MAPS)
def test_the_error_estimate_sees_vectors_turn(name, bits, d):
    """A polar factor errs by eps κ and a cut by eps over a gap, though no f(σ) moves. Hadamard's matrices are exact."""
    f, values = MAPS[name]
    U, V = (scipy.linalg.hadamard(order)[:16] / math.sqrt(order) for order in (16, d))
    sigma = np.array([1, 1 - 2.0**-bits, *2.0 ** -np.arange(1, 10), *[2.0**-bits] * 5])
    got, estimate = wc.spectral_map(torch.from_numpy((U * sigma) @ V), f, return_error=True)
    true = oracles.relative_error(got.numpy(), (U * values(sigma)) @ V)
    assert true <= estimate.item() <= 1e3 * oracles.EPS64 * 2**bits


@pytest.mark.parametrize("n", [3, 5, 7, 20])
def test_the_error_estimate_of_small_float32_matrices_is_honest(n):
    """Rounding of a few eps in X Xᵀ, which the root of a small side does not cover."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        sigma = np.append(np.ones(n - 1), 10 ** rng.uniform(-5, -4))
        X = torch.from_numpy(oracles.prescribed(n, n, sigma, rng)[0]).float()
        got, estimate = wc.spectral_map(X, torch.reciprocal, return_error=True)
        assert oracles.relative_error(got.numpy(), np.linalg.inv(X.double().numpy()).T) <= estimate.item()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_the_error_estimate_of_the_largest_numbers_is_a_number(scale):
    X = torch.randn(3, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, estimate = wc.spectral_map(X, torch.sqrt, return_error=True)
    for Y, f in ((X * scale, torch.sqrt), (X, lambda sigma: scale * sigma.sqrt())):
        torch.testing.assert_close(wc.spectral_map(Y, f, return_error=True)[1], estimate)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_values_that_are_not_finite_are_told_without_a_warning_before(dtype):
    with pytest.raises(ValueError, match="f maps the singular value 1 to inf"):
        wc.spectral_map(torch.eye(3, dtype=dtype), lambda sigma: sigma / 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(3, 12, 12), (0, 5, 5), (1, 1, 1), (9, 9), (2, 3, 40, 40)], ids=str)
def test_symmetric_eigensolver(shape, dtype):
    A = torch.randn(*shape, dtype=dtype)
    A = A + A.mT
    tolerance = 1e-4 if dtype == torch.float32 else TOLERANCE["float64"]
    values, vectors = eigen.eigh(A)
    only = eigen.eigvalsh(A)
    want = np.linalg.eigvalsh(A.double().numpy())
    for got in (values, only):
        assert got.shape == A.shape[:-1]
        np.testing.assert_allclose(np.sort(got.double().numpy(), -1), want, atol=tolerance)
    rebuilt = (vectors * values[..., None, :]) @ vectors.mT
    assert oracles.relative_error(rebuilt.numpy(), A.numpy()) <= tolerance
    identity = torch.eye(shape[-1], dtype=dtype).expand(A.shape)
    assert oracles.relative_error((vectors.mT @ vectors).numpy(), identity.numpy()) <= tolerance


def test_the_cpu_uses_lapack():
    assert eigen.solver_name(torch.device("cpu")) == "lapack"
