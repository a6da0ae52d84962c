"""Several processes (gloo): killed and resumed to the bit, equal to one process with the whole batch, FSDP2 to one."""

import datetime
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file
from training_cases import (
    NUM_NOISE,
    AllPoisoned,
    JudgedByTheLast,
    OnePoisoned,
    final,
    finish,
    run,
    start,
    tiny,
    with_dropout,
)

import wellcond
from wellcond.config import AlongConfig, GrayingConfig, OptimConfig
from wellcond.runs import Run
from wellcond.training import checkpoints, processes
from wellcond.training.processes import Processes, choose_device

CONFIG = with_dropout(tiny(ema=0.9, accumulate=2))


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("two") / "run"
    assert finish(start(CONFIG, out, world_size=2)) == [0, 0]
    return out


@pytest.mark.parametrize(
    ("fault", "rank"), [(("before a step", 8), 1), (("inside a file of a save", 7), 0), (("after the rename", 3), 0)]
)
def test_two_processes_killed_and_resumed(fault, rank, straight, tmp_path):
    codes = finish(start(CONFIG, tmp_path / "run", fault=fault, rank=rank, world_size=2))
    assert codes[rank] == -signal.SIGKILL
    assert finish(start(CONFIG, tmp_path / "run", world_size=2)) == [0, 0]
    assert final(tmp_path / "run") == final(straight)


def test_a_signal_to_one_process_stops_both_at_the_same_step(straight, tmp_path):
    processes = start(CONFIG, tmp_path / "run", world_size=2)
    log = tmp_path / "run" / "metrics.jsonl"
    while not (log.exists() and log.read_bytes()) and all(p.is_alive() for p in processes):
        processes[0].join(0.01)
    os.kill(processes[1].pid, signal.SIGTERM)
    codes = finish(processes)
    assert codes == [0, 0] or set(codes) <= {75, -signal.SIGKILL}  # `finish` ends the slower one, which has saved
    assert finish(start(CONFIG, tmp_path / "run", world_size=2)) == [0, 0]
    assert final(tmp_path / "run") == final(straight)


def weights(out: Path, file: str = "model") -> dict[str, torch.Tensor]:
    step = checkpoints.steps(out / "checkpoints")[0]
    return load_file(out / "checkpoints" / checkpoints.name_of(step) / f"{file}.safetensors")


FLOAT64 = tiny(precision="float64", epochs=4, optim=OptimConfig(lr=3e-3, clip=0.5), ema=0.9)
FLOAT64 = replace(FLOAT64, model=replace(FLOAT64.model, drop_path=0.3))


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """20 steps of one process with the whole batch."""
    out = tmp_path_factory.mktemp("alone") / "run"
    assert run(FLOAT64, out).steps == 20
    return out


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_equal_one_with_the_whole_batch(parallel, alone, tmp_path):
    config = replace(FLOAT64, parallel=parallel, monitor_every=2)
    assert finish(start(config, tmp_path / "run", world_size=2)) == [0, 0]
    for file in ("model", "average", "optimizer"):
        one, two = weights(alone, file), weights(tmp_path / "run", file)
        assert one.keys() == two.keys()
        for name in one:
            np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), rtol=0, atol=1e-10, err_msg=name)


def test_two_processes_equal_one_with_muon_too(tmp_path):
    config = replace(FLOAT64, optim=OptimConfig(name="muon", lr=3e-3))
    run(config, tmp_path / "one")
    assert finish(start(replace(config, parallel="ddp"), tmp_path / "two", world_size=2)) == [0, 0]
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_bad_batch_of_one_process_is_skipped_by_both(parallel, tmp_path):
    """The sample is NaN on one of the ranks; both skip its step, and the weights stay those of one process."""
    run(FLOAT64, tmp_path / "one", OnePoisoned)
    config = replace(FLOAT64, parallel=parallel)
    assert finish(start(config, tmp_path / "two", OnePoisoned, world_size=2)) == [0, 0]
    assert (Run(tmp_path / "two").read_summary() or {})["skipped"] == 4
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_every_process_judges_the_model_that_is_saved(parallel, tmp_path):
    """Each has seen other images: their batch norms would have statistics of their own, and so would the averages."""
    options = (("dim", 8), ("depth", 2), ("kernel_size", 3))
    model = replace(FLOAT64.model, name="convmixer_tiny", drop_path=0.0, options=options)
    config = replace(FLOAT64, model=model, parallel=parallel, batch_size=2, epochs=1)
    assert finish(start(config, tmp_path / "run", JudgedByTheLast, world_size=2)) == [0, 0]
    with torch.no_grad():
        found = wellcond.load(tmp_path / "run")(JudgedByTheLast.noise()).argmax(1)
    right = int((found == torch.arange(NUM_NOISE) % 4).sum())
    assert (Run(tmp_path / "run").read_summary() or {})["top1"] == 100 * right / NUM_NOISE


def test_models_of_stages_are_sharded_by_block():
    model = timm.create_model("swin_tiny_patch4_window7_224", img_size=32, window_size=4, embed_dim=24, depths=(2, 2))
    lists = [name for name, module in model.named_modules() if processes._is_list_of_blocks(module)]
    assert lists == ["layers", "layers.0.blocks", "layers.1.blocks"]
    mixer = timm.models.ConvMixer(dim=8, depth=2)
    assert [n for n, module in mixer.named_modules() if processes._is_list_of_blocks(module)] == ["blocks"]


def test_both_processes_roll_back_and_stop(tmp_path):
    config = replace(FLOAT64, max_bad_steps=3)
    codes = finish(start(config, tmp_path / "run", AllPoisoned, world_size=2))
    assert set(codes) <= {1, -signal.SIGKILL}  # `finish` ends the slower one
    assert [row["event"] for row in Run(tmp_path / "run").rows("timings.jsonl")] == ["start", "rollback"]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_grayed_skipless_linear_models_in_two_processes(parallel, tmp_path):
    graying = GrayingConfig(method="dct", precision="exact")
    changed = replace(FLOAT64.model, attention="linear", k=2.0, cut_mlp_skips=True, graying=graying)
    config = replace(FLOAT64, model=changed, parallel=parallel)
    run(config, tmp_path / "one")
    assert finish(start(config, tmp_path / "two", world_size=2)) == [0, 0]
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), rtol=0, atol=1e-10, err_msg=name)


def test_accumulation_equals_the_whole_batch(alone, tmp_path):
    run(replace(FLOAT64, accumulate=4), tmp_path / "run")
    one, two = weights(alone), weights(tmp_path / "run")
    for name in one:
        np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), rtol=0, atol=1e-10, err_msg=name)


def test_an_fsdp_checkpoint_continues_and_loads_in_one_process(tmp_path):
    """Stopped under FSDP2 with two processes, finished by one without: the weights of one process all along."""
    sharded = replace(FLOAT64, parallel="fsdp", checkpoint_every=5)
    finish(start(sharded, tmp_path / "run", world_size=2, fault=("before a step", 12)))
    assert checkpoints.steps(tmp_path / "run" / "checkpoints")[0] == 10
    model = wellcond.load(tmp_path / "run")
    assert torch.isfinite(model(torch.zeros(1, 3, 8, 8, dtype=torch.float64))).all()
    run(replace(FLOAT64, checkpoint_every=5), tmp_path / "run")
    run(FLOAT64, tmp_path / "one")
    one, two = weights(tmp_path / "one"), weights(tmp_path / "run")
    for name in one:
        np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), rtol=0, atol=1e-10, err_msg=name)


def test_ranks_take_contiguous_chunks():
    batch = torch.arange(8)
    parts = [Processes(rank=r, world_size=4).part(batch) for r in range(4)]
    assert torch.equal(torch.cat(parts), batch)


def test_a_batch_that_does_not_divide_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match=r"batch_size is 8, which 3 processes × accumulate 1 .* multiple of 3"):
        run(tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("judges", "hours"), [((), 0.5), (("knn",), 12)])
def test_ranks_wait_longer_for_judges(judges, hours, tmp_path, monkeypatch):
    """The first rank judges alone: a probe may take longer than a group waits without them."""
    told = {}

    def join(*words, **more):
        told.update(more)
        raise InterruptedError

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(processes, "rendezvous", lambda *words, **more: iter([(None, 0, 2)]))
    monkeypatch.setattr(processes, "PrefixStore", lambda *words: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", join)
    with pytest.raises(InterruptedError):
        run(tiny(along=AlongConfig(judges=judges)), tmp_path / "run")
    assert told["timeout"] == datetime.timedelta(hours=hours)


def test_a_gpu_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="'cuda', but torch sees no GPU; use device cpu"):
        choose_device("cuda")
    assert choose_device("auto") == torch.device("cpu")
