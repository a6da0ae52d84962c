"""Killed anywhere and resumed, a run is the same run: every tensor, every byte of metrics.jsonl."""

import errno
import json
import os
import random
import shutil
import signal
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import training_cases as cases
from training_cases import FAULTS, final, finish, run, start, tiny, with_dropout

from wellcond.runs import Run
from wellcond.training import checkpoints, trainer

CONFIG = with_dropout(tiny(ema=0.9, accumulate=2, monitor_every=2))


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "run"
    run(CONFIG, out)
    return out


def test_the_same_config_gives_the_same_bytes(straight, tmp_path):
    run(CONFIG, tmp_path / "again")
    assert final(tmp_path / "again") == final(straight)


def test_another_seed_gives_other_weights(straight, tmp_path):
    run(replace(CONFIG, seed=1), tmp_path / "other")
    assert final(tmp_path / "other")["model.safetensors"] != final(straight)["model.safetensors"]


def test_checkpoints_at_other_steps_change_nothing(straight, tmp_path):
    run(replace(CONFIG, checkpoint_every=7, keep=1), tmp_path / "other")
    assert final(tmp_path / "other") == final(straight)


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_there_and_resumed(fault, straight, tmp_path):
    """kill -9 at an early and at a late call of the same place; the run is then finished by a third process."""
    late = {"after an evaluation": 2, "while old ones are removed": 2}.get(fault, 5)
    for n in (2, late):
        assert finish(start(CONFIG, tmp_path / "run", fault=(fault, n))) == [-signal.SIGKILL], (fault, n)
    assert finish(start(CONFIG, tmp_path / "run")) == [0]
    assert final(tmp_path / "run") == final(straight)
    assert not list((tmp_path / "run" / "checkpoints").glob(".*.part"))


def test_killed_at_random_moments(straight, tmp_path):
    """From outside, whatever it is doing; where the run was over before, the next one is killed sooner."""
    rng, out, latest, killed = random.Random(0), tmp_path / "run", 1.0, 0
    while killed < 4:
        (process,) = start(CONFIG, out)
        process.join(rng.uniform(0, latest))
        process.kill()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        if process.exitcode:
            killed += 1
        else:
            assert final(out) == final(straight)
            shutil.rmtree(out)
            latest /= 2
    assert finish(start(CONFIG, out)) == [0]
    assert final(out) == final(straight)


def stop_after(monkeypatch, num_steps: int) -> None:
    """Make the next run in this process die, as an exception, after so many steps."""
    advance, calls = trainer.Trainer.advance, iter(range(1, 1000))

    def dying(self, stop):
        told = advance(self, stop)
        if next(calls) == num_steps:
            raise RuntimeError("power cut")
        return told

    monkeypatch.setattr(trainer.Trainer, "advance", dying)


def cut_off(monkeypatch, out: Path, steps: int) -> None:
    """The run of CONFIG up to a power cut."""
    with monkeypatch.context() as patch:
        stop_after(patch, steps)
        with pytest.raises(RuntimeError, match="power cut"):
            run(CONFIG, out)


@pytest.mark.parametrize("damage", ["torn", "flipped", "missing", "manifest"])
def test_a_damaged_checkpoint_is_skipped_with_a_warning(damage, straight, tmp_path, monkeypatch):
    out = tmp_path / "run"
    cut_off(monkeypatch, out, 8)
    newest = out / "checkpoints" / checkpoints.name_of(6)
    path = newest / ("manifest.json" if damage == "manifest" else "model.safetensors")
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        os.truncate(path, path.stat().st_size // 2)
    with pytest.warns(UserWarning, match="step-00000006 is damaged .*; trying the one before"):
        cases.train(CONFIG, out, open_supply=cases.TensorSupply)
    assert final(out) == final(straight)


def test_a_torn_log_costs_the_newest_checkpoint_only(straight, tmp_path, monkeypatch):
    """Cut below what the newest one saw: the one before it writes these rows again."""
    out = tmp_path / "run"
    cut_off(monkeypatch, out, 6)
    assert checkpoints.steps(out / "checkpoints") == [3, 0]
    seen = checkpoints.read_state(out / "checkpoints" / checkpoints.name_of(3))["metrics_bytes"]
    os.truncate(out / "metrics.jsonl", seen - 5)
    with pytest.warns(UserWarning, match=r"step-00000003 is damaged \(5 bytes of metrics.jsonl that it saw are gone\)"):
        cases.train(CONFIG, out, open_supply=cases.TensorSupply)
    assert final(out) == final(straight)


def test_all_checkpoints_damaged_starts_over(straight, tmp_path, monkeypatch):
    out = tmp_path / "run"
    cut_off(monkeypatch, out, 5)
    for step in checkpoints.steps(out / "checkpoints"):
        (out / "checkpoints" / checkpoints.name_of(step) / "state.json").unlink()
    run(CONFIG, out)
    assert final(out) == final(straight)


def test_damaged_checkpoints_of_later_steps_push_no_whole_one_out(tmp_path, monkeypatch):
    """Begun again under two that are torn: what is saved meanwhile is there when it is killed once more."""
    out = tmp_path / "run"
    cut_off(monkeypatch, out, 13)
    assert checkpoints.steps(out / "checkpoints") == [12, 9]
    for step in (12, 9):
        (out / "checkpoints" / checkpoints.name_of(step) / "state.json").unlink()
    cut_off(monkeypatch, out, 8)
    assert checkpoints.steps(out / "checkpoints") == [12, 9, 6, 3]
    full = checkpoints.told(OSError(errno.ENOSPC, "No space left on device"), out / "checkpoints", 8)
    assert "the last good checkpoint, step 6, is whole" in str(full)


@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGTERM, 5), (signal.SIGUSR1, 5), (signal.SIGINT, 5), (signal.SIGTERM, 15)]
)
def test_a_signal_saves_and_says_so(number, step, straight, tmp_path, monkeypatch):
    """Sent inside a step: the step is finished, the checkpoint is of that step."""
    before = signal.getsignal(number)
    advance, calls = trainer.Trainer.advance, iter(range(1, 1000))

    def signalled(self, stop):
        if next(calls) == step:  # the last one of an epoch: its evaluation is left for the next start
            os.kill(os.getpid(), number)
        return advance(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "advance", signalled)
        with pytest.raises(SystemExit) as stopped:
            run(CONFIG, tmp_path / "run")
    assert stopped.value.code == (130 if number == signal.SIGINT else 75)
    assert checkpoints.steps(tmp_path / "run" / "checkpoints")[0] == step
    assert signal.getsignal(number) == before
    run(CONFIG, tmp_path / "run")
    assert final(tmp_path / "run") == final(straight)


def test_killed_while_the_only_checkpoint_is_replaced(straight, tmp_path, monkeypatch):
    """Signalled in its last step the run saves it; the next start saves it again, after the evaluation."""
    config, out, advance = replace(CONFIG, keep=1), tmp_path / "run", trainer.Trainer.advance

    def signalled(self, stop):
        if self.tally.step == 14:
            os.kill(os.getpid(), signal.SIGTERM)
        return advance(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "advance", signalled)
        with pytest.raises(SystemExit):
            run(config, out)
    assert finish(start(config, out, fault=("before the rename", 2))) == [-signal.SIGKILL]
    run(config, out)
    assert [row["step"] for row in Run(out).rows("timings.jsonl") if row["event"] == "start"] == [0, 15, 15]
    assert final(out) == final(straight)
    assert not list((out / "checkpoints").glob(".*"))


@pytest.mark.parametrize("when", ["first batch", "after the last batch"])
@pytest.mark.parametrize("epoch", [1, 3])
def test_a_signal_inside_an_evaluation(epoch, when, straight, tmp_path, monkeypatch):
    """Between batches it leaves the evaluation to the next start; after them it is answered before another step."""
    evaluate, calls = trainer.Trainer.evaluate, iter(range(1, 1000))

    def signalled(self, between):
        if next(calls) != epoch:
            return evaluate(self, between)
        if when == "first batch":
            os.kill(os.getpid(), signal.SIGTERM)
            return evaluate(self, between)
        found = evaluate(self, between)
        os.kill(os.getpid(), signal.SIGTERM)
        return found

    done = epoch == 3 and when == "after the last batch"  # nothing to come back for
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "evaluate", signalled)
        with nullcontext() if done else pytest.raises(SystemExit, match=f"stopped at step {5 * epoch}"):
            run(CONFIG, tmp_path / "run")
    if not done:
        rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
        seen = sum(row["kind"] == "eval" for row in rows)
        assert seen == epoch - (when == "first batch")
        assert checkpoints.steps(tmp_path / "run" / "checkpoints")[0] == 5 * epoch
        run(CONFIG, tmp_path / "run")
    assert final(tmp_path / "run") == final(straight)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_while_images_are_decoded_ends_at_once(number, code, tmp_path):
    """There is nothing to save, and decoding may take far longer than a scheduler waits."""

    def opening(config, processes):
        os.kill(os.getpid(), number)
        time.sleep(0.1)
        raise AssertionError("went on")

    with pytest.raises(SystemExit) as stopped:
        run(CONFIG, tmp_path / "run", opening)
    assert stopped.value.code == code
    assert not (tmp_path / "run").exists()


def test_ctrl_c_twice_ends_at_once(tmp_path, monkeypatch):
    def signalled(self, stop):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        raise AssertionError("went on")

    monkeypatch.setattr(trainer.Trainer, "advance", signalled)
    with pytest.raises(KeyboardInterrupt):
        run(CONFIG, tmp_path / "run")


def test_ctrl_c_after_a_scheduler_s_signal_still_saves(straight, tmp_path, monkeypatch):
    advance, calls = trainer.Trainer.advance, iter(range(1, 1000))

    def signalled(self, stop):
        if next(calls) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "advance", signalled)
        with pytest.raises(SystemExit, match="stopped at step 4, saved"):
            run(CONFIG, tmp_path / "run")
    assert checkpoints.steps(tmp_path / "run" / "checkpoints")[0] == 4
    run(CONFIG, tmp_path / "run")
    assert final(tmp_path / "run") == final(straight)


def test_a_finished_run_is_not_run_again(straight):
    before = final(straight), (straight / "timings.jsonl").read_bytes()
    summary = run(CONFIG, straight)
    assert summary.steps == 15 and summary.top1 is not None
    assert (final(straight), (straight / "timings.jsonl").read_bytes()) == before


def test_a_finished_run_whose_log_was_torn_gets_it_back(straight, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    os.truncate(out / "metrics.jsonl", (out / "metrics.jsonl").stat().st_size - 5)
    with pytest.warns(UserWarning, match=r"step-00000015 is damaged \(5 bytes of metrics.jsonl"):
        cases.train(CONFIG, out, open_supply=cases.TensorSupply)
    assert final(out) == final(straight)
    (out / "metrics.jsonl").unlink()  # no checkpoint is old enough: what claims and pages would read is gone
    with pytest.raises(ValueError, match=r"metrics.jsonl' has 0 bytes, its checkpoint saw \d+"):
        run(CONFIG, out)


@pytest.mark.parametrize("only", [False, True])
def test_a_finished_run_whose_end_was_torn_gets_it_back(only, straight, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    if only:  # as with keep 1: made again from the beginning
        shutil.rmtree(out / "checkpoints" / checkpoints.name_of(12))
    os.truncate(out / "checkpoints" / checkpoints.name_of(15) / "model.safetensors", 1000)
    with pytest.warns(UserWarning, match="step-00000015 is damaged"):
        summary = cases.train(CONFIG, out, open_supply=cases.TensorSupply)
    assert summary.steps == 15 and final(out) == final(straight)
    shutil.rmtree(out / "checkpoints")  # thrown away on purpose: the numbers stand
    assert run(CONFIG, out) == summary and not (out / "checkpoints").exists()
