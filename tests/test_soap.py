"""SOAP against a re-derivation in numpy, one step ahead from the same state, and against `pytorch-optimizer`."""

import copy
import itertools
import math
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import pytorch_optimizer
import torch
from soap_cases import Gradients
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import wellcond
from wellcond.optim.soap import SOAP, bases
from wellcond.optim.soap.bases import cholesky_qr, first_basis, next_basis
from wellcond.optim.soap.stacks import matmul_precision
from wellcond.optim.soap.turns import is_due, spread

SHAPES = [(7,), (), (5, 5), (6, 4), (3, 8), (1, 5, 4), (5, 3, 2, 2), (4, 1, 3, 3)]
OPTIONS: dict[str, Any] = {"lr": 0.02, "betas": (0.9, 0.8), "eps": 1e-6, "weight_decay": 0.1}


# the oracle: numpy, one weight at a time


def as_matrix(x: np.ndarray) -> np.ndarray:
    sides = [n for n in x.shape if n > 1]
    return x.reshape(sides[0], -1) if len(sides) > 1 else x.reshape(-1)


def hand_step(W, G, state, *, lr, betas, eps, weight_decay):
    """Algorithm 3 of SOAP: W and the state after one step, before any refresh. A first step only gathers statistics."""
    W, G, M, V = (as_matrix(x) for x in (W, G, state["exp_avg"], state["exp_avg_sq"]))
    QL, QR = state.get("basis_left"), state.get("basis_right")
    t = int(state["step"])
    if t:
        rotated, M = G, betas[0] * M + (1 - betas[0]) * G
        direction = M
        if QL is not None:
            rotated, direction = QL.T @ rotated, QL.T @ direction
        if QR is not None:
            rotated, direction = rotated @ QR, direction @ QR
        V = betas[1] * V + (1 - betas[1]) * rotated**2
        direction = direction / (np.sqrt(V) + eps)
        if QL is not None:
            direction = QL @ direction
        if QR is not None:
            direction = direction @ QR.T
        W = W - lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) * direction
        W = W - lr * weight_decay * W
    after = {**state, "step": t + 1, "exp_avg": M, "exp_avg_sq": V}
    for name, product in (("left", lambda: G @ G.T), ("right", lambda: G.T @ G)):
        if f"gram_{name}" in state:
            after[f"gram_{name}"] = betas[1] * state[f"gram_{name}"] + (1 - betas[1]) * product()
    return W, after


def hand_refresh(state, name):
    """One power step of the basis, sorted by Rayleigh quotients, by numpy's QR; the second moments are sorted alike."""
    A, Q, V = state[f"gram_{name}"], state[f"basis_{name}"], as_matrix(state["exp_avg_sq"])
    quotients = [q @ A @ q for q in Q.T]
    order = np.argsort(quotients)[::-1]
    axis = 0 if name == "left" else 1
    return np.linalg.qr((A @ Q)[:, order])[0], np.take(V, order, axis=axis)


def same_columns(ours, theirs, atol):
    """Equal but for the sign of each column."""
    np.testing.assert_allclose(np.abs((ours * theirs).sum(0)), 1, rtol=0, atol=atol)


def numpy_state(optimizer, p):
    return {key: value.numpy().copy() for key, value in optimizer.state[p].items()}


@pytest.mark.parametrize("stagger", [False, True])
@pytest.mark.parametrize("cap", [10_000, 5, 0])
def test_one_step_ahead_of_numpy_from_the_same_state(stagger, cap):
    problem = Gradients(SHAPES)
    frequency, num_steps = 4, 15
    optimizer = SOAP(
        problem.parameters,
        **OPTIONS,
        precondition_frequency=frequency,
        max_precondition_dim=cap,
        stagger=stagger,
    )
    refreshed: dict[tuple[int, str], list[int]] = {}
    for t in range(num_steps):
        problem.fill()
        before = [(p.detach().numpy().copy(), numpy_state(optimizer, p)) for p in problem.parameters]
        optimizer.step()
        for number, (p, (W, state)) in enumerate(zip(problem.parameters, before, strict=True)):
            assert p.grad is not None
            expected, after = hand_step(W, p.grad.numpy(), state, **OPTIONS)
            found = numpy_state(optimizer, p)
            np.testing.assert_allclose(as_matrix(p.detach().numpy()), expected, rtol=0, atol=1e-8)
            for name in ("left", "right"):
                if f"basis_{name}" not in state:
                    continue
                now, last = found[f"basis_{name}"], state[f"basis_{name}"]
                if t == 0:
                    assert_eigenvectors(now, after[f"gram_{name}"])
                elif not np.array_equal(now, last):
                    basis, after["exp_avg_sq"] = hand_refresh(after, name)
                    same_columns(now, basis, 1e-8)
                    refreshed.setdefault((number, name), []).append(t)
            for key in ("step", "exp_avg", "gram_left", "gram_right", "exp_avg_sq"):
                if key in found:
                    ours = as_matrix(found[key]) if key.startswith("exp") else found[key]
                    np.testing.assert_allclose(ours, after[key], rtol=0, atol=1e-8, err_msg=f"{key} of {p.shape}")
    sides = [n for shape in SHAPES for n in as_matrix(np.zeros(shape)).shape if as_matrix(np.zeros(shape)).ndim == 2]
    assert len(refreshed) == sum(n <= cap for n in sides)
    for steps in refreshed.values():
        assert steps[0] >= frequency and set(np.diff(steps)) == {frequency}
        assert stagger or steps == [4, 8, 12]
    if stagger and cap > 5:
        assert len({steps[0] for steps in refreshed.values()}) == frequency  # every step has some, none has all


def assert_eigenvectors(Q, A):
    n = len(A)
    np.testing.assert_allclose(Q.T @ Q, np.eye(n), atol=1e-10)
    rotated = Q.T @ A @ Q
    np.testing.assert_allclose(rotated, np.diag(np.diag(rotated)), atol=1e-10 * max(1, np.abs(A).max()))
    assert (np.diff(np.diag(rotated)) <= 1e-10 * np.abs(A).max()).all()  # the largest first


def test_a_full_eigendecomposition_on_request():
    problem = Gradients([(6, 4)])
    optimizer = SOAP(problem.parameters, **OPTIONS, precondition_frequency=3, refresh="eigh", stagger=False)
    for t in range(10):
        problem.fill()
        optimizer.step()
        state = numpy_state(optimizer, problem.parameters[0])
        if t % 3 == 0:
            for name in ("left", "right"):
                assert_eigenvectors(state[f"basis_{name}"], state[f"gram_{name}"])


class Regression:
    """A small network whose losses two optimizers can be compared by."""

    def __init__(self, widths, dtype, seed=0):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b), nn.Tanh())]
            self.net = nn.Sequential(*layers[:-1]).to(dtype)
            self.X = torch.randn(256, widths[0], dtype=dtype)
            self.Y = torch.sin(self.X @ torch.randn(widths[0], widths[-1], dtype=dtype))

    def losses(self, optimizer, num_steps):
        found = []
        for step in range(num_steps):
            i = torch.randperm(256, generator=torch.Generator().manual_seed(step))[:64]
            loss = (self.net(self.X[i]) - self.Y[i]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return np.array(found)


@pytest.mark.parametrize(("dtype", "cholesky"), [(torch.float64, False), (torch.float32, False), (torch.float32, True)])
def test_the_losses_are_those_of_pytorch_optimizer(dtype, cholesky, monkeypatch):
    """200 steps, 20 refreshes (theirs in float32); square matrices, so that the first basis has no free choice."""
    monkeypatch.setattr(bases, "has_kernels", lambda device: cholesky)
    ours, theirs = Regression([8, 8, 8, 8], dtype), Regression([8, 8, 8, 8], dtype)
    one = ours.losses(SOAP(ours.net.parameters(), lr=1e-2, stagger=False), 200)
    two = theirs.losses(pytorch_optimizer.SOAP(theirs.net.parameters(), lr=1e-2), 200)
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-5)
    assert one[-20:].mean() < 0.8 * one[:5].mean()


def test_matrices_that_are_not_square_and_staggered_bases_learn_as_well():
    """The first basis of a long matrix is partly arbitrary, and turns come at other steps: alike, not equal."""
    ours, theirs = Regression([6, 24, 24, 3], torch.float32), Regression([6, 24, 24, 3], torch.float32)
    one = ours.losses(SOAP(ours.net.parameters(), lr=1e-2), 200)
    two = theirs.losses(pytorch_optimizer.SOAP(theirs.net.parameters(), lr=1e-2), 200)
    assert abs(one[-50:].mean() / two[-50:].mean() - 1) < 0.05


# bases


def statistics(spectrum, seed=0, dtype=torch.float32):
    """(A, Q): a statistic with this spectrum, and the eigenbasis of a somewhat older one."""
    rng = np.random.default_rng(seed)
    n = len(spectrum)
    U = np.linalg.qr(rng.standard_normal((n, n)))[0]
    A = (U * spectrum) @ U.T
    noise = (U * np.sqrt(spectrum)) @ rng.standard_normal((n, n)) / math.sqrt(n)
    older = 0.6 * A + 0.4 * noise @ noise.T
    Q = np.linalg.eigh(older)[1][:, ::-1]
    return torch.tensor(A[None], dtype=dtype), torch.tensor(Q[None].copy(), dtype=dtype)


def test_qr_by_cholesky_is_householders_but_for_signs():
    A, Q = statistics(np.geomspace(1, 1e-4, 40))
    basis, order = next_basis(A, Q, "cholesky")
    state = {"gram_left": A[0].double().numpy(), "basis_left": Q[0].double().numpy(), "exp_avg_sq": np.ones((40, 2))}
    same_columns(basis[0].double().numpy(), hand_refresh(state, "left")[0], 1e-5)
    assert sorted(order[0].tolist()) == list(range(40))


@pytest.mark.parametrize("how", ["cholesky", "householder"])
@pytest.mark.parametrize("lowest", [1e-6, 1e-12, 0.0])
@pytest.mark.parametrize("n", [30, 200])
def test_bases_stay_orthonormal_whatever_the_spectrum(lowest, n, how):
    spectrum = np.geomspace(1, lowest, n) if lowest else np.r_[np.geomspace(1, 1e-6, n // 3), np.zeros(n - n // 3)]
    A, Q = statistics(spectrum)
    for _ in range(3):
        Q, _ = next_basis(A, Q, how)
        defect = (Q[0].double().mT @ Q[0].double() - torch.eye(n)).abs().max()
        assert defect < 1e-5
    quotients = (Q[0].mT @ A[0] @ Q[0]).diagonal()
    assert quotients[: n // 4].diff().max() < 1e-3 * quotients.max()  # sorted before the last step


def test_no_gradient_at_all_keeps_the_basis():
    A, Q = statistics(np.ones(6))
    basis, order = next_basis(torch.zeros_like(A), Q, "cholesky")
    assert torch.equal(basis, Q) and order[0].tolist() == list(range(6))
    assert torch.equal(first_basis(torch.zeros_like(A))[0], torch.eye(6))


def test_the_first_basis_of_a_long_matrix_does_not_depend_on_rounding():
    rng = np.random.default_rng(0)
    G = rng.standard_normal((24, 6))
    A = torch.tensor((G @ G.T)[None])
    other = A * (1 + 1e-15 * torch.tensor(rng.standard_normal((24, 24))))
    other = (other + other.mT) / 2
    one, two = first_basis(A)[0].numpy(), first_basis(other)[0].numpy()
    assert_eigenvectors(one, A[0].numpy())
    same_columns(one, two, 1e-12)


def test_cholesky_qr_against_numpy():
    P = np.random.default_rng(0).standard_normal((3, 20, 20))
    P[2, :, 4] = P[2, :, 3]  # has no QR by Cholesky
    found = cholesky_qr(torch.tensor(P)).numpy()
    for i in range(2):
        Q, T = np.linalg.qr(P[i])
        np.testing.assert_allclose(found[i], Q * np.sign(np.diag(T)), atol=1e-10)
    assert not np.abs(found[2].T @ found[2] - np.eye(20)).max() < 1e-3


def test_tf32_products_are_finer_than_the_gradients_of_autocast():
    """Emulated: rounding G and Q to 10 bits moves the rotated gradient less than rounding G to bfloat16 does."""
    rng = np.random.default_rng(0)
    G = torch.tensor(rng.standard_normal((96, 64)) * np.geomspace(1, 1e-3, 64), dtype=torch.float32)
    U, _, Vh = torch.linalg.svd(G.double(), full_matrices=False)

    def tf32(X):
        bits = X.float().contiguous().view(torch.int32)
        return ((bits + 0x1000) & -0x2000).view(torch.float32).double()

    exact = U.mT @ G.double() @ Vh.mT
    rough = tf32((tf32(U.mT) @ tf32(G)).float()) @ tf32(Vh.mT)
    noise = (U.mT @ G.bfloat16().double() @ Vh.mT - exact).square().mean().sqrt()
    assert (rough - exact).square().mean().sqrt() < 0.6 * noise


# turns


def test_work_is_spread_evenly():
    costs = [n**3 for n in 12 * [2304, 768] + 24 * [3072, 768] + 26 * [768]]  # about ViT-B
    bins = spread(costs, 10)
    loads = [sum(c for c, b in zip(costs, bins, strict=True) if b == i) for i in range(10)]
    assert max(loads) < 1.1 * np.mean(loads)
    assert bins == spread(list(costs), 10)


def test_turns_come_once_in_each_period():
    for phase in range(4):
        assert [t for t in range(13) if is_due(t, phase, 4)] == [4 + phase, 8 + phase, 12 + phase][: 3 - (phase > 0)]


# weights of all kinds


def test_bfloat16_weights_keep_a_float32_state_and_round_once():
    problem = Gradients([(6, 4), (5,)], torch.bfloat16)
    twin = copy.deepcopy(problem)
    for p in twin.parameters:
        p.data = p.data.float()
    rough, fine = (SOAP(x.parameters, **OPTIONS, precondition_frequency=2) for x in (problem, twin))
    for _ in range(6):
        problem.fill()
        for p, q in zip(problem.parameters, twin.parameters, strict=True):
            assert p.grad is not None
            q.data, q.grad = p.data.float(), p.grad.float()
        rough.step()
        fine.step()
        for p, q in zip(problem.parameters, twin.parameters, strict=True):
            assert torch.equal(p, q.bfloat16())
            assert all(torch.equal(rough.state[p][k], fine.state[q][k]) for k in fine.state[q])
    assert rough.state[problem.parameters[0]]["exp_avg"].dtype == torch.float32


def test_weights_without_gradient_are_left_alone_and_may_come_later():
    problem = Gradients([(4, 3), (4, 3), (4, 3), (2,)])
    late, never = problem.parameters[1:3]
    optimizer = SOAP(problem.parameters, **OPTIONS, precondition_frequency=2)
    start = never.detach().clone()
    for t in range(9):
        problem.fill()
        never.grad = None
        if t < 3:
            late.grad = None
        optimizer.step()
    assert torch.equal(never, start) and not optimizer.state[never]["step"] and not optimizer.state[never]["turn"]
    alone = Gradients([(4, 3)])
    assert optimizer.state[late]["step"] == 6 and optimizer.state[late]["turn"] == 6
    assert_orthonormal(optimizer.state[late]["basis_left"])
    assert not torch.equal(optimizer.state[late]["basis_left"], torch.eye(4))
    SOAP(alone.parameters).step()  # no gradient anywhere
    assert not SOAP(alone.parameters).state[alone.parameters[0]]["step"]


def assert_orthonormal(Q):
    torch.testing.assert_close(Q.mT @ Q, torch.eye(len(Q), dtype=Q.dtype), rtol=0, atol=1e-10)


def test_equal_weights_in_one_stack_or_in_two_groups():
    one, two = Gradients([(4, 3), (4, 3)]), Gradients([(4, 3), (4, 3)])
    together = SOAP(one.parameters, **OPTIONS)
    apart = SOAP([{"params": [p]} for p in two.parameters], **OPTIONS)
    for _ in range(13):
        for problem, optimizer in ((one, together), (two, apart)):
            problem.fill()
            optimizer.step()
    for p, q in zip(one.parameters, two.parameters, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-12)


def test_groups_have_their_own_rate_and_decay_and_may_be_empty():
    problem = Gradients([(4, 3), (4, 3)])
    first, second = problem.parameters
    optimizer = SOAP(
        [{"params": [first], "lr": 0.0}, {"params": []}, {"params": [second], "weight_decay": 0.0}], lr=0.1
    )
    start = first.detach().clone(), second.detach().clone()
    for _ in range(3):
        problem.fill()
        optimizer.step()
    assert torch.equal(first, start[0]) and not torch.equal(second, start[1])


def test_zero_gradients_leave_only_the_decay():
    problem = Gradients([(4, 3), (5,)], torch.float32)
    optimizer = SOAP(problem.parameters, lr=0.1, weight_decay=0.5, precondition_frequency=2)
    start = [p.detach().clone() for p in problem.parameters]
    for _ in range(8):
        for p in problem.parameters:
            p.grad = torch.zeros_like(p)
        optimizer.step()
    for p, before in zip(problem.parameters, start, strict=True):
        torch.testing.assert_close(p.detach(), before * (1 - 0.1 * 0.5) ** 7)  # not in the first step
        assert all(value.isfinite().all() for value in optimizer.state[p].values())


def test_a_skipped_update_changes_no_bit():
    problem = Gradients([(4, 3), (5,)])
    optimizer = SOAP(problem.parameters, **OPTIONS)
    for number in range(4):
        problem.fill()
        optimizer.update(torch.tensor(0.0))
        optimizer.refresh()
        before = [
            (p.detach().clone(), {k: v.clone() for k, v in optimizer.state[p].items()}) for p in problem.parameters
        ]
        for p in problem.parameters:
            assert p.grad is not None
            p.grad.fill_(math.nan if number % 2 else math.inf)
        optimizer.update(torch.tensor(1.0))
        for p, (W, state) in zip(problem.parameters, before, strict=True):
            assert torch.equal(p, W)
            assert all(torch.equal(optimizer.state[p][k], state[k]) for k in state)


def test_a_first_step_that_is_skipped_is_made_up_for():
    one, two = Gradients([(4, 3)]), Gradients([(4, 3)])
    plain, skipping = SOAP(one.parameters, **OPTIONS), SOAP(two.parameters, **OPTIONS)
    two.parameters[0].grad = torch.full((4, 3), math.nan, dtype=torch.float64)
    skipping.update(torch.tensor(1.0))
    skipping.refresh()
    for _ in range(12):
        for problem, optimizer in ((one, plain), (two, skipping)):
            problem.fill()
            optimizer.step()
    assert torch.equal(one.parameters[0], two.parameters[0])


def test_a_learning_rate_that_is_a_tensor():
    one, two = Gradients([(4, 3)]), Gradients([(4, 3)])
    rate = torch.tensor(0.02, dtype=torch.float64)
    options = {**OPTIONS, "lr": rate}
    number, tensor = SOAP(one.parameters, **OPTIONS), SOAP(two.parameters, **options)
    for problem, optimizer in ((one, number), (two, tensor)):
        for _ in range(3):
            problem.fill()
            optimizer.step()
    assert torch.equal(one.parameters[0], two.parameters[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_saved_and_loaded_by_torch_it_goes_on_to_the_same_bits(dtype, tmp_path):
    problem = Gradients([(6, 4), (6, 4), (3,)], dtype)
    optimizer = SOAP(problem.parameters, **OPTIONS, precondition_frequency=3)
    for _ in range(5):
        problem.fill()
        optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    twin = copy.deepcopy(problem)
    other = SOAP(twin.parameters, lr=1.0, precondition_frequency=3)
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    for _ in range(5):
        for x, o in ((problem, optimizer), (twin, other)):
            x.fill()
            o.step()
    for p, q in zip(problem.parameters, twin.parameters, strict=True):
        assert torch.equal(p, q)
        assert all(torch.equal(optimizer.state[p][k], other.state[q][k]) for k in other.state[q])
    fewer = SOAP(twin.parameters, max_precondition_dim=5)
    with pytest.raises(ValueError, match=r"gram_left \(6, 6\), which parameter 0 does not fit"):
        fewer.load_state_dict(optimizer.state_dict())


def test_named_weights_in_another_order_are_refused():
    """torch goes by their order, and would give alike weights each other's state."""
    layers = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    state = SOAP(layers.named_parameters()).state_dict()
    turned = SOAP(list(layers.named_parameters())[::-1])
    with pytest.raises(ValueError, match=r"has 'a\.weight' where this optimizer has 'b\.bias'; give it"):
        turned.load_state_dict(state)
    SOAP(layers.named_parameters()).load_state_dict(state)
    SOAP(layers.parameters()).load_state_dict(state)
    SOAP((f"module.{name}", p) for name, p in layers.named_parameters()).load_state_dict(state)


def test_a_state_by_name_as_torch_distributed_checkpoint_makes_it():
    """There a state names its parameters, and a number may be where a 0-d tensor was."""
    torch.manual_seed(0)
    model, X = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), torch.randn(8, 5)
    optimizer = SOAP(model.parameters(), lr=0.02, precondition_frequency=3)

    def train(model, optimizer):
        for _ in range(5):
            optimizer.zero_grad()
            model(X).square().sum().backward()
            optimizer.step()

    train(model, optimizer)
    state: Any = get_optimizer_state_dict(model, optimizer)
    other = copy.deepcopy(model)
    assert set(state["state"]) == dict(model.named_parameters()).keys()
    state["state"]["0.bias"]["step"] = int(state["state"]["0.bias"]["step"])
    its = SOAP(other.parameters(), precondition_frequency=3)
    set_optimizer_state_dict(other, its, state)
    for x, o in ((model, optimizer), (other, its)):
        train(x, o)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_saved_after_the_update_and_before_the_refresh():
    """The first of which builds the bases."""
    problem = Gradients([(4, 3)])
    optimizer = SOAP(problem.parameters, **OPTIONS)
    problem.fill()
    optimizer.update()
    twin = copy.deepcopy(problem)
    other = SOAP(twin.parameters, **OPTIONS)
    other.load_state_dict(optimizer.state_dict())
    for x, o in ((problem, optimizer), (twin, other)):
        o.refresh()
        x.fill()
        o.step()
    assert torch.equal(problem.parameters[0], twin.parameters[0])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda state: None, "the state has no param_groups, so it is no state_dict"),
        (lambda state: {"param_groups": state["param_groups"]}, "the state has no state"),
        (lambda state: {**state, "state": {0: {}}}, "the state has step missing, which parameter 0 does not fit"),
        (lambda state: {**state, "state": {"w": state["state"][0]}}, "which parameter w does not fit: it is not there"),
        (lambda state: {**state, "state": {}}, "the state has nothing of parameter 0, which would go on as it is"),
    ],
)
def test_half_a_state_is_refused(spoil, words):
    optimizer = SOAP([nn.Parameter(torch.zeros(3, 2))])
    with pytest.raises(ValueError, match=words):
        optimizer.load_state_dict(spoil(optimizer.state_dict()))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"])
def test_a_copy_with_its_model_goes_on_to_the_same_bits(again):
    torch.manual_seed(0)
    model = nn.Linear(5, 4)
    optimizer, X = SOAP(model.parameters(), lr=0.02, precondition_frequency=3), torch.randn(8, 5)
    torch.optim.lr_scheduler.StepLR(optimizer, 2)  # it wraps `step` of this object alone

    def train(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            model(X).square().sum().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    train(model, optimizer, 4)
    other, its = again((model, optimizer))
    expected = train(model, optimizer, 6)
    assert all(torch.equal(a, b) for a, b in zip(train(other, its, 6), expected, strict=True))
    assert its.state[other.weight]["exp_avg"].equal(optimizer.state[model.weight]["exp_avg"])


def test_weights_in_another_layout():
    one, two = Gradients([(4, 3, 2, 2)]), Gradients([(4, 3, 2, 2)])
    two.parameters[0].data = two.parameters[0].data.to(memory_format=torch.channels_last)
    for problem in (one, two):
        optimizer = SOAP(problem.parameters, **OPTIONS)
        for _ in range(3):
            problem.fill()
            optimizer.step()
    assert two.parameters[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(one.parameters[0], two.parameters[0])


def test_sparse_gradients_are_refused():
    table = nn.Embedding(5, 3, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="SOAP takes dense ones only; build the embedding with sparse=False"):
        SOAP(table.parameters()).step()


def test_the_closure_and_a_step_inside_autocast():
    ours, theirs = Regression([4, 4, 4], torch.float32), Regression([4, 4, 4], torch.float32)
    optimizer, other = SOAP(ours.net.parameters()), SOAP(theirs.net.parameters())

    def closure():
        optimizer.zero_grad()
        loss = (ours.net(ours.X) - ours.Y).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        loss = optimizer.step(closure)
        assert loss is not None and loss.isfinite()
        other.zero_grad()
        (theirs.net(theirs.X) - theirs.Y).square().mean().backward()
        with torch.autocast("cpu", torch.bfloat16):
            other.step()
    for p, q in zip(ours.net.parameters(), theirs.net.parameters(), strict=True):
        assert torch.equal(p, q)


def test_the_precision_of_products_is_put_back():
    flags = torch.backends.cuda.matmul
    before = flags.fp32_precision
    with matmul_precision("tf32"):
        assert flags.fp32_precision == "tf32"
    assert flags.fp32_precision == before
    assert torch.get_float32_matmul_precision() in ("highest", "high", "medium")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": -1.0}, "lr is -1.0; choose 0 or more"),
        ({"betas": (0.9, 1.0)}, r"betas is \(0.9, 1.0\)"),
        ({"eps": -1e-8}, "eps is -1e-08"),
        ({"eps": 0.0}, "eps is 0.0; choose a positive number"),  # 0/0 in the first step
        ({"eps": 1e-50}, "eps is 1e-50; choose a positive number that float32 holds"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"precondition_frequency": 0}, "precondition_frequency is 0; choose 1 or more"),
        ({"max_precondition_dim": -1}, "max_precondition_dim is -1"),
        ({"max_precondition_dim": "all"}, "max_precondition_dim is 'all'; choose 0 or more"),
        ({"max_precondition_dim": None}, "max_precondition_dim is None"),
        ({"lr": 10**400}, "lr is 10000000"),
        ({"betas": (0.9, 10**400)}, r"betas is \(0.9, 1000"),
        ({"lr": torch.ones(2)}, r"lr is tensor\(\[1., 1.\]\)"),
        ({"lr": torch.tensor(-1.0)}, "lr is -1.0; choose 0 or more"),
        ({"stagger": "no"}, "stagger is 'no'; choose one of True, False"),
        ({"overlap": None}, "overlap is None"),
        ({"refresh": "svd"}, "refresh is 'svd'; choose one of 'qr', 'eigh'"),
        ({"products": "bf16"}, "products is 'bf16'; choose one of 'tf32', 'float32'"),
    ],
)
def test_what_makes_no_sense_is_named(options, words):
    with pytest.raises(ValueError, match=words):
        SOAP([nn.Parameter(torch.zeros(2))], **options)


def test_options_of_all_groups_are_no_groups_own():
    """They would not be heeded there."""
    group = {"params": [nn.Parameter(torch.zeros(2, 3))], "max_precondition_dim": 0}
    with pytest.raises(ValueError, match="a parameter group has max_precondition_dim, which all groups share"):
        SOAP([group])


def test_numbers_of_numpy_give_no_warning():
    options: dict[str, Any] = {"lr": np.float32(1e-3), "betas": (np.float16(0.5), 0.9)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SOAP([nn.Parameter(torch.zeros(2))], **options)


def test_a_model_that_was_moved_since_is_told():
    """The device "meta" stands in for a GPU."""
    weight = nn.Parameter(torch.zeros(3, 2))
    optimizer = SOAP([weight])
    torch.utils.swap_tensors(weight, nn.Parameter(torch.zeros(3, 2, device="meta")))
    weight.grad = torch.zeros(3, 2, device="meta")
    with pytest.raises(ValueError, match=r"weights are on meta, and SOAP's state on cpu.*after model\.to"):
        optimizer.step()


def test_complex_and_sparse_weights_are_refused():
    with pytest.raises(ValueError, match="SOAP takes real ones only"):
        SOAP([nn.Parameter(torch.zeros(2, dtype=torch.complex64))])
    with pytest.raises(ValueError, match="sparse_coo; SOAP takes dense ones only"):
        SOAP([nn.Parameter(torch.eye(3).to_sparse())])


def test_it_is_public():
    assert wellcond.SOAP is SOAP
