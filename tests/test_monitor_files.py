"""What a monitor writes and says: lines, resuming, torn files, the budget, warnings."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from block_cases import VIT, images_of
from test_monitor import train
from timm import create_model as create_vit
from torch import nn

from wellcond.monitor import Monitor, WellcondWarning, alarms, measuring, read
from wellcond.monitor.budget import Budget
from wellcond.probes import Measured, Row

SIZES: dict[str, Any] = {"img_size": 32, "depth": 4, "embed_dim": 48, "num_heads": 3, "num_classes": 5}


def steps_of(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_are_the_rows_without_a_clock(tmp_path):
    path, again = tmp_path / "new" / "monitor.jsonl", tmp_path / "again.jsonl"
    for file in (path, again):
        model = VIT.create()
        with Monitor(model, every=2, budget=None, path=file) as monitor:
            train(model, 5, monitor=monitor)
    assert path.read_bytes() == again.read_bytes()
    assert steps_of(path) == [1, 2, 4]
    back = read(path)
    assert [m.step for m in back] == [1, 2, 4]
    for kept, written in zip(monitor.history, back, strict=True):
        assert kept.warnings == written.warnings and len(kept.rows) == len(written.rows)
        for a, b in zip(kept.rows, written.rows, strict=True):
            assert (a.layer, a.site, a.quantity, a.n, a.d) == (b.layer, b.site, b.quantity, b.n, b.d)
            assert b.value == (a.value and pytest.approx(a.value, rel=1e-6))


@pytest.mark.parametrize("torn", [b"", b'{"step": 7, "col', b'{"step": 4}'])
def test_resumed_run_writes_what_an_uninterrupted_one_does(tmp_path, torn):
    def run(path, first, last, state=None):
        """Steps first+1 … last of one training; weights are a function of the step."""
        model = VIT.create().train()
        monitor = Monitor(model, every=2, budget=None, path=path)
        if state is not None:
            monitor.load_state_dict(state)
        for step in range(first, last):
            torch.manual_seed(step)
            model(torch.randn(4, 3, 32, 32)).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(torch.randn_like(p) * 0.1)
            monitor.step()
        return monitor

    whole, path = tmp_path / "whole.jsonl", tmp_path / "monitor.jsonl"
    run(whole, 0, 8)
    state = run(path, 0, 3).state_dict()
    file = tmp_path / "state.pt"
    torch.save(state, file)
    run(path, 3, 6, state).close()  # dies after the checkpoint: its lines 4 and 6 will come again
    with path.open("ab") as lines:
        lines.write(torn)
    run(path, 3, 8, torch.load(file, weights_only=True)).close()
    assert steps_of(path) == [1, 2, 4, 6, 8]
    assert path.read_bytes() == whole.read_bytes()


def test_files_that_are_not_ours_are_not_touched(tmp_path):
    path = tmp_path / "monitor.jsonl"
    model, images = VIT.create(), images_of(VIT)
    Monitor(model, images=images, path=path).step()
    before = path.read_bytes()
    with pytest.raises(ValueError, match="earlier run"):
        Monitor(model, images=images, path=path).step()
    assert path.read_bytes() == before
    for content in ("my notes\n", '{"loss": 1}\n', "[]\n"):
        path.write_text(content)
        monitor = Monitor(model, images=images, path=path)
        monitor.load_state_dict({"step": 3})
        with pytest.raises(ValueError, match="no Monitor wrote"):
            monitor.step()
        assert path.read_text() == content
    with pytest.raises(ValueError, match="folder"):
        Monitor(model, path=tmp_path)
    path.write_bytes(b"")
    Monitor(model, images=images, path=path).step()
    path.write_bytes(path.read_bytes() + b'{"st')
    assert [m.step for m in read(path)] == [1]


def test_state_is_loaded_before_the_first_step_only():
    monitor = Monitor(VIT.create(), images=images_of(VIT))
    with pytest.raises(ValueError, match="'step'"):
        monitor.load_state_dict({"epoch": 3})
    monitor.step()
    with pytest.raises(ValueError, match="before the first"):
        monitor.load_state_dict(monitor.state_dict())


class FakeClock:
    """Stands still but for what the test adds."""

    time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.mark.parametrize(
    ("cost", "limit", "interval"), [(0.05, 0.01, 10), (0.3, 0.01, 30), (1.0, 0.01, 100), (50, None, 10)]
)
def test_measurements_beyond_the_budget_are_left_out(monkeypatch, cost, limit, interval):
    clock = FakeClock()
    monitor = Monitor(VIT.create(), every=10, images=images_of(VIT, 1), quantities="kurtosis", budget=limit, keep=200)
    monitor._budget = Budget(limit, clock)
    start = measuring.start
    costs = iter([1e6])  # setting up is slow and does not count

    def slow(*args):
        pending = start(*args)
        clock.time += next(costs, cost)
        pending.span.close()
        return pending

    monkeypatch.setattr(measuring, "start", slow)
    for _ in range(1000):
        clock.time += 1.0
        monitor.step()
    steps = [m.step for m in monitor.history]
    assert steps[:2] == [1, 10] and all(step % 10 == 0 for step in steps[1:])
    assert (steps[-1] - steps[2]) / (len(steps) - 3) == pytest.approx(interval, rel=0.05)
    assert monitor.num_skipped + len(steps) == 101
    assert monitor.share == pytest.approx(monitor._budget.spent / (clock.time - (monitor._budget.since or 0)))
    assert limit is None or monitor.share <= limit


class Broken(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, x):
        if self.kind == "nan":
            x = x.clone()
            x[0, 0, 0] = math.nan
        if self.kind == "collapse":
            x = x.mean(1, keepdim=True) + 0.05 * (x - x.mean(1, keepdim=True))
        if self.kind == "one direction":
            x = x.mean(1, keepdim=True).expand_as(x)
        if self.kind == "flat":  # one direction of the tokens nearly vanishes
            u = torch.nn.functional.normalize(torch.ones(x.shape[1]), dim=0)[:, None]
            x = x - (1 - 1e-5) * u * (u.mT @ x)
        if self.kind == "tails":
            x = x.clone()
            x[:, 0, 0] = 1e4
        return x


def broken_at(layer, kind):
    """Depth 4; what comes into block `layer`, and so its sums, is bad, and nothing before it is."""
    model: Any = create_vit("vit_tiny_patch16_224", **SIZES, init_values=1e-3)
    model.blocks.insert(layer, Broken(kind))
    return model


def measured_warnings(model, num_steps=3, **options):
    monitor = Monitor(model, every=1, images=images_of(VIT, 4), budget=None, **options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(num_steps):
            monitor.step()
    return monitor, [str(w.message) for w in said if issubclass(w.category, WellcondWarning)], said


@pytest.mark.parametrize(
    ("kind", "finding"),
    [("nan", "not_finite"), ("collapse", "rank_collapse"), ("one direction", "rank_collapse")],
)
@pytest.mark.parametrize("layer", [1, 2])
def test_a_model_that_breaks_at_a_block_is_said_once_and_named(kind, finding, layer):
    monitor, messages, said = measured_warnings(broken_at(layer, kind))
    mine = [f for _, f in monitor.warnings if f.kind == finding]
    assert [f.layer for f in mine] == [layer]
    assert len([m for m in messages if mine[0].text in m]) == 1 and f"block {layer}" in mine[0].text
    assert "step 1" in messages[0] and all(w.filename == __file__ for w in said)
    assert all(finding in {f.kind for f in m.warnings} for m in monitor.history)
    json.dumps([vars(row) for row in monitor.rows], allow_nan=False)
    if kind == "nan":
        assert [f.kind for _, f in monitor.warnings] == [finding]


def test_what_begins_in_training_is_said_and_what_was_there_before_is_not():
    model = broken_at(2, "tails")
    monitor, messages, _ = measured_warnings(model, quantities="kurtosis")
    assert not messages and {f.kind for m in monitor.history for f in m.warnings} == {"heavy_tails"}
    model.blocks[2].kind = "nothing"
    monitor = Monitor(model, every=1, images=images_of(VIT, 4), budget=None, quantities="kurtosis")
    monitor.step()
    model.blocks[2].kind = "tails"
    with pytest.warns(WellcondWarning, match="step 2: Activations are heavy-tailed") as said:
        monitor.step()
    monitor.step()
    assert len(said) == 1 and [(step, f.layer) for step, f in monitor.warnings] == [(2, 2)]


def test_kappa_that_rises_is_said_with_its_block():
    model: Any = create_vit("vit_tiny_patch16_224", **SIZES, init_values=1e-6)
    monitor = Monitor(model, every=1, images=images_of(VIT, 4), budget=None)
    monitor.step()
    model.blocks.insert(2, Broken("flat"))
    with pytest.warns(WellcondWarning, match="worsened from block 2 on"):
        monitor.step()


def test_a_healthy_model_is_not_warned_about():
    monitor, messages, _ = measured_warnings(create_vit("vit_tiny_patch16_224", **SIZES))
    assert not messages and not monitor.warnings


def row(value, layer=1, site="ffn_sum", quantity="log_kappa", **columns):
    fields = {"std": 0.0, "floor_count": 0.0, "num_infinite": 0, "num_images": 8, "n": 65, "d": 192, **columns}
    return Row(layer=layer, site=site, quantity=quantity, value=value, **fields)


def kinds(rows, start=None):
    measured = Measured(rows=rows, spectra=[], not_finite={}, no_map={})
    return [(f.kind, f.layer) for f in alarms.alarms(measured, start or {})]


def test_a_hundredfold_is_the_threshold():
    start = {(1, "ffn_sum"): 3.0, (2, "ffn_sum"): 3.0}
    assert kinds([row(3 + math.log(99))], start) == []
    assert kinds([row(3 + math.log(200), 2), row(3 + math.log(101))], start) == [("kappa_rising", 1)]
    assert kinds([row(30.0)]) == []  # no start to compare with
    assert kinds([row(30.0, site="sab_out")], {(1, "sab_out"): 1.0}) == []  # a branch, not the stream
    assert kinds([row(30.0, quantity="kurtosis")], start) != [("kappa_rising", 1)]
    assert kinds([row(None, num_infinite=8, floor_count=3.0)], start) == [("numerical_floor", 1)]


def test_log_kappa_is_compared_with_its_first_finite_value():
    start = alarms.start_of([row(None, 0), row(3.0, 1), row(9.0, 1, "sab_out")], {})
    assert start == {(1, "ffn_sum"): 3.0}
    assert alarms.start_of([row(7.0, 0), row(8.0, 1)], start) == {(0, "ffn_sum"): 7.0, (1, "ffn_sum"): 3.0}


def test_warnings_are_not_repeated_after_resuming():
    model = broken_at(2, "nan")
    monitor, messages, _ = measured_warnings(model, 1)
    assert len(messages) == 1
    resumed = Monitor(model, every=1, budget=None)
    resumed.load_state_dict(monitor.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed.step()
    assert resumed.history[-1].warnings and not resumed.warnings
