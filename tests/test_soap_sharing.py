"""SOAP whose weights are shared out to ranks (gloo): the bits of one that keeps everything, in a part of its memory."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from soap_cases import HALF, LATE, NUM_STEPS, ODD, OPTIONS, Gradients, alone, named, share, steps
from test_soap_training import CONFIG, FLOAT64, saved
from training_cases import CONTEXT, OnePoisoned, final, finish, power_cut, run, start

from wellcond.config import MAY_CHANGE
from wellcond.optim.soap import SOAP
from wellcond.optim.soap.sharing import work_of
from wellcond.optim.soap.stacks import rotated_sides
from wellcond.optim.soap.turns import deal, spread
from wellcond.runs_page.groups import _essence


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request, tmp_path_factory) -> tuple[int, Path]:
    folder = tmp_path_factory.mktemp("shared")
    problem, optimizer = alone(torch.float64)
    steps(problem, optimizer, range(HALF))
    torch.save(optimizer.state_dict(), folder / "alone.pt")
    torch.save(problem.generator.get_state(), folder / "generator.pt")
    save_file({str(i): p.detach() for i, p in enumerate(problem.parameters)}, folder / "alone.safetensors")
    workers = [CONTEXT.Process(target=share, args=(r, request.param, str(folder))) for r in range(request.param)]
    for worker in workers:
        worker.start()
    assert finish(workers, timeout=120) == [0] * request.param
    return request.param, folder


def same_bits(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16"])
def test_every_rank_has_the_bits_of_one_that_keeps_everything(name, ranks):
    num_ranks, folder = ranks
    problem, optimizer = alone(getattr(torch, name))
    steps(problem, optimizer, range(NUM_STEPS))
    for rank in range(num_ranks):
        same_bits(load_file(folder / f"{name}-{rank}.safetensors"), named(problem, optimizer))


def test_the_state_of_ranks_goes_on_in_one_process(ranks):
    _, folder = ranks
    problem, optimizer = alone(torch.float64)
    steps(problem, optimizer, range(HALF))
    twin = copy.deepcopy(problem)
    other = SOAP(twin.parameters, **OPTIONS)
    other.load_state_dict(torch.load(folder / "float64-1.pt"))
    same_bits(named(twin, other), load_file(folder / "float64-half-0.safetensors"))
    steps(twin, other, range(HALF, NUM_STEPS))
    same_bits(named(twin, other), load_file(folder / "float64-0.safetensors"))


def test_the_state_of_one_process_goes_on_in_ranks(ranks):
    num_ranks, folder = ranks
    for rank in range(num_ranks):
        ours = load_file(folder / f"continued-{rank}.safetensors")
        same_bits(ours, load_file(folder / "float64-0.safetensors"))


def test_a_group_that_comes_later_and_ranks_without_work(ranks):
    num_ranks, folder = ranks
    problem = Gradients(LATE)
    optimizer = SOAP(problem.parameters[:1], **OPTIONS)
    steps(problem, optimizer, range(3))
    optimizer.add_param_group({"params": problem.parameters[1:], "lr": 0.1})
    steps(problem, optimizer, range(3, NUM_STEPS))
    for rank in range(num_ranks):
        same_bits(load_file(folder / f"late-{rank}.safetensors"), named(problem, optimizer))


def test_other_shapes_are_equal_on_all_ranks_and_to_rounding_those_of_one(ranks):
    num_ranks, folder = ranks
    problem = Gradients(ODD)
    steps(problem, SOAP(problem.parameters, **OPTIONS), range(NUM_STEPS))
    found = [load_file(folder / f"odd-{rank}.safetensors") for rank in range(num_ranks)]
    for i, p in enumerate(problem.parameters):
        assert all(torch.equal(found[0][str(i)], other[str(i)]) for other in found)
        np.testing.assert_allclose(found[0][str(i)].numpy(), p.detach().numpy(), rtol=0, atol=1e-10)


def test_a_rank_keeps_its_share_only_and_sends_one_message_a_step(ranks):
    num_ranks, folder = ranks
    told = [load_file(folder / f"told-{rank}.safetensors") for rank in range(num_ranks)]
    whole = sum(t.nbytes for key, t in load_file(folder / "float64-0.safetensors").items() if "/" in key)
    kept = [t["bytes"].item() for t in told]
    assert 1 <= sum(kept) / whole < 1.1  # there are masks, too
    assert max(kept) < 1.2 * whole / num_ranks
    assert [t["messages"].item() for t in told] == [HALF] * num_ranks


# whose a weight is


def longest(work, owners, num_ranks: int, kind: str) -> tuple[float, float]:
    """(what the slowest rank takes, what no deal can beat), summed over the steps."""
    whens = {key for piece in work for key in piece if key[0] == kind}
    taken = bound = 0.0
    for key in whens:
        costs = [piece.get(key, 0) for piece in work]
        taken += max(sum(c for c, o in zip(costs, owners, strict=True) if o == r) for r in range(num_ranks))
        bound += max(*costs, sum(costs) / num_ranks)
    return taken, bound


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_vit_b_is_dealt_evenly_in_every_step(num_ranks):
    with torch.device("meta"):
        shapes = sorted(p.shape for p in timm.create_model("vit_base_patch16_224").parameters())
    sides = [(i, side, n) for i, shape in enumerate(shapes) for side, n in rotated_sides(shape, 10_000).items()]
    phases: list[dict[str, int]] = [{} for _ in shapes]
    for (i, side, _), phase in zip(sides, spread([n**3 for *_, n in sides], 10), strict=True):
        phases[i][side] = phase
    work = [work_of(shape, 10_000, 10, turns) for shape, turns in zip(shapes, phases, strict=True)]
    owners = deal(work, num_ranks)
    for kind, slack in {"weights": 1.1, "products": 1.1, "refresh": 1.3}.items():
        taken, bound = longest(work, owners, num_ranks, kind)
        assert taken <= slack * bound, kind
    numbers = [2 * math.prod(s) + 2 * sum(n**2 for n in rotated_sides(s, 10_000).values()) for s in shapes]
    loads = [sum(n for n, o in zip(numbers, owners, strict=True) if o == r) for r in range(num_ranks)]
    assert max(loads) <= 1.1 * sum(loads) / num_ranks


def test_everything_goes_somewhere():
    assert deal([], 3) == []
    assert deal([{}, {("weights", 0): 1}], 3) == [1, 0]
    assert sorted(deal([{("weights", 0): 1}] * 6, 3)) == [0, 0, 1, 1, 2, 2]


# training

SHARED = replace(CONFIG, max_bad_steps=3)
KEPT_BY_ALL = replace(SHARED, optim=replace(SHARED.optim, shard=False))
SHORT = replace(FLOAT64, epochs=2, checkpoint_every=4)


def test_shared_and_kept_by_all_are_the_same_run(tmp_path):
    """Two processes, bad steps, clipping, an average: every byte."""
    for name, config in {"shared": SHARED, "all": KEPT_BY_ALL}.items():
        assert finish(start(config, tmp_path / name, OnePoisoned, world_size=2)) == [0, 0]
    assert final(tmp_path / "shared") == final(tmp_path / "all")


def test_it_may_change_in_a_run():
    assert "optim.shard" in MAY_CHANGE
    assert _essence(KEPT_BY_ALL) == _essence(SHARED)


@pytest.mark.parametrize("first", [1, 2])
def test_another_number_of_processes_goes_on(first, tmp_path, monkeypatch):
    if first == 1:
        with power_cut(monkeypatch, at=6):
            run(SHORT, tmp_path / "run")
        assert finish(start(SHORT, tmp_path / "run", world_size=2)) == [0, 0]
    else:
        assert 0 not in finish(start(SHORT, tmp_path / "run", world_size=2, fault=("before a step", 7)))
        run(SHORT, tmp_path / "run")
    run(SHORT, tmp_path / "one")
    for file in ("model", "optimizer"):
        ours, theirs = saved(tmp_path / "run", file), saved(tmp_path / "one", file)
        assert ours.keys() == theirs.keys()
        for name in ours:
            # eigenvectors have no sign
            a, b = (t[name].abs() if "/basis" in name else t[name] for t in (ours, theirs))
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-10, err_msg=name)
