"""SOAP on a GPU: as on the CPU, in a CUDA graph as outside, beside the next step as after this one, without waits."""

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from soap_cases import Gradients
from test_soap import statistics
from training_cases import OnePoisoned, does_not_wait, graph_equals_eager, resumes_to_the_bit, run, same_bits, tiny

from wellcond.config import OptimConfig
from wellcond.optim.soap import SOAP
from wellcond.optim.soap.bases import cholesky_qr, next_basis
from wellcond.optim.soap.sharing import Sharing
from wellcond.training import checkpoints, train

pytestmark = pytest.mark.gpu


@pytest.fixture(params=[False, True], ids=["inline", "beside"])
def overlap(request, monkeypatch):
    monkeypatch.setitem(SOAP.__init__.__kwdefaults__, "overlap", request.param)
    return request.param


def config(**changes):
    optim = OptimConfig(name="soap", lr=3e-3, betas=(0.95, 0.95), clip=1.0, precondition_frequency=3)
    return tiny(
        **{"device": "cuda", "graph": "on", "deterministic": True, "ema": 0.9, "epochs": 3, "optim": optim, **changes}
    )


def moved(problem: Gradients, device: str, **options) -> list[torch.Tensor]:
    problem = copy.deepcopy(problem)
    parameters = [torch.nn.Parameter(p.detach().to(device)) for p in problem.parameters]
    optimizer = SOAP(parameters, lr=0.02, precondition_frequency=3, **options)
    for _ in range(9):
        problem.fill()
        for p, q in zip(parameters, problem.parameters, strict=True):
            assert q.grad is not None
            p.grad = q.grad.to(device)
        optimizer.step()
    return [p.detach().cpu() for p in parameters]


@pytest.mark.parametrize(
    ("dtype", "products", "atol"),
    [(torch.float64, "float32", 1e-8), (torch.float32, "float32", 1e-4), (torch.float32, "tf32", 1e-2)],
)
def test_gpu_and_cpu_agree(dtype, products, atol, overlap):
    problem = Gradients([(12, 12), (12, 12), (7, 7), (9,)], dtype)
    gpu, cpu = (moved(problem, device, products=products) for device in ("cuda", "cpu"))
    for ours, theirs in zip(gpu, cpu, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=0, atol=atol)


@pytest.mark.parametrize("n", [40, 300])
def test_qr_by_cholesky_on_the_gpu(n):
    A, Q = (torch.cat([t, t]).cuda() for t in statistics(np.geomspace(1, 1e-5, n)))
    ours, order = next_basis(A, Q, "cholesky")
    theirs, same = next_basis(A.cpu(), Q.cpu(), "cholesky")
    assert torch.equal(order.cpu(), same)
    torch.testing.assert_close((ours.cpu() * theirs).sum(-2).abs(), torch.ones(2, n), rtol=0, atol=1e-5)
    P = torch.randn(3, n, n, dtype=torch.float64, device="cuda")
    torch.testing.assert_close(cholesky_qr(P, at_once=True), cholesky_qr(P, at_once=False), rtol=0, atol=1e-8)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_graph_equals_eager_to_the_bit(precision, overlap, tmp_path):
    base = config(precision=precision)
    graph_equals_eager(base, tmp_path)


def test_beside_the_next_step_are_the_bits_of_after_this_one(tmp_path, monkeypatch):
    for overlap in (False, True):
        monkeypatch.setitem(SOAP.__init__.__kwdefaults__, "overlap", overlap)
        run(config(precision="bf16"), tmp_path / str(overlap))
    same_bits(tmp_path / "False", tmp_path / "True")


@pytest.mark.parametrize("at", [1, 4, 8])
def test_resumed_on_the_gpu_to_the_bit(at, overlap, tmp_path, monkeypatch):
    base = config(checkpoint_every=1, precision="bf16")
    resumes_to_the_bit(base, tmp_path, monkeypatch, at=at)


@pytest.mark.parametrize("graph", ["on", "off"])
def test_a_step_does_not_wait_for_the_gpu(graph, overlap, tmp_path):
    base = config(graph=graph, deterministic=False, epochs=20)
    does_not_wait(base, tmp_path / "run", warm_up=8)


@pytest.mark.parametrize("graph", ["on", "off"])
def test_a_bad_batch_is_skipped(graph, overlap, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = train(config(graph=graph, deterministic=False), tmp_path / "run", open_supply=OnePoisoned)
    assert summary.skipped == 3
    path = tmp_path / "run" / "checkpoints" / checkpoints.name_of(15)
    for file in ("model", "optimizer", "average"):
        assert all(tensor.isfinite().all() for tensor in load_file(path / f"{file}.safetensors").values())
    counts = {t.item() for n, t in load_file(path / "optimizer.safetensors").items() if n.endswith("/step")}
    assert counts == {12.0}


def test_a_group_of_one_rank_is_captured_like_none(tmp_path):
    run(config(), tmp_path / "none")
    where = torch.device("cuda", 0)
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1, device_id=where)
    try:
        run(config(), tmp_path / "one")
        group = dist.group.WORLD
        assert group is not None
        weights = [torch.randn(4, 3, device=where, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
        parameters = [torch.nn.Parameter(W) for W in weights]
        optimizer = SOAP(parameters, process_group=group)
        assert optimizer.sharing is None
        sharing, stacks = Sharing(group), [stack for _, stack in optimizer.layout.stacks]
        sharing.plan(stacks)
        sharing.send_round_()
        before = [p.detach().clone() for p in parameters]
        torch.cuda.set_sync_debug_mode("error")
        try:
            sharing.send_round_()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))
        assert sharing.whole(stacks[0]) is stacks[0]
    finally:
        dist.destroy_process_group()
    same_bits(tmp_path / "none", tmp_path / "one")
