"""train → evaluate → load through the command; resuming, and mistakes in one line."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_cases import TRAIN, terminated, trained
from PIL import Image
from recipe_cases import stand_in
from training_cases import final

import wellcond
from wellcond import recipes
from wellcond.blocks import adapted_blocks
from wellcond.cli import main
from wellcond.config import TrainConfig, from_json, to_json
from wellcond.data.procedural import procedural
from wellcond.recipes import starting
from wellcond.recipes.starting import parse
from wellcond.runs import Run
from wellcond.training import build_model

VARIANT = ["--model.graying.method", "dct", "--model.graying.epsilon", "0.9", "--model.cut-mlp-skips"]
VARIANT += ["--model.attention", "linear", "--model.k", "4"]


@pytest.fixture(scope="module")
def straight(decoded, tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("straight") / "run", decoded, *VARIANT)


def test_train_tells_where_things_are(straight, decoded, capsys):
    """The same command on a finished run changes nothing and tells again."""
    before = final(straight)
    assert main([*TRAIN, decoded, "--out", str(straight), *VARIANT]) == 0
    captured = capsys.readouterr()
    assert "top-1" in captured.out and "metrics.jsonl" in captured.out and "wellcond evaluate" in captured.out
    assert final(straight) == before
    assert (Run(straight).read_summary() or {})["steps"] == 6


def test_a_page_that_cannot_be_written_is_no_lost_run(straight, decoded, tmp_path, capsys):
    shutil.copytree(straight, out := tmp_path / "run")
    (out / "report.html").unlink()
    (out / "report.html").mkdir()
    assert main([*TRAIN, decoded, "--out", str(out), *VARIANT]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "the run is done and saved" in told and f"wellcond report {out} --out" in told


def test_load_gives_the_model_as_it_was_trained(straight):
    model = wellcond.load(straight)
    assert not model.training
    config = from_json(Run(straight).read_config(), TrainConfig)
    assert (config.model.graying.method, config.model.attention, config.model.cut_mlp_skips) == ("dct", "linear", True)
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        logits = model(images)
        for field in ("graying", "attention", "cut_mlp_skips"):  # each of them is at work
            plain = recipes.get("procedural-vit").model
            changes = {field: getattr(plain, field)} | ({"k": None} if field == "attention" else {})
            other = build_model(replace(config.model, **changes)).eval()
            other.load_state_dict(model.state_dict())
            assert not torch.allclose(other(images), logits), field
    assert [block.mlp_gain for block in adapted_blocks(model)] == [0, 0]


def test_evaluate_gives_the_number_that_training_ended_with(straight, capsys):
    summary = Run(straight).read_summary() or {}
    assert main(["evaluate", str(straight), "--with", "accuracy", "--batch-size", "4"]) == 0
    out = capsys.readouterr().out
    assert f"{summary['top1']:.2f}" in out and "evaluation.json" in out
    (row,) = Run(straight).evaluations()
    assert (row["judge"], row["data"], row["step"]) == ("accuracy", "procedural:11", 6)
    assert row["values"] == {"top1": summary["top1"], "top5": summary["top5"], "images": 11}
    assert row["command"].startswith("wellcond evaluate ")
    assert main(["evaluate", str(straight)]) == 0  # again: in its place
    assert len(Run(straight).evaluations()) == 1
    assert main(["evaluate", str(straight), "--data", "procedural:20"]) == 0  # others: beside it
    assert [row["values"]["images"] for row in Run(straight).evaluations()] == [11, 20]


def test_evaluate_names_the_checkpoint_that_it_loaded(place, capsys):
    """The newest is damaged: the one before it is judged, and called so."""
    newest, older = sorted(Path("run/checkpoints").iterdir(), reverse=True)[:2]
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert main(["evaluate", "run"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: checkpoint {newest.name} is damaged")
    assert Run("run").evaluations()[-1]["step"] == int(older.name.removeprefix("step-"))
    shutil.rmtree(older)
    assert main(["evaluate", "run"]) == 2
    assert "no whole checkpoint left; restore one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        (["train/a", "train/b", "val/a", "val/b"], "has 2 classes; give other pictures, or use --model.num-classes 2"),
        (["train/a", "train/b", "val/a", "val/c"], "'b' is not in both"),
        (["train/a", "train/b", "val"], "folder:val has no labels"),
        (["train/a", "val/a"], "has one class only"),
        (["train", "val"], "folder:train has no labels"),
    ],
)
def test_what_is_wrong_with_labels_is_told_before_pictures_are_decoded(folders, words, tmp_path, capsys):
    """That takes hours for ImageNet. Here nothing can be decoded: all would be damaged."""
    told = told_of_undecodable(tmp_path, folders, capsys)
    assert told.count("\n") == 1 and words in told


def test_too_few_pictures_are_told_before_they_are_decoded(tmp_path, capsys):
    told = told_of_undecodable(tmp_path, ["train/a", "train/b", "val/a", "val/b"], capsys, "--batch-size=32")
    assert told.count("\n") == 1 and "there are only 16 training images; make it smaller" in told


def told_of_undecodable(folder: Path, halves: list[str], capsys, *words: str) -> str:
    for half in halves:
        (folder / "set" / half).mkdir(parents=True)
        for number in range(8):
            (folder / "set" / half / f"{number}.png").write_bytes(b"not decoded")
    data = str(folder / "set")
    assert main([*TRAIN, "--data.train", data, "--data.val", data, "--out", str(folder / "run"), *words]) == 2
    assert not (folder / "run").exists()
    return capsys.readouterr().err


def test_a_config_file_is_a_recipe(straight, decoded, tmp_path, capsys):
    """The config.json of one run starts another one like it."""
    path = straight / "config.json"
    assert main(["train", str(path), "--device=cpu", "--out", str(tmp_path / "run")]) == 0
    assert final(tmp_path / "run") == final(straight)


def test_a_stop_is_exit_75_and_the_same_command_goes_on(straight, decoded, tmp_path, monkeypatch, capsys):
    words = [*TRAIN, decoded, "--out", str(tmp_path / "run"), *VARIANT]
    with terminated(monkeypatch, at=3):
        assert main(words) == 75
    assert "the same command continues" in capsys.readouterr().err
    assert main(words) == 0
    assert "continuing from step" in capsys.readouterr().err
    assert final(tmp_path / "run") == final(straight)


@pytest.mark.parametrize("place", ["_open_sources", "_page"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_before_and_after_the_loop_is_exit_75_too(place, number, straight, decoded, tmp_path, monkeypatch):
    words, usual = [*TRAIN, decoded, "--out", str(tmp_path / "run"), *VARIANT], getattr(starting, place)

    def interrupted(*given):
        os.kill(os.getpid(), number)
        return usual(*given)

    with monkeypatch.context() as patch:
        patch.setattr(starting, place, interrupted)
        with pytest.raises(SystemExit) as stopped:
            main(words)
    assert stopped.value.code == 75
    assert signal.getsignal(number) == signal.SIG_DFL
    assert main(words) == 0 and (tmp_path / "run" / "report.html").exists()
    assert final(tmp_path / "run") == final(straight)


def test_a_second_signal_while_python_shuts_down_does_not_change_the_status():
    lines = (
        "import atexit, os, signal",
        "from wellcond.stopping import requeued",
        "atexit.register(os.kill, os.getpid(), signal.SIGTERM)",
        "with requeued():",
        "    os.kill(os.getpid(), signal.SIGUSR1)",
    )
    assert subprocess.run([sys.executable, "-c", "\n".join(lines)]).returncode == 75


def test_halves_with_other_classes_are_told_before_the_number_of_classes(decoded, tmp_path, capsys):
    for half, names in {"train": "ab", "val": "abc"}.items():
        for name in names:
            (tmp_path / half / name).mkdir(parents=True)
            Image.new("RGB", (16, 16)).save(tmp_path / half / name / "1.png")
    words = ["--data.train", str(tmp_path), "--data.val", str(tmp_path), "--out", str(tmp_path / "run")]
    assert main([*TRAIN, decoded, *words, "--model.num-classes", "2"]) == 2
    assert "'c' is not in both" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_run_whose_reader_leaves_is_neither_done_nor_diverged(decoded, tmp_path):
    """`wellcond train … 2>&1 | head -1`: 141, as shells have it; the same command goes on."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "wellcond", *TRAIN, decoded, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, stdout=write, stderr=write, check=False)
    os.close(write)
    assert done.returncode == 141
    assert Run(tmp_path / "run").read_summary() is None
    assert main([*command[3:]]) == 0


def test_divergence_is_exit_1(decoded, tmp_path, monkeypatch, capsys):
    def nan(*_):
        return torch.full((8, 3, 16, 16), float("nan")), torch.zeros(8, dtype=torch.long)

    monkeypatch.setattr("wellcond.training.feeding.ImageSupply.prepare", nan)
    words = ["--out", str(tmp_path / "run"), "--max-bad-steps", "2", "--optim.clip", "none"]
    assert main([*TRAIN, decoded, *words]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("wellcond: ") and "lower optim.lr" in lines[-1]
    assert any(line.startswith("warning: step 0 skipped") for line in lines)


def test_without_out_the_run_has_the_name_of_its_recipe(decoded, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, decoded, "--seed", "3", "--epochs", "1"]) == 0
    assert Run("runs/procedural-vit-seed3").read_summary() is not None


def config_of(*words: str) -> TrainConfig:
    command = parse(list(words))
    assert command is not None
    return command.config


def test_options_go_on_top_of_the_recipe():
    words = "--data D --data.val E --optim.lr 5e-4 --no-compile --optim.clip none --data.augment.randaugment none"
    config = config_of("tiny-imagenet-vit-tiny", *words.split(), "--model.cut-attention-skips")
    base = recipes.get("tiny-imagenet-vit-tiny")
    assert (config.data.train, config.data.val) == ("D", "E")  # the longer name wins
    assert (config.optim.lr, config.compile, config.optim.clip) == (5e-4, False, None)
    assert config.data.augment == replace(base.data.augment, randaugment=None)
    assert config.model == replace(base.model, cut_attention_skips=True)
    assert config_of("tiny-imagenet-vit-tiny") == base


@pytest.mark.parametrize("words", [["--epochs", "20"], ["--epochs=20"]])
def test_warm_up_follows_the_epochs_unless_it_is_given(words):
    assert config_of("cifar10-vit-tiny", *words).optim.warmup_epochs == 4
    assert config_of("cifar10-vit-tiny", *words, "--optim.warmup-epochs", "3").optim.warmup_epochs == 3


@pytest.mark.parametrize("words", [["--batch-size", "256"], ["--batch_size=256"]])
def test_the_learning_rate_of_imagenet_follows_the_batch(words):
    assert config_of("imagenet-vit-s", *words).optim.lr == 2.5e-4
    assert config_of("imagenet-vit-s", *words, "--optim.lr", "1e-3").optim.lr == 1e-3


def test_help_shows_the_values_of_the_recipe(capsys):
    assert main(["train", "imagenet-vit-b", "--help"]) == 0
    text = capsys.readouterr().out
    assert "usage: wellcond train imagenet-vit-b" in text and "--optim.lr" in text and "vit_base_patch16_224" in text


@pytest.fixture
def place(tmp_path, monkeypatch, straight) -> Path:
    """A folder with a run, one without weights, a damaged one, and other files."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(straight, "run")
    Path("bare").mkdir()
    Path("bare/config.json").write_text((straight / "config.json").read_text())
    Path("broken").mkdir()
    Path("broken/config.json").write_text("{")
    Path("other").mkdir()
    Path("other/notes.txt").write_text("mine")
    Path("text").write_text("mine")
    Path("broken.json").write_text('{"epochs": 3}')
    Path("text.json").write_bytes(b"\xff")
    huge = {**json.loads(to_json(recipes.get("procedural-vit"))), "seed": 10**400}
    Path("huge.json").write_text(json.dumps(huge))
    stand_in(Path("seven"), 16, 7, train=8)
    return tmp_path


BAD = {
    "no recipe": (["train"], ["a recipe first", "wellcond recipes"]),
    "option before the recipe": (["train", "--epochs", "3"], ["a recipe first"]),
    "bad recipe": (["train", "cifar10-vit-tinny"], ["'cifar10-vit-tinny'", "cifar10-vit-tiny"]),
    "bad recipe to show": (["recipes", "imagenet-vit"], ["'imagenet-vit'", "imagenet-vit-s"]),
    "two recipes to show": (["recipes", "imagenet-vit-s", "imagenet-vit-b"], ["imagenet-vit-b"]),
    "unknown option": ([*TRAIN, "--optim.lrr", "1"], ["'--optim.lrr'", "'--optim.lr'"]),
    "option without its room": ([*TRAIN, "--lr", "1"], ["'--lr'", "'--optim.lr'"]),
    "not a number": ([*TRAIN, "--optim.lr", "high"], ["--optim.lr is 'high', not a number"]),
    "bad value": ([*TRAIN, "--optim.lr", "-1"], ["optim.lr is -1"]),
    "bad choice": ([*TRAIN, "--precision", "fp8"], ["fp8", "bf16"]),
    "no epochs": ([*TRAIN, "--epochs", "0"], ["epochs is 0"]),
    "missing data": (["train", "imagenet-vit-s"], ["data.train", "'imagenet'", "--data"]),
    "missing data, named": ([*TRAIN, "--data.val", "nowhere"], ["data.val", "'nowhere'", "--data"]),
    "one half only": (["train", "imagenet-vit-s", "--data", "other"], ["data.train", "other"]),
    "too few classes": ([*TRAIN, "--model.num-classes", "7"], ["10 classes", "7"]),
    "too many classes": ([*TRAIN, "--model.num-classes", "12"], ["--model.num-classes 10", "12"]),
    "no GPU": ([*TRAIN, "--device", "cuda"], ["'cuda'", "no GPU", "cpu"]),
    "out is a file": ([*TRAIN, "--out", "text"], ["'text'", "file"]),
    "out holds other files": ([*TRAIN, "--out", "other"], ["'other'", "--out"]),
    "changed config": (
        [*TRAIN, *VARIANT, "--out", "run", "--optim.lr", "0.1"],
        ["optim.lr 0.002, not 0.1", "another --out"],
    ),
    "damaged config": ([*TRAIN, "--out", "broken"], ["broken/config.json", "not JSON"]),
    "no such config file": (["train", "nowhere.json"], ["'nowhere.json'", "wellcond recipes"]),
    "bad config file": (["train", "broken.json"], ["'broken.json'", "TrainConfig needs"]),
    "no config file": (["train", "text.json"], ["'text.json'", "it is no text", "wellcond recipes NAME --json"]),
    "numbers that no float holds": (["train", "huge.json"], ["a number is too large", "choose a smaller one"]),
    "model that does not fit": ([*TRAIN, "--model.name", "vit_tinny"], ["vit_tinny", "vit_tiny"]),
    "heads that do not divide": ([*TRAIN, "--model.options", "num_heads", "5"], ["vit_tiny", "--model"]),
    "patch that does not divide": ([*TRAIN, "--model.patch-size", "5", "--model.graying.method", "svd"], ["5"]),
    "weights that are not finite": (
        [*TRAIN, "--model.options", "init_values", "inf"],
        ["blocks.0.", "not finite before the first step", "--model.init"],
    ),
    "weights that are too large": (
        [*TRAIN, "--model.init.method", "skipless", "--model.init.c", "1e39"],
        ["c is 1e+39", "from 1e-06 to 1e+06"],
    ),
    "skips that cannot be cut": (
        [*TRAIN, "--model.name", "resnet18", "--model.options", "--model.patch-size", "none", "--model.cut-mlp-skips"],
        ["ResNet"],
    ),
    "blocks that cannot be measured": (
        [*TRAIN, "--model.name", "resnet18", "--model.options", "--model.patch-size", "none"],
        ["ResNet", "--monitor-every 0"],
    ),
    "classes among the options": (
        [*TRAIN, "--model.options", "num_classes", "7"],
        ["model.options", "num_classes", "model.num_classes"],
    ),
    "evaluate nothing": (["evaluate"], ["a run directory"]),
    "evaluate nowhere": (["evaluate", "nowhere"], ["'nowhere'", "does not exist"]),
    "evaluate no run": (["evaluate", "other"], ["'other'", "not a run directory"]),
    "evaluate a file": (["evaluate", "text"], ["'text'", "not a run directory"]),
    "evaluate a damaged run": (["evaluate", "broken"], ["broken/config.json", "not JSON"]),
    "evaluate before training": (["evaluate", "bare"], ["'bare'", "no whole checkpoint"]),
    "evaluate with nobody": (["evaluate", "run", "--with", "jury"], ["jury", "accuracy"]),
    "evaluate without judges": (["evaluate", "run", "--with"], ["--with"]),
    "evaluate on nothing": (["evaluate", "run", "--data", "nowhere"], ["'nowhere'", "--data"]),
    "evaluate no images at once": (["evaluate", "run", "--batch-size", "0"], ["batch size is 0"]),
    "evaluate at another size": (["evaluate", "run", "--size", "32"], ["size is 32", "segmentation", "leave it out"]),
    "evaluate some of them": (["evaluate", "run", "--with", "knn", "--where", "a=b"], ["'a=b'", "leave it out"]),
    "evaluate without GPU": (["evaluate", "run", "--device", "cuda"], ["'cuda'", "no GPU"]),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD.keys())
def test_a_mistake_is_one_line_and_exit_2(arguments, words, place, decoded, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = files(place)
    given = [*arguments, decoded] if arguments[:2] == TRAIN[:2] else arguments
    assert main(given) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("wellcond: ") and captured.err.count("\n") == 1, captured.err
    assert all(word in captured.err for word in words), captured.err
    assert files(place) == before  # nothing overwritten, nothing left behind


def files(place: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() if p.is_file() else b"" for p in place.rglob("*")}


def test_a_run_with_more_classes_than_the_data_is_judged_but_not_with_fewer(place, capsys):
    assert main(["evaluate", "run", "--data", "seven"]) == 0  # unnamed labels 0 … 6 of 10
    stand_in(Path("many"), 16, 11)
    capsys.readouterr()
    assert main(["evaluate", "run", "--data", "many"]) == 2
    assert "11 classes" in capsys.readouterr().err


def test_a_run_keeps_the_whole_config(straight):
    config = from_json(Run(straight).read_config(), TrainConfig)
    assert config.recipe == "procedural-vit"
    assert json.loads(to_json(config)) == json.loads((straight / "config.json").read_text())


def test_what_is_said_to_be_next_is_not_refused_then(tmp_path, monkeypatch, capsys):
    """Pictures without labels, and a directory with a blank."""
    monkeypatch.chdir(tmp_path)
    for half in ("train", "val"):
        Path("photos", half).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(procedural(i, size=32).image).save(f"photos/{half}/{i}.png")
    small = ["--data", "photos", "--epochs", "1", "--batch-size", "4", "--data.cache", "cache", "--device", "cpu"]
    assert main(["train", "procedural-mae", *small, "--monitor-every", "0", "--out", "runs/a b"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next "))
    words = shlex.split(line)[2:]
    assert words == ["evaluate", "runs/a b", "--with", "pca"] and main(words) == 0
    assert main(words[:2]) == 2 and capsys.readouterr().err.strip().endswith("say --with pca")


@pytest.mark.parametrize(
    ("recipe", "words", "said"),
    [
        ("procedural-dino", ["--dino.local-size", "10"], "dino.local_size is 10, which patches of 8 do not divide"),
        ("procedural-dino", ["--model.num-classes", "4"], "has no classes, but model.num_classes is 4; use 0"),
        ("procedural-mae", ["--mae.mask", "0.99"], "mae.mask is 0.99, which shows 0 of 16 patches"),
        (
            "procedural-mae",
            ["--model.name", "swin_tiny_patch4_window7_224", "--model.options", "window_size", "4"],
            "no plain",
        ),
        ("procedural-vit", ["--pretrained", "nowhere"], "pretrained is 'nowhere', which is no run"),
    ],
)
def test_mistakes_without_labels_are_one_line(recipe, words, said, decoded, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", recipe, "--data", "procedural:16", decoded, *words, "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and not out.exists()
