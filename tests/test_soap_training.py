"""Training with SOAP: learns, skips bad steps, resumes to the bit, shares its work over processes, refuses shards."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from training_cases import OnePoisoned, final, finish, passing_fault, power_cut, run, start, tiny

from wellcond.config import OptimConfig, TrainConfig, from_json, to_json
from wellcond.optim import build_updates
from wellcond.reproduction.experiments import identity
from wellcond.runs import Run
from wellcond.training import checkpoints, trainer

SOAP = OptimConfig(name="soap", lr=3e-3, betas=(0.95, 0.95), clip=1.0, warmup_epochs=1.0, precondition_frequency=3)
CONFIG = tiny(optim=SOAP, ema=0.9, accumulate=2)
# Only short sides are rotated: the small eigenvalues of a young ViT's gradients lie under float64's rounding, and the
# first basis turns with it, whoever computes it. Long sides are shared in a test of their own.
FLOAT64 = tiny(precision="float64", epochs=4, optim=replace(SOAP, precondition_frequency=5, max_precondition_dim=5))


def saved(out: Path, file: str) -> dict[str, torch.Tensor]:
    step = checkpoints.steps(out / "checkpoints")[0]
    return load_file(out / "checkpoints" / checkpoints.name_of(step) / f"{file}.safetensors")


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "run"
    run(CONFIG, out)
    return out


def test_it_learns(straight):
    losses = [row["loss"] for row in Run(straight).rows() if row["kind"] == "train"]
    assert losses[-1] < 0.9 * losses[0]


def test_the_state_is_by_parameter_name_and_its_bases_are_orthonormal(straight):
    state = saved(straight, "optimizer")
    assert state["model.blocks.0.attn.qkv.weight/basis_left"].shape == (48, 48)
    assert state["model.patch_embed.proj.weight/basis_right"].shape == (48, 48)  # (16, 3, 4, 4) as 16 × 48
    assert "model.norm.weight/basis_left" not in state
    bases = [t.double() for name, t in state.items() if "/basis" in name]
    assert all((Q.mT @ Q - torch.eye(len(Q))).abs().max() < 1e-5 for Q in bases)
    assert {t.item() for name, t in state.items() if name.endswith("/turn")} == {15}


def test_killed_and_resumed(straight, tmp_path):
    assert finish(start(CONFIG, tmp_path / "run", fault=("before a step", 8))) == [-signal.SIGKILL]
    assert finish(start(CONFIG, tmp_path / "run")) == [0]
    assert final(tmp_path / "run") == final(straight)


@pytest.mark.parametrize("at", range(1, 15, 3))
def test_cut_at_any_turn_and_resumed(at, straight, tmp_path, monkeypatch):
    """Between refreshes of every phase, and before the second one."""
    config = replace(CONFIG, checkpoint_every=1)
    with power_cut(monkeypatch, at=at):
        run(config, tmp_path / "run")
    run(config, tmp_path / "run")
    ours, theirs = final(tmp_path / "run"), final(straight)
    assert [name for name in theirs if ours[name] != theirs[name]] == []


def test_a_bad_step_leaves_weights_and_statistics_as_they_were(tmp_path, monkeypatch):
    """Only the clock of the refreshes goes on; a basis whose turn it was may be a better one of the same statistics."""
    config = replace(CONFIG, max_bad_steps=3, checkpoint_every=100)
    states = {}
    advance = trainer.Trainer.advance

    def watched(self, stop):
        before = {f: {n: t.clone() for n, t in ts.items()} for f, ts in self.parts.live().items()}
        told = advance(self, stop)
        states[self.tally.step - 1] = (
            before,
            {f: {n: t.clone() for n, t in ts.items()} for f, ts in self.parts.live().items()},
        )
        return told

    monkeypatch.setattr(trainer.Trainer, "advance", watched)
    run(config, tmp_path / "run", OnePoisoned)
    bad = [json.loads(path.read_text())["step"] for path in (tmp_path / "run" / "replay").iterdir()]
    assert len(bad) == 3
    for step in bad:
        before, after = states[step]
        for file, tensors in before.items():
            for name, tensor in tensors.items():
                assert after[file][name].isfinite().all(), name
                if not name.endswith(("/turn", "/basis_left", "/basis_right", "/exp_avg_sq")):
                    assert torch.equal(tensor, after[file][name]), (step, file, name)
                if name.endswith("/exp_avg_sq"):
                    assert torch.equal(tensor.flatten().sort()[0], after[file][name].flatten().sort()[0]), name


def test_rolled_back_to_the_beginning_it_builds_its_bases_again(tmp_path, monkeypatch):
    config = replace(CONFIG, max_bad_steps=3, checkpoint_every=100)
    run(config, tmp_path / "straight")
    passing_fault(monkeypatch, range(8, 14))
    run(config, tmp_path / "run")
    assert final(tmp_path / "run")["optimizer.safetensors"] == final(tmp_path / "straight")["optimizer.safetensors"]


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("two") / "run"
    assert finish(start(FLOAT64, out, world_size=2)) == [0, 0]
    return out


def test_two_processes_equal_one(two, tmp_path):
    run(FLOAT64, tmp_path / "one")
    for file in ("model", "optimizer"):
        ours, theirs = saved(tmp_path / "one", file), saved(two, file)
        assert ours.keys() == theirs.keys()
        for name in ours:
            # eigenvectors have no sign
            a, b = (t[name].abs() if "/basis" in name else t[name] for t in (ours, theirs))
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(("fault", "rank"), [(("before a step", 13), 1), (("inside a file of a save", 8), 0)])
def test_two_processes_killed_and_resumed(fault, rank, two, tmp_path):
    codes = finish(start(FLOAT64, tmp_path / "run", fault=fault, rank=rank, world_size=2))
    assert codes[rank] == -signal.SIGKILL
    assert finish(start(FLOAT64, tmp_path / "run", world_size=2)) == [0, 0]
    assert final(tmp_path / "run") == final(two)


def test_shards_are_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"SOAP needs whole matrices.*\(FSDP2\); use parallel ddp, or .*adamw") as told:
        _sharded_updates(tmp_path)
    assert "\n" not in str(told.value)


def _sharded_updates(folder: Path) -> None:
    import timm
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from wellcond.objectives import Supervised

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        model = timm.create_model("vit_tiny_patch16_224", img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2)
        objective = Supervised(model)
        fully_shard(objective, mesh=init_device_mesh("cpu", (1,)))
        build_updates(objective, SOAP)
    finally:
        dist.destroy_process_group()


def test_the_config_goes_through_json_and_old_experiments_keep_their_identity():
    assert from_json(to_json(CONFIG), TrainConfig) == CONFIG
    plain = tiny()
    assert identity(replace(plain, optim=replace(plain.optim, precondition_frequency=10))) == identity(plain)
    assert identity(plain) == "a0b41b92bb36"
    assert identity(CONFIG) != identity(replace(CONFIG, optim=replace(SOAP, refresh="eigh")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"precondition_frequency": 0}, "optim.precondition_frequency is 0; choose 1 or more"),
        ({"max_precondition_dim": -1}, "optim.max_precondition_dim is -1"),
        ({"refresh": "svd"}, "optim.refresh is 'svd'"),
        ({"name": "adamw", "precondition_frequency": 5}, "optim.precondition_frequency is 5, which only soap has; say"),
        ({"name": "muon", "refresh": "eigh", "precondition_frequency": 10}, "optim.refresh is eigh, which only soap"),
    ],
)
def test_bad_options_are_named(changes, words):
    with pytest.raises(ValueError, match=words):
        replace(SOAP, **changes)


def test_the_eigenvalue_corrected_form_trains(tmp_path):
    optim = OptimConfig(name="soap", lr=3e-3, betas=(0.9, 0.95), refresh="eigh", precondition_frequency=4)
    run(tiny(optim=optim), tmp_path / "run")
    losses = [row["loss"] for row in Run(tmp_path / "run").rows() if row["kind"] == "train"]
    assert losses[-1] < 0.9 * losses[0]
