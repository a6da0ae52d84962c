"""What goes wrong in a run: numbers that are not finite, a full disk, another config, data that does not fit."""

import errno
import json
import re
import shutil
import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from training_cases import AllPoisoned, OnePoisoned, final, passing_fault, power_cut, run, tiny

from wellcond.config import OptimConfig
from wellcond.runs import Log, Run
from wellcond.training import Diverged, checkpoints, train, trainer

CONFIG = tiny(ema=0.9)


def rows(out, kind="train"):
    return [row for row in Run(out).rows() if row["kind"] == kind]


def test_a_bad_batch_is_skipped_counted_and_kept(tmp_path):
    out = tmp_path / "run"
    with pytest.warns(UserWarning, match=r"step \d+ skipped: loss nan"):
        summary = train(CONFIG, out, open_supply=OnePoisoned)
    assert summary.skipped == 3 == rows(out)[-1]["skipped"]  # once in each epoch
    kept = sorted((out / "replay").iterdir())
    assert len(kept) == 3
    batch = json.loads(kept[0].read_text())
    assert 3 in batch["indices"] and len(batch["indices"]) == 8 and batch["step"] // 5 == batch["epoch"]
    for tensors in (load_file(p) for p in (out / "checkpoints" / "step-00000015").glob("*.safetensors")):
        assert all(t.isfinite().all() for t in tensors.values())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_skipped_step_changes_nothing(name, tmp_path, monkeypatch):
    """Weights, moments, step counts and average before and after the bad step, to the bit."""
    config = replace(CONFIG, optim=OptimConfig(name=name), checkpoint_every=1, keep=100, max_bad_steps=3)
    run(config, tmp_path / "run", OnePoisoned)
    bad = json.loads(next(iter(sorted((tmp_path / "run" / "replay").iterdir()))).read_text())["step"]
    # inside a run of bad steps nothing is saved: the neighbours are the steps before it and after the next good one
    assert not (tmp_path / "run" / "checkpoints" / checkpoints.name_of(bad + 1)).exists()
    states = []
    advance = trainer.Trainer.advance

    def watched(self, stop):
        before = {f: {n: t.clone() for n, t in ts.items()} for f, ts in self.parts.live().items()}
        told = advance(self, stop)
        if self.tally.step == bad + 1:
            states.append((before, {f: {n: t.clone() for n, t in ts.items()} for f, ts in self.parts.live().items()}))
        return told

    monkeypatch.setattr(trainer.Trainer, "advance", watched)
    run(config, tmp_path / "again", OnePoisoned)
    ((before, after),) = states
    for file, tensors in before.items():
        for tensor_name, tensor in tensors.items():
            assert torch.equal(tensor, after[file][tensor_name]), (file, tensor_name)


def test_batch_norm_statistics_do_not_learn_of_a_bad_batch(tmp_path):
    config = tiny(optim=OptimConfig(lr=1e-3))
    options = (("dim", 8), ("depth", 1), ("kernel_size", 3))
    model = replace(config.model, name="convmixer_tiny", patch_size=4, drop_path=0.0, options=options)
    run(replace(config, model=model), tmp_path / "run", OnePoisoned)
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-00000015" / "model.safetensors")
    assert any("running_var" in name for name in saved)
    assert all(t.isfinite().all() for t in saved.values())


def test_bad_steps_in_a_row_roll_back_once_then_stop(tmp_path):
    out = tmp_path / "run"
    config = replace(CONFIG, max_bad_steps=4)
    with (
        pytest.warns(UserWarning, match="skipped") as caught,
        pytest.raises(Diverged, match=r"4 steps in a row .* again after .* step 0"),
    ):
        train(config, out, open_supply=AllPoisoned)
    assert sum("going back to step 0 once" in str(w.message) for w in caught) == 1
    assert [row["event"] for row in Run(out).rows("timings.jsonl")].count("rollback") == 1
    assert checkpoints.steps(out / "checkpoints") == [0]


def test_without_a_checkpoint_to_go_back_to_it_stops_with_its_log_whole(tmp_path, monkeypatch):
    roll_back = trainer.Trainer.roll_back

    def robbed(self, why):
        shutil.rmtree(self.run.checkpoints, ignore_errors=True)
        roll_back(self, why)

    monkeypatch.setattr(trainer.Trainer, "roll_back", robbed)
    with pytest.raises(Diverged, match="and there is no whole checkpoint to go back to"):
        run(replace(CONFIG, max_bad_steps=4), tmp_path / "run", AllPoisoned)
    assert [row["step"] for row in Run(tmp_path / "run").rows()] == [2, 4]


def test_a_run_too_short_for_so_many_bad_steps_has_not_learned_either(tmp_path):
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(Diverged, match="no step had a finite loss"):
        train(replace(CONFIG, max_bad_steps=1000), tmp_path / "run", open_supply=AllPoisoned)
    assert Run(tmp_path / "run").read_summary() is None


def test_a_passing_fault_leaves_no_trace_in_the_metrics(tmp_path, monkeypatch):
    """Bad steps that do not come back after the rollback (a memory error): the run is one without them."""
    run(CONFIG, tmp_path / "straight")
    passing_fault(monkeypatch, range(7, 10))
    run(replace(CONFIG, max_bad_steps=3), tmp_path / "run")
    ours, theirs = final(tmp_path / "run"), final(tmp_path / "straight")
    assert ours["metrics.jsonl"] == theirs["metrics.jsonl"]
    assert ours["model.safetensors"] == theirs["model.safetensors"]


def test_weights_that_are_not_finite_are_never_saved(tmp_path, monkeypatch):
    advance = trainer.Trainer.advance

    def broken(self, stop):
        told = advance(self, stop)
        if self.tally.step == 9:
            with torch.no_grad():
                next(self.objective.parameters()).view(-1)[0] = float("inf")
        return told

    monkeypatch.setattr(trainer.Trainer, "advance", broken)
    with pytest.raises(Diverged, match=r"model model\.\w+ is not finite .* again"):
        run(CONFIG, tmp_path / "run")
    assert checkpoints.steps(tmp_path / "run" / "checkpoints")[0] == 6


@pytest.mark.parametrize("where", ["save_file", "safetensors", "sync_file", "log"])
def test_a_full_disk_keeps_the_last_good_checkpoint(where, tmp_path, monkeypatch):
    run(CONFIG, tmp_path / "straight")
    out, calls = tmp_path / "run", iter(range(1, 1000))
    places = {"sync_file": (checkpoints, "sync_file"), "log": (Log, "flush")}
    owner, name = places.get(where, (checkpoints, "save_file"))
    original = getattr(owner, name)
    nth = {"log": 4, "sync_file": 20}.get(where, 14)
    error = SafetensorError("Error: I/O error: No space left on device (os error 28)")

    def full(*args, **kwargs):
        if next(calls) >= nth:
            raise error if where == "safetensors" else OSError(errno.ENOSPC, "No space left on device")
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full)
        with pytest.raises(OSError, match="no space left at step") as caught:
            run(CONFIG, out)
    last = checkpoints.steps(out / "checkpoints")[0]
    assert caught.value.errno == errno.ENOSPC
    assert f"the last good checkpoint, step {last}, is whole" in str(caught.value)
    assert checkpoints.find_damage(out / "checkpoints" / checkpoints.name_of(last)) is None
    assert not list((out / "checkpoints").glob(".*"))
    run(CONFIG, out)
    assert final(out) == final(tmp_path / "straight")


def test_a_run_that_was_moved_away_stops_and_goes_on_there(tmp_path, monkeypatch):
    """Its checkpoints, else, would go into a folder that no command knows as a run, to the end of the training."""
    run(CONFIG, tmp_path / "straight")
    advance = trainer.Trainer.advance

    def moving(self, stop):
        if self.tally.step == 4:
            (tmp_path / "run").rename(tmp_path / "moved")
        return advance(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "advance", moving)
        with pytest.raises(ValueError, match=r"run' is no run any more at step 6: it was moved or deleted; .* --out"):
            run(CONFIG, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run(CONFIG, tmp_path / "moved")
    assert final(tmp_path / "moved") == final(tmp_path / "straight")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seed": 1}, "seed 0, not 1;"),
        ({"optim": replace(CONFIG.optim, lr=1e-2, clip=None)}, "optim.lr 0.003, not 0.01 (and 1 more)"),
        ({"model": replace(CONFIG.model, cut_mlp_skips=True)}, "model.cut_mlp_skips False, not True"),
        ({"epochs": 4}, "epochs 3, not 4"),
    ],
)
def test_another_config_is_refused_by_its_field(changes, words, tmp_path):
    run(CONFIG, tmp_path / "run")
    before = final(tmp_path / "run")
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        run(replace(CONFIG, **changes), tmp_path / "run")
    assert "to continue it, or another --out" in str(caught.value)
    assert final(tmp_path / "run") == before


def test_what_may_change_changes_nothing(tmp_path, monkeypatch):
    run(CONFIG, tmp_path / "straight")
    with power_cut(monkeypatch, at=7):
        run(CONFIG, tmp_path / "run")
    run(replace(CONFIG, data=replace(CONFIG.data, workers=9), keep=3, checkpoint_every=100), tmp_path / "run")
    assert final(tmp_path / "run") == final(tmp_path / "straight")
    assert Run(tmp_path / "run").starts()[1]["changed"] == {"data.workers": 9, "keep": 3, "checkpoint_every": 100}


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="holds files and no run; name an empty or new folder"):
        run(CONFIG, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} <= {"thesis.tex", ".lock"}


def test_one_trainer_at_a_time(tmp_path):
    with Run(tmp_path / "run").locked(), pytest.raises(ValueError, match="another process is training in"):
        run(CONFIG, tmp_path / "run")


def test_a_lock_may_outlive_its_process_for_a_moment(tmp_path):
    """A restart may be as quick as the system that cleans up after a killed process."""
    with ExitStack() as other:
        other.enter_context(Run(tmp_path / "run").locked())
        threading.Timer(0.1, other.pop_all().close).start()
        with Run(tmp_path / "run").locked():
            pass


def test_another_number_of_classes_is_refused(tmp_path):
    config = replace(CONFIG, model=replace(CONFIG.model, num_classes=5))
    with pytest.raises(ValueError, match=r"num_classes is 5, but 'tensors' has 4 classes; .* --model\.num-classes 4"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_graph_on_without_a_gpu_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"graph is 'on', but .*there is no GPU; use graph auto or off"):
        run(replace(CONFIG, graph="on"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tensorboard_missing_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install .*'\.\[tensorboard\]'"):
        run(replace(CONFIG, tensorboard=True), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_optimizer_that_cannot_be_built_leaves_no_run(tmp_path):
    """Else the same --out would be refused to the one that can."""
    options = (("dim", 8), ("depth", 1), ("kernel_size", 3))
    model = replace(CONFIG.model, name="convmixer_tiny", patch_size=4, drop_path=0.0, options=options)
    with pytest.raises(ValueError, match="no weight matrices in its blocks; use 'adamw'"):
        run(replace(CONFIG, model=model, optim=OptimConfig(name="muon")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
