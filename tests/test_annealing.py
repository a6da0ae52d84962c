"""Skips whose gain falls to zero: a function of the step, eager and compiled, resumed, loaded. Calibrated runs."""

import math
from dataclasses import replace

import pytest
import torch
from training_cases import TensorSupply, power_cut, resumes_to_the_bit, run, tiny, without_labels

import wellcond as wc
from wellcond.blocks import adapted_blocks
from wellcond.config import InitConfig, ModelConfig
from wellcond.optim.schedules import skip_gain
from wellcond.skips import set_gains, share_gain
from wellcond.training import build_model, checkpoints, trainer
from wellcond.training.processes import process_group

NUM_STEPS = 15


def annealed(share=0.6, **changes):
    """9 of 15 steps with skips."""
    config = tiny(**changes)
    cut = {"cut_attention_skips": True, "cut_mlp_skips": True, "drop_path": 0.0, "anneal_skips": share}
    return replace(config, model=replace(config.model, **cut))


def gain_after(step: int, share: float) -> float:
    """Half a cosine, by its series of squares: cos²(πt/2)."""
    t = min(1.0, step / (share * NUM_STEPS))
    return math.cos(math.pi * t / 2) ** 2 if t < 1 else 0.0


def test_the_gain_is_a_function_of_the_step():
    for share in (0.1, 0.6, 1.0):
        for step in range(NUM_STEPS + 1):
            assert skip_gain(step, num_steps=NUM_STEPS, share=share) == pytest.approx(
                gain_after(step, share), abs=1e-12
            )
        assert skip_gain(NUM_STEPS, num_steps=NUM_STEPS, share=share) == 0.0


def gains_of(model) -> set[float]:
    return {float(getattr(block, gain)) for block in adapted_blocks(model) for gain in block.gains}


def test_every_step_and_every_evaluation_has_its_gain(tmp_path, monkeypatch):
    seen = []

    def watched(name):
        own = getattr(trainer, name) if hasattr(trainer, name) else getattr(trainer.Trainer, name)

        def call(self, *words, **more):
            before = self.tally.step
            found = own(self, *words, **more)
            seen.append((name, before, gains_of(self.objective.get_submodule("model"))))
            return found

        return call

    for name in ("advance", "evaluate", "monitor"):
        monkeypatch.setattr(trainer.Trainer, name, watched(name))
    run(annealed(monitor_every=1), tmp_path / "run")
    assert {name for name, _, _ in seen} == {"advance", "evaluate", "monitor"}
    for name, step, (gain,) in seen:
        assert gain == pytest.approx(gain_after(step, 0.6), abs=1e-12), (name, step)
    assert {gain for _, step, (gain,) in seen if step >= 9} == {0.0}


def test_a_teacher_loses_its_skips_with_its_student(tmp_path, monkeypatch):
    """It is the student's average, and would be another function with the same weights."""
    seen, own = [], trainer.Trainer.advance

    def advance(self, *words):
        found = own(self, *words)
        seen.append([gains_of(self.objective.get_submodule(name)) for name in ("model", "teacher.model")])
        return found

    monkeypatch.setattr(trainer.Trainer, "advance", advance)
    dino = without_labels("dino")
    run(replace(dino, model=replace(annealed().model, num_classes=0)), tmp_path / "run")
    assert all(student == teacher for student, teacher in seen)
    assert {1.0} in [teacher for _, teacher in seen] and {0.0} in [teacher for _, teacher in seen]


def test_the_end_is_a_model_without_skips(tmp_path):
    config = annealed(precision="float64")
    run(config, tmp_path / "run")
    model = wc.load(tmp_path / "run")
    assert gains_of(model) == {0.0} and all(type(b.attention_gain) is float for b in adapted_blocks(model))
    with process_group("cpu", 8, 1) as processes:
        images = TensorSupply(config, processes).fixed_images(4)
    cut = wc.cut_skips(build_model(replace(config.model, anneal_skips=0.0)).double()).eval()
    cut.load_state_dict(model.state_dict())
    tensor = share_gain(build_model(config.model).double().eval(), torch.zeros((), dtype=torch.float64))
    tensor.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(images), cut(images)) and torch.equal(tensor(images), cut(images))


def test_a_run_that_stops_half_way_loads_with_the_gain_it_had(tmp_path, monkeypatch):
    with power_cut(monkeypatch, at=5):
        run(annealed(), tmp_path / "run")
    step = checkpoints.steps(tmp_path / "run" / "checkpoints")[0]
    assert 0 < step < 9
    (gain,) = gains_of(wc.load(tmp_path / "run"))
    assert gain == pytest.approx(gain_after(step, 0.6), abs=1e-12)


@pytest.mark.parametrize("at", [2, 6, 11])
def test_resumed_to_the_same_bits(at, tmp_path, monkeypatch):
    resumes_to_the_bit(annealed(), tmp_path, monkeypatch, at=at)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_a_compiled_model_reads_the_gain_anew(name):
    sizes = {"embed_dim": 16, "depth": 2, "num_heads": 2, "patch_size": 4}
    if name.startswith("swin"):
        sizes = {"embed_dim": 12, "depths": (1, 1), "num_heads": (2, 2), "window_size": 2}
    config = ModelConfig(name=name, image_size=16, num_classes=4, options=tuple(sizes.items()))
    gain = torch.ones((), dtype=torch.float64)
    model = share_gain(build_model(config).eval(), gain)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    plain = build_model(config).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        for value in (1.0, 0.3, 0.0):
            gain.fill_(value)
            with torch._dynamo.config.patch(error_on_recompile=value != 1.0):
                found = compiled(images)
            torch.testing.assert_close(found, set_gains(plain, value, value)(images), atol=1e-6, rtol=1e-5)


def test_state_dicts_say_the_gain():
    model = share_gain(build_model(annealed().model), torch.tensor(0.25))
    metadata = model.state_dict()._metadata  # type: ignore[attr-defined]
    assert metadata["blocks.0"]["gains"] == {"attention_gain": 0.25, "mlp_gain": 0.25}
    with pytest.raises(ValueError, match=r"the shape \(2,\)"):
        share_gain(model, torch.ones(2))


def test_calibrated_on_the_pictures_of_the_monitor(tmp_path, monkeypatch):
    """A run begins with what `calibrate_` makes of the weights of its seed."""
    config = annealed(precision="float64", monitor_images=4, epochs=1)
    config = replace(config, model=replace(config.model, anneal_skips=0.0, init=InitConfig(method="skipless")))
    with process_group("cpu", 8, 1) as processes:
        images = TensorSupply(config, processes).fixed_images(4)
    want = build_model(config.model, config.seed).double()
    plain = want.get_submodule("blocks.1.attn.qkv").weight.detach().clone()  # type: ignore[union-attr]
    taus = wc.calibrate_(want, images)
    assert taus[0] == 1.0 and taus[1] != 1.0
    calibrated = replace(config, model=replace(config.model, init=InitConfig(method="skipless", calibrate=True)))
    seen = []
    restore = trainer.Trainer.restore

    def watched(self):
        seen.append({name: p.detach().clone() for name, p in self.objective.named_parameters()})
        return restore(self)

    monkeypatch.setattr(trainer.Trainer, "restore", watched)
    run(calibrated, tmp_path / "run")
    for name, value in want.state_dict().items():
        assert torch.equal(seen[0][f"model.{name}"], value), name
    assert not torch.equal(seen[0]["model.blocks.1.attn.qkv.weight"], plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"anneal_skips": 0.5}, "no skips are cut"),
        ({"anneal_skips": 1.5, "cut_mlp_skips": True}, r"model.anneal_skips is 1.5; choose it in \[0, 1\]"),
        ({"anneal_skips": 0.5, "cut_mlp_skips": True, "drop_path": 0.1}, "say model.drop_path 0"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=message):
        ModelConfig(name="x", image_size=16, num_classes=2, **changes)


def test_calibrating_needs_the_initialization():
    with pytest.raises(ValueError, match=r"say init\.method skipless"):
        InitConfig(calibrate=True)
    with pytest.raises(ValueError, match="leave one of them out"):
        InitConfig(method="skipless", calibrate=True, temperature=(2.0,))
