"""MAE and DINO through the one loop: killed and resumed to the bit, in one process and in two, loaded again."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_cases import OnePoisoned, final, finish, run, start, without_labels

import wellcond
from wellcond.config import OptimConfig
from wellcond.runs import Run
from wellcond.training import checkpoints

OBJECTIVES = ("mae", "dino")
EXTRA = {"mae": {"ema": 0.9}, "dino": {}}
OPTIM = OptimConfig(lr=3e-3, clip=3.0, warmup_epochs=1.0, weight_decay=0.04, weight_decay_end=0.4)


def config(name: str, **changes):
    return without_labels(name, **{"optim": OPTIM, "accumulate": 2, "monitor_every": 2, **EXTRA[name], **changes})


def float64(name: str, **changes):
    base = config(name, precision="float64", epochs=4, monitor_every=0, **changes)
    return replace(base, model=replace(base.model, drop_path=0.0))


def weights(out: Path, file: str = "model") -> dict[str, torch.Tensor]:
    step = checkpoints.steps(out / "checkpoints")[0]
    return load_file(out / "checkpoints" / checkpoints.name_of(step) / f"{file}.safetensors")


def compare(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_killed_and_resumed_to_the_bit(name, tmp_path):
    run(config(name), tmp_path / "straight")
    for fault in (("after a step", 4), ("inside a file of a save", 3), ("after an evaluation", 2)):
        assert finish(start(config(name), tmp_path / "run", fault=fault)) == [-signal.SIGKILL], fault
    assert finish(start(config(name), tmp_path / "run")) == [0]
    assert final(tmp_path / "run") == final(tmp_path / "straight")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_processes_killed_and_resumed_to_the_bit(name, tmp_path):
    assert finish(start(config(name), tmp_path / "straight", world_size=2)) == [0, 0]
    codes = finish(start(config(name), tmp_path / "run", world_size=2, rank=1, fault=("before a step", 8)))
    assert codes[1] == -signal.SIGKILL
    assert finish(start(config(name), tmp_path / "run", world_size=2)) == [0, 0]
    assert final(tmp_path / "run") == final(tmp_path / "straight")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_processes_equal_one(name, parallel, tmp_path):
    """20 steps of whole batches against two processes with two chunks each; the validation loss, too."""
    run(float64(name, accumulate=1), tmp_path / "one")
    assert finish(start(float64(name, parallel=parallel), tmp_path / "two", world_size=2)) == [0, 0]
    for file in ("model", "optimizer"):
        compare(weights(tmp_path / "one", file), weights(tmp_path / "two", file))
    one, two = ([r["val_loss"] for r in Run(tmp_path / w).rows() if r["kind"] == "eval"] for w in ("one", "two"))
    assert len(one) == 4 and one == pytest.approx(two, rel=1e-10)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_bad_batch_of_one_process_leaves_no_trace(name, tmp_path):
    """Weights, teacher and centre are those of one process that skipped the same steps, all finite."""
    run(float64(name), tmp_path / "one", OnePoisoned)
    assert finish(start(float64(name), tmp_path / "two", OnePoisoned, world_size=2)) == [0, 0]
    assert (Run(tmp_path / "two").read_summary() or {})["skipped"] == 4
    compare(weights(tmp_path / "one"), weights(tmp_path / "two"))
    assert all(t.isfinite().all() for t in weights(tmp_path / "one").values())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_learns_and_loads(name, tmp_path):
    base = replace(config(name), epochs=12, model=replace(config(name).model, drop_path=0.0))
    summary = run(base, tmp_path / "run")
    losses = [row["val_loss"] for row in Run(tmp_path / "run").rows() if row["kind"] == "eval"]
    assert losses[-1] < losses[0] - 0.01 and summary.val_loss == losses[-1] and summary.top1 is None
    model = wellcond.load(tmp_path / "run")
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 16)  # the backbone: features, no logits
