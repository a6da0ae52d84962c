"""MAE and DINO through the one loop: killed and resumed to the bit, in one process and in two, loaded again."""

import shutil
import signal
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_cases import terminated
from PIL import Image
from safetensors.torch import load_file
from training_cases import (
    OnePoisoned,
    TensorSupply,
    final,
    finish,
    power_cut,
    resumes_to_the_bit,
    run,
    same_bits,
    start,
    tiny,
    without_labels,
)

import wellcond
from wellcond import recipes
from wellcond.config import InitConfig, OptimConfig
from wellcond.data.procedural import procedural
from wellcond.runs import Run
from wellcond.training import checkpoints, train

OBJECTIVES = ("mae", "dino")
EXTRA = {"mae": {"ema": 0.9}, "dino": {}}
OPTIM = OptimConfig(lr=3e-3, clip=3.0, warmup_epochs=1.0, weight_decay=0.04, weight_decay_end=0.4)


def config(name: str, **changes):
    return without_labels(name, **{"optim": OPTIM, "accumulate": 2, "monitor_every": 2, **EXTRA[name], **changes})


def float64(name: str, **changes):
    base = config(name, precision="float64", epochs=4, monitor_every=0, **changes)
    return replace(base, model=replace(base.model, drop_path=0.3))


def weights(out: Path, file: str = "model") -> dict[str, torch.Tensor]:
    step = checkpoints.steps(out / "checkpoints")[0]
    return load_file(out / "checkpoints" / checkpoints.name_of(step) / f"{file}.safetensors")


def compare(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(two[name].numpy(), one[name].numpy(), rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_killed_and_resumed_to_the_bit(name, tmp_path):
    """Teacher and centre are among the tensors that are compared."""
    run(config(name), tmp_path / "straight")
    for fault in (("after a step", 4), ("inside a file of a save", 3)):
        assert finish(start(config(name), tmp_path / "run", fault=fault)) == [-signal.SIGKILL], fault
    assert finish(start(config(name), tmp_path / "run")) == [0]
    assert final(tmp_path / "run") == final(tmp_path / "straight")
    assert name == "mae" or {"centre", "teacher.model.pos_embed"} <= weights(tmp_path / "run").keys()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_stopped_between_an_epoch_and_its_evaluation(name, tmp_path, monkeypatch):
    """The evaluation is made by the next process, which has made no step yet."""
    run(config(name), tmp_path / "straight")
    with terminated(monkeypatch, at=4), pytest.raises(SystemExit):  # in the last step of the first epoch
        run(config(name), tmp_path / "run")
    run(config(name), tmp_path / "run")
    same_bits(tmp_path / "run", tmp_path / "straight")


def test_two_processes_killed_and_resumed_to_the_bit(tmp_path):
    assert finish(start(config("dino"), tmp_path / "straight", world_size=2)) == [0, 0]
    codes = finish(start(config("dino"), tmp_path / "run", world_size=2, rank=1, fault=("before a step", 8)))
    assert codes[1] == -signal.SIGKILL
    assert finish(start(config("dino"), tmp_path / "run", world_size=2)) == [0, 0]
    assert final(tmp_path / "run") == final(tmp_path / "straight")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_processes_equal_one(name, parallel, tmp_path):
    """20 steps of whole batches against two processes with two chunks each, of which some have a bad sample."""
    run(float64(name, accumulate=1), tmp_path / "one", OnePoisoned)
    assert finish(start(float64(name, parallel=parallel), tmp_path / "two", OnePoisoned, world_size=2)) == [0, 0]
    assert (Run(tmp_path / "two").read_summary() or {})["skipped"] == 4
    for file in ("model", "optimizer"):
        compare(weights(tmp_path / "one", file), weights(tmp_path / "two", file))
    one, two = ([r["val_loss"] for r in last_rows(tmp_path / w, "eval")] for w in ("one", "two"))
    assert len(one) == 4 and one == pytest.approx(two, rel=1e-10)
    for a, b in zip(*(last_rows(tmp_path / w, "train") for w in ("one", "two")), strict=True):
        assert a.pop("kind") == b.pop("kind") and a == pytest.approx(b, rel=1e-8)  # every number, the norm among them


def last_rows(out: Path, kind: str) -> list[dict]:
    return [row for row in Run(out).rows() if row["kind"] == kind]


def test_mae_learns(tmp_path):
    summary = run(config("mae", epochs=12), tmp_path / "run")
    losses = [row["val_loss"] for row in last_rows(tmp_path / "run", "eval")]
    assert losses[-1] < losses[0] - 0.01 and summary.val_loss == losses[-1] and summary.top1 is None


def test_a_collapse_is_told_once_while_it_runs(tmp_path):
    """A teacher that hardly lags and a learning rate far too high: every picture gets the same answer."""
    hasty = replace(config("dino").dino, momentum=0.0, freeze_epochs=0.0)
    with pytest.warns(UserWarning, match=r"epoch \d+: DINO has collapsed: .*; (raise|lower) dino") as caught:
        train(config("dino", epochs=6, dino=hasty), tmp_path / "run", open_supply=TensorSupply)
    assert sum("DINO has collapsed" in str(w.message) for w in caught) == 1


@pytest.mark.parametrize("name", OBJECTIVES)
def test_skipless_with_soap_resumes_to_the_bit(name, tmp_path, monkeypatch):
    base = config(name, optim=replace(OPTIM, name="soap", precondition_frequency=2))
    model = replace(base.model, cut_attention_skips=True, cut_mlp_skips=True, init=InitConfig(method="skipless"))
    base = replace(base, model=model)
    resumes_to_the_bit(base, tmp_path, monkeypatch, at=8)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_pictures_come_the_same_way_resident_and_streamed(name, tmp_path):
    changes = {"data.train": "procedural:24", "data.val": "procedural:10", "data.cache": tmp_path / "cache"}
    base = recipes.get(f"procedural-{name}", epochs=1, batch_size=8, log_every=1, **changes)
    for resident in ("yes", "no"):
        train(replace(base, data=replace(base.data, resident=resident), device="cpu"), tmp_path / resident)
    one, two = (final(tmp_path / resident) for resident in ("yes", "no"))
    assert one == two
    (row,) = last_rows(tmp_path / "yes", "eval")
    assert row["images"] == 10 and row["val_loss"] > 0


def test_pictures_without_labels_are_enough(tmp_path):
    folder = tmp_path / "pictures"
    for half, count in (("train", 6), ("val", 3)):
        (folder / half).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(procedural(i, size=32).image).save(folder / half / f"{i}.png")
    changes = {"data.train": str(folder), "data.val": str(folder), "data.cache": tmp_path / "cache"}
    summary = train(recipes.get("procedural-mae", epochs=1, batch_size=2, **changes), tmp_path / "run")
    assert summary.steps == 3 and summary.val_loss is not None


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_run_gives_its_backbone(name, tmp_path):
    run(config(name, epochs=1), tmp_path / "run")
    model = wellcond.load(tmp_path / "run")
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 16)  # features, no logits
    prefix, file = ("teacher.model.", "model") if name == "dino" else ("model.", "average")
    assert torch.equal(model.get_parameter("pos_embed"), weights(tmp_path / "run", file)[f"{prefix}pos_embed"])
    if name == "dino":
        student = wellcond.load(tmp_path / "run", student=True)
        assert torch.equal(student.get_parameter("pos_embed"), weights(tmp_path / "run")["model.pos_embed"])
        assert not torch.equal(student.get_parameter("pos_embed"), model.get_parameter("pos_embed"))
    else:
        with pytest.raises(ValueError, match="objective mae, which has no student"):
            wellcond.load(tmp_path / "run", student=True)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pretrained") / "run"
    run(config("dino", epochs=1), out)
    return out


def finetuned(source: Path, **changes):
    base = tiny(pretrained=str(source), epochs=1, optim=OptimConfig(lr=1e-9, min_lr=0.0, layer_decay=0.65))
    return replace(base, model=replace(base.model, **changes))


def test_fine_tuning_starts_from_the_backbone(pretrained, tmp_path, monkeypatch):
    with power_cut(monkeypatch, at=4):
        run(finetuned(pretrained), tmp_path / "run")
    shutil.move(pretrained, tmp_path / "away")  # from its first checkpoint on the run stands alone
    run(finetuned(pretrained), tmp_path / "run")
    shutil.move(tmp_path / "away", pretrained)
    theirs, ours = wellcond.load(pretrained).state_dict(), wellcond.load(tmp_path / "run").state_dict()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-6)
    assert set(ours) - set(theirs) == {"head.weight", "head.bias"}


def test_a_final_norm_in_another_place_is_fresh(pretrained, tmp_path):
    options = (*tiny().model.options, ("global_pool", "avg"))
    run(finetuned(pretrained, options=options), tmp_path / "run")
    theirs, ours = wellcond.load(pretrained).state_dict(), wellcond.load(tmp_path / "run").state_dict()
    assert {"fc_norm.weight", "fc_norm.bias"} <= set(ours) - set(theirs)
    torch.testing.assert_close(ours["blocks.1.mlp.fc2.weight"], theirs["blocks.1.mlp.fc2.weight"], rtol=0, atol=1e-6)


def test_another_treatment_fits_with_a_warning(pretrained, tmp_path):
    with pytest.warns(UserWarning, match="was another model: model.cut_mlp_skips is False there, True here"):
        train(finetuned(pretrained, cut_mlp_skips=True), tmp_path / "run", open_supply=TensorSupply)


def test_an_initialization_gives_way_to_the_weights_with_a_warning(pretrained, tmp_path):
    asked = {"cut_attention_skips": True, "cut_mlp_skips": True, "init": InitConfig(method="skipless")}
    with pytest.warns(UserWarning, match="model.init.method is 'default' there, 'skipless' here; its weights"):
        train(finetuned(pretrained, **asked), tmp_path / "run", open_supply=TensorSupply)
    with warnings.catch_warnings(record=True) as caught:  # and from a run that began and was cut alike there is nothing
        warnings.simplefilter("always")
        train(finetuned(tmp_path / "run", **asked), tmp_path / "again", open_supply=TensorSupply)
    assert not [str(w.message) for w in caught if "weights" in str(w.message)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"patch_size": 2}, r"at pos_embed and 1 more: model.patch_size is 4 there, 2 here"),
        (
            {"options": (("embed_dim", 16), ("depth", 1), ("num_heads", 2))},
            r"at blocks.1.norm1.weight and 11 more: .*'depth', 2",
        ),
        (
            {"options": (("embed_dim", 16), ("depth", 2), ("num_heads", 4))},
            r"at the heads of attention: .*\('num_heads', 2\)\) there, .*\('num_heads', 4\)\) here",
        ),
    ],
)
def test_a_run_that_does_not_fit_is_refused(changes, words, pretrained, tmp_path):
    with pytest.raises(ValueError, match=words):
        run(finetuned(pretrained, **changes), tmp_path / "run")


def test_no_run_to_start_from_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"pretrained is '.*nowhere', which is no run; train it first"):
        run(finetuned(tmp_path / "nowhere"), tmp_path / "run")
