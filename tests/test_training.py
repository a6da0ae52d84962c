"""The loop on real images (procedural), the model of a config, what a run says, and a golden loss curve."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from rich.console import Console
from safetensors.torch import load_file
from training_cases import NUM_CLASSES, SIZE, TensorSupply, final, power_cut, run, tiny

import wellcond
from wellcond.config import AugmentConfig, DataConfig, GrayingConfig, ModelConfig, OptimConfig
from wellcond.data.generated import GeneratedSource
from wellcond.runs import Run
from wellcond.training import build_model, loop, monitoring, train, trainer
from wellcond.training.beginning import check_classes
from wellcond.training.feeding import ImageSupply
from wellcond.training.processes import Processes

GOLDEN = Path(__file__).parent / "golden" / "loss-curve.json"


def pictures(cache: Path, **changes):
    """Procedural pictures with everything that augmentation has."""
    augment = AugmentConfig(
        crop="pad",
        randaugment="rand-m9-mstd0.5-inc1",
        mixup=0.8,
        cutmix=1.0,
        erase=0.25,
        smoothing=0.1,
        repeats=2,
    )
    data = DataConfig(train="procedural:48", val="procedural:21", image_size=16, cache=cache, augment=augment)
    model = replace(tiny().model, image_size=16, num_classes=10)
    return tiny(model=model, data=data, epochs=2, checkpoint_every=4, ema=0.9, accumulate=2, **changes)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def straight(cache, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pictures") / "run"
    train(pictures(cache), out)
    return out


def test_streamed_images_give_the_same_run_as_resident_ones(straight, cache, tmp_path):
    config = pictures(cache)
    train(replace(config, data=replace(config.data, resident="no")), tmp_path / "run")
    assert final(tmp_path / "run") == final(straight)


@pytest.mark.parametrize("resident", ["yes", "no"])
def test_real_images_cut_and_resumed(resident, straight, cache, tmp_path, monkeypatch):
    config = pictures(cache)
    config = replace(config, data=replace(config.data, resident=resident))
    with power_cut(monkeypatch, at=7):
        train(config, tmp_path / "run")
    train(config, tmp_path / "run")
    assert final(tmp_path / "run") == final(straight)


@pytest.mark.parametrize(("changing", "done"), [("fingerprint", "trained"), ("val_fingerprint", "judged")])
def test_other_images_under_the_same_name_are_refused(changing, done, cache, tmp_path, monkeypatch):
    config = pictures(cache)

    def cut(self, stop):
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "advance", cut)
        with pytest.raises(RuntimeError, match="power cut"):
            train(config, tmp_path / "run")

    def changed(config, processes):
        supply = ImageSupply(config, processes)
        setattr(supply, changing, "another")
        supply.contents = {half: {**found, "pixels": "others"} for half, found in supply.contents.items()}
        return supply

    with pytest.raises(ValueError, match=rf"are not those that .* was {done} on \(not the same pixels\)"):
        train(config, tmp_path / "run", open_supply=changed)


def test_odd_chunks_cannot_be_mixed(cache, tmp_path):
    config = replace(pictures(cache), batch_size=6, accumulate=2)
    with pytest.raises(ValueError, match=r"chunks of 3 images, and mixup and CutMix need an even number; .* of 4"):
        train(config, tmp_path / "run")


def test_augmentation_that_cannot_be_is_told_before_pictures_are_decoded(tmp_path):
    """Of ImageNet that takes hours."""
    config = pictures(tmp_path / "cache")
    both = replace(config.data, augment=replace(config.data.augment, jitter=0.3))
    with pytest.raises(ValueError, match=r"jitter is 0.3 and randaugment is"):
        ImageSupply(replace(config, data=both), Processes())
    assert not (tmp_path / "cache").exists()


def test_a_half_may_lack_the_last_class(cache, tmp_path):
    """Where labels have no names; the advice for one half was refused for the other."""
    for half, num_classes in (("train", 3), ("val", 4)):
        bits = io.BytesIO()
        Image.new("RGB", (16, 16)).save(bits, "PNG")
        rows = {"image": [{"bytes": bits.getvalue(), "path": None}] * 12, "label": [i % num_classes for i in range(12)]}
        parquet.write_table(pyarrow.table(rows), tmp_path / f"{half}.parquet")
    config = pictures(cache)
    data = replace(config.data, train=str(tmp_path), val=str(tmp_path))
    few = replace(config, data=data, model=replace(config.model, num_classes=3))
    with pytest.raises(ValueError, match=r"has 4 classes, but the model has 3; .* --model.num-classes 4"):
        ImageSupply(few, Processes())
    enough = replace(few, model=replace(few.model, num_classes=4))
    check_classes(enough, ImageSupply(enough, Processes()).num_classes)


def test_one_set_for_both_halves_is_told(cache, tmp_path):
    for index, record in enumerate(GeneratedSource(20, size=16).records(range(20))):
        (tmp_path / f"set/{index % 10}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(record.read()).save(tmp_path / f"set/{index % 10}/{index}.png")
    config, lines = pictures(cache), []
    both = replace(config, data=replace(config.data, train=str(tmp_path / "set"), val=str(tmp_path / "set")))
    ImageSupply(config, Processes(), lines.append)
    assert not lines
    ImageSupply(both, Processes(), lines.append)
    assert lines == ["folder:set is not split: top-1 and top-5 are of the images trained on; give data.val others"]


def test_every_process_has_an_image_to_judge(cache):
    """Else the evaluation after the first epoch, and every start after that, would fail."""
    config = pictures(cache)
    few = replace(config, data=replace(config.data, val="procedural:1"))
    with pytest.raises(ValueError, match="'procedural:1' has 1 validation images for 2 processes"):
        ImageSupply(few, Processes(rank=1, world_size=2))


def test_load_gives_the_model_that_was_evaluated(straight, cache):
    """Top-1 of the loaded model, counted here, is the one in summary.json; it holds the averaged weights."""
    model: Any = wellcond.load(straight)
    assert not model.training
    supply = ImageSupply(pictures(cache), Processes())
    right = total = 0
    for images, labels in supply.validation():
        found = model(images).argmax(1)
        right += int((found == labels)[labels >= 0].sum())
        total += int((labels >= 0).sum())
    assert total == 21
    assert {"top1": 100 * right / total}.items() <= (Run(straight).read_summary() or {}).items()
    plain: Any = wellcond.load(straight, average=False)
    assert not torch.equal(plain.head.weight, model.head.weight)


def test_load_rebuilds_graying_skips_and_attention(tmp_path):
    config = tiny()
    model = replace(
        config.model,
        attention="linear",
        k=4.0,
        cut_mlp_skips=True,
        drop_path=0.0,
        graying=GrayingConfig(method="svd", epsilon=0.7),
    )
    run(replace(config, model=model), tmp_path / "run")
    loaded: Any = wellcond.load(tmp_path / "run")
    names = {type(module).__name__ for module in loaded.modules()}
    assert {"GrayedConv2d", "LinearAttention"} <= names
    assert loaded.blocks[0].mlp_gain == 0.0 and loaded.blocks[0].attention_gain == 1.0
    saved = Run(tmp_path / "run").checkpoints / "step-00000015" / "model.safetensors"
    for name, tensor in load_file(saved).items():
        assert torch.equal(loaded.state_dict()[name.removeprefix("model.")], tensor)


def test_load_tells_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        wellcond.load(tmp_path / "none")
    run(tiny(), tmp_path / "run")
    with pytest.raises(ValueError, match="trained without an average"):
        wellcond.load(tmp_path / "run", average=True)


def test_weights_depend_on_the_seed_only():
    config = tiny().model
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, two, other = (build_model(config, seed).state_dict()["head.weight"] for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, two) and not torch.equal(one, other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "vit_tinny_patch16_224"}, r"'vit_tinny_patch16_224', .* not know; did you mean vit_tiny"),
        ({"options": (("depht", 2),)}, r"model.options do not fit vit_tiny_patch16_224: .*depht"),
    ],
)
def test_a_model_that_cannot_be_built_is_told(changes, words):
    with pytest.raises(ValueError, match=words):
        build_model(replace(tiny().model, **changes))


def test_training_leaves_torch_as_it_was(tmp_path):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    run(tiny(deterministic=True), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.are_deterministic_algorithms_enabled()


def test_into_a_pipe_one_line_per_epoch(tmp_path):
    text = io.StringIO()
    train(tiny(monitor_every=1), tmp_path / "run", open_supply=TensorSupply, console=Console(file=text, width=200))
    lines = text.getvalue().splitlines()
    assert len(lines) == 3
    assert re.match(r"epoch 1/3  loss \S+  top1 \S+  top5 \S+  log_kappa \S+  \S+ img/s", lines[0])


def test_the_name_of_a_damaged_picture_is_not_broken(tmp_path, monkeypatch):
    """A path is for copying; into a pipe the width is 80, and it may be longer."""

    def opening(config, processes, say, **_):
        say("damaged: " + 20 * "folder/" + "a picture.png")
        return TensorSupply(config, processes)

    monkeypatch.setattr(loop, "ImageSupply", opening)
    text = io.StringIO()
    train(tiny(epochs=1), tmp_path / "run", console=Console(file=text, width=80))
    assert 20 * "folder/" + "a picture.png\n" in text.getvalue()


def test_on_a_terminal_a_bar(tmp_path):
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=200)
    train(tiny(log_every=1), tmp_path / "run", open_supply=TensorSupply, console=console)
    assert "img/s" in text.getvalue() and "loss" in text.getvalue()


def test_metrics_hold_no_clock_and_every_block(tmp_path):
    run(tiny(monitor_every=1), tmp_path / "run")
    rows = list(Run(tmp_path / "run").rows())
    assert not {"time", "seconds", "date", "images_per_s"} & {key for row in rows for key in row}
    probes = [row for row in rows if row["kind"] == "probe"]
    assert {(row["layer"], row["site"]) for row in probes} == {
        (layer, site) for layer in (0, 1) for site in ("sab_in", "sab_out", "sab_sum", "ffn_out", "ffn_sum")
    }
    assert {row["epoch"] for row in probes} == {1, 2, 3}
    train_rows = [row for row in rows if row["kind"] == "train"]
    assert [row["step"] for row in train_rows] == [2, 4, 6, 8, 10, 12, 14, 15]


def test_blocks_that_cannot_be_measured_are_told_before_the_first_epoch(tmp_path):
    model = ModelConfig(name="resnet10t", image_size=SIZE, num_classes=NUM_CLASSES)
    with pytest.raises(ValueError, match=r"ResNet has no transformer blocks .*--monitor-every 0"):
        run(tiny(monitor_every=2, model=model), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run(tiny(monitor_every=0, model=model, epochs=1), tmp_path / "run")


def test_a_collapsed_model_warns(tmp_path):
    config = tiny(monitor_every=1, optim=OptimConfig(lr=1e-6, min_lr=0))
    model = replace(config.model, cut_attention_skips=True, cut_mlp_skips=True, drop_path=0.0, image_size=8)
    with pytest.warns(UserWarning, match="tokens after block .* (same way|one direction)"):
        train(replace(config, model=model), tmp_path / "run", open_supply=TensorSupply)
    assert monitoring.collapse([]) is None


def test_muon_trains(tmp_path):
    summary = run(tiny(optim=OptimConfig(name="muon", lr=3e-3)), tmp_path / "run")
    assert summary.loss < 1.3


def golden_curve(out: Path) -> list[float]:
    config = tiny(precision="float64", log_every=1, epochs=4, optim=OptimConfig(lr=3e-3, clip=1.0))
    run(replace(config, model=replace(config.model, drop_path=0.0)), out)
    return [row["loss"] for row in Run(out).rows() if row["kind"] == "train"]


def test_golden_loss_curve(tmp_path):
    """Regenerate on purpose only: python tests/test_training.py"""
    expected = json.loads(GOLDEN.read_text())
    assert golden_curve(tmp_path / "run") == pytest.approx(expected, rel=1e-7)
    assert expected[-1] < expected[0]


@pytest.mark.slow
def test_torchrun_restarts_a_killed_process(tmp_path):
    """`--max-restarts` simply continues: rank 1 kills itself in the first attempt."""
    run_file = Path(__file__).with_name("torchrun_case.py")
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *command, str(run_file), str(tmp_path / "run")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    starts = [row for row in Run(tmp_path / "run").rows("timings.jsonl") if row["event"] == "start"]
    assert [start["resumed"] for start in starts] == [False, True]
    assert (Run(tmp_path / "run").read_summary() or {})["steps"] == 15


if __name__ == "__main__":
    import tempfile

    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(golden_curve(Path(tempfile.mkdtemp()) / "run"), indent=0) + "\n")
