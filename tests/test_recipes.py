"""Recipes: complete, the papers' values, each with an honest card, and each trains on a stand-in of its own data."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from recipe_cases import FINETUNE, NAMES, WITHOUT_LABELS, stand_in

from wellcond import recipes
from wellcond.cli import main
from wellcond.config import AugmentConfig, TrainConfig, changed_fields, from_json, to_json
from wellcond.runs import Run
from wellcond.training import build_model

RESULTS = Path(__file__).parents[1] / "results"
SUPERVISED = [name for name in NAMES if name not in WITHOUT_LABELS and name not in FINETUNE]
IMAGENET = [name for name in SUPERVISED if name.startswith("imagenet")]
SMALL = [name for name in SUPERVISED if not name.startswith(("imagenet", "procedural"))]


def test_the_names_are_fixed():
    assert tuple(recipes.RECIPES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_a_whole_config(name):
    config = recipes.get(name)
    assert config.recipe == name
    assert from_json(to_json(config), TrainConfig) == config
    assert config == recipes.get(name)
    assert recipes.get(name, epochs=2).epochs == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_a_card_says(name):
    lines = recipes.card(name).splitlines()
    words = {line.split()[0] for line in lines[2:] if not line.startswith(" ")}
    assert words == {"command", "variants", "hardware", "time", "expected", "paper"}
    command = next(line for line in lines if line.startswith("command"))
    assert f"wellcond train {name} " in f"{command} "


@pytest.mark.parametrize("name", NAMES)
def test_what_a_card_expects_was_measured(name):
    card = recipes.card(name)
    expected = card[card.index("expected") : card.index("paper  ")]
    if "not measured" in expected:
        return
    *told, rest = re.split(r"\((results/\S+\.json)\)", expected)  # numbers, their file, more numbers, …
    assert told and not re.search(r"\d", rest)
    for words, file in zip(told[::2], told[1::2], strict=True):
        numbers = set(re.findall(r"\d+\.\d(?!\d)", words))
        rows = json.loads((RESULTS.parent / file).read_text())["rows"]
        assert numbers and numbers <= {f"{row['value']:.1f}" for row in rows}


@pytest.mark.parametrize("name", NAMES)
def test_the_time_of_a_card_was_measured(name):
    card = recipes.card(name)
    time = card[card.index("time  ") : card.index("expected")]
    told = re.findall(r"(\S+): (\S+) GPU-minutes of one H200 \(results/(\S+)\.json\)", time)
    assert told or "not measured" in time
    for claim, minutes, file in told:
        measured = json.loads((RESULTS / f"{file}.json").read_text())
        assert measured["claim"] == claim and f"{measured['gpu_minutes']:.1f}" == minutes


def test_every_claim_that_took_gpu_time_is_on_a_card():
    read = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    cards = "\n".join(recipes.card(name) for name in NAMES)
    assert [found["claim"] for found in read if "gpu_minutes" in found and f"{found['claim']}: " not in cards] == []


@pytest.mark.parametrize("name", SMALL)
def test_small_sets_are_trained_as_the_lab_does(name):
    config = recipes.get(name)
    optim = config.optim
    assert (optim.name, optim.lr, optim.min_lr, optim.weight_decay, optim.clip) == ("adamw", 1e-3, 1e-6, 0.01, 3.0)
    assert (config.epochs, optim.warmup_epochs, config.batch_size) == (200, 10, 512)
    assert config.data.augment.randaugment == "rand-m9-mstd0.5-inc1"
    short = recipes.get(name, epochs=20)
    assert short.optim.warmup_epochs == 4 and short.data.augment.randaugment is None


@pytest.mark.parametrize("name", IMAGENET)
def test_imagenet_is_trained_as_deit_does(name):
    config = recipes.get(name)
    augment, optim = config.data.augment, config.optim
    assert (config.epochs, optim.warmup_epochs, optim.weight_decay, optim.lr) == (300, 5, 0.05, 1e-3)
    assert (augment.mixup, augment.cutmix, augment.erase, augment.smoothing) == (0.8, 1.0, 0.25, 0.1)
    assert (augment.crop, augment.randaugment, augment.repeats) == ("resized", "rand-m9-mstd0.5-inc1", 3)
    drop_path = 0.0 if name.endswith("-skipless") else 0.1
    assert (config.model.drop_path, config.model.num_classes, config.model.image_size) == (drop_path, 1000, 224)
    assert recipes.get(name, batch_size=512).optim.lr == 5e-4


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-skipless")])
def test_a_skipless_recipe_changes_the_model_alone(name):
    config, base = recipes.get(name), recipes.get(name.removesuffix("-skipless"))
    assert set(changed_fields(base, config)) - {"model.drop_path"} == {
        "recipe",
        "model.cut_attention_skips",
        "model.cut_mlp_skips",
        "model.init.method",
    }
    init = config.model.init
    assert (config.model.cut, config.model.drop_path) == ("both", 0.0)
    assert (init.method, init.alpha, init.beta, init.c) == ("skipless", (2.0,), (0.6,), (3.0,))


@pytest.mark.parametrize("name", [name for name in WITHOUT_LABELS if "-mae" in name and "procedural" not in name])
def test_mae_is_trained_as_the_papers_do(name):
    config = recipes.get(name)
    optim, mae = config.optim, config.mae
    assert (config.objective, config.epochs, optim.warmup_epochs) == ("mae", 400, 40)
    assert optim.lr == pytest.approx(1.5e-4 * config.batch_size / 256)
    assert (optim.weight_decay, optim.betas, optim.clip) == (0.05, (0.9, 0.95), None)
    assert (mae.mask, mae.normalise, mae.visible) == (0.75, True, False)
    assert config.data.augment == AugmentConfig(crop="resized", scale=(0.2, 1.0))
    if name.startswith("imagenet"):
        assert (config.batch_size, mae.decoder_depth, mae.decoder_width) == (2048, 8, 512)


@pytest.mark.parametrize("name", [name for name in WITHOUT_LABELS if "-dino" in name and "procedural" not in name])
def test_dino_is_trained_as_the_paper_does(name):
    config = recipes.get(name, epochs=300)
    optim, dino = config.optim, config.dino
    assert (config.objective, optim.warmup_epochs, optim.clip) == ("dino", 10, 3.0)
    assert (optim.weight_decay, optim.weight_decay_end) == (0.04, 0.4)
    assert optim.lr == pytest.approx(5e-4 * config.batch_size / 256)
    assert (dino.student_temperature, dino.start_temperature, dino.teacher_temperature) == (0.1, 0.04, 0.07)
    assert (dino.temperature_epochs, dino.momentum, dino.centre_momentum, dino.freeze_epochs) == (30, 0.996, 0.9, 1)
    assert (dino.local_crops, dino.global_scale, dino.local_scale) == (8, (0.4, 1.0), (0.05, 0.4))
    if name.startswith("imagenet"):
        assert (dino.out_dim, dino.local_size) == (65536, 96)


@pytest.mark.parametrize("name", FINETUNE)
def test_fine_tuning_is_as_in_the_paper(name):
    config = recipes.get(name)
    augment, optim = config.data.augment, config.optim
    assert (config.epochs, config.batch_size, optim.lr, optim.weight_decay) == (100, 512, 1e-3, 0.05)
    assert (optim.layer_decay, config.model.drop_path, augment.mixup, augment.cutmix) == (0.65, 0.1, 0.8, 1.0)
    assert config.pretrained is not None and config.pretrained.removeprefix("runs/").removesuffix("-seed0") in NAMES


def test_overrides_by_dotted_name():
    config = recipes.get("cifar10-vit-tiny", seed=3, **{"optim.lr": 5e-4, "data.train": "a", "data.val": "b"})
    assert (config.seed, config.optim.lr, config.data.train, config.data.val) == (3, 5e-4, "a", "b")
    linear = recipes.get("cifar10-vit-tiny", **{"model.attention": "linear", "model.k": 8.0})  # one needs the other
    assert linear.model == dataclasses.replace(config.model, attention="linear", k=8.0)


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("cifar10-vit-tinny", {}, ["'cifar10-vit-tinny'", "cifar10-vit-tiny"]),
        ("xyz", {}, ["'xyz'", "wellcond recipes"]),
        ("cifar10-vit-tiny", {"optim.lrr": 1}, ["'optim.lrr'", "'optim.lr'"]),
        ("cifar10-vit-tiny", {"lr": 1}, ["'lr'", "'optim.lr'"]),
        ("cifar10-vit-tiny", {"epochs": 0}, ["epochs is 0"]),
        ("cifar10-vit-tiny", {"optim.lr": -1.0}, ["optim.lr is -1.0"]),
    ],
)
def test_mistakes_are_named(name, overrides, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        recipes.get(name, **overrides)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_table_lists_all(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["recipes"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in NAMES)
    assert max(map(len, text.splitlines())) <= 80


def test_one_recipe_is_shown_with_its_card_and_config(capsys, tmp_path):
    assert main(["recipes", "imagenet-vit-b"]) == 0
    text = capsys.readouterr().out
    assert "torchrun" in text and "81.0/95.3" in text
    assert from_json(text[text.index("{") :], TrainConfig) == recipes.get("imagenet-vit-b")
    assert main(["recipes", "imagenet-vit-b", "--json"]) == 0
    assert from_json(capsys.readouterr().out, TrainConfig) == recipes.get("imagenet-vit-b")


def trained(name: str, tmp_path, *options: str, out: str = "run") -> Run:
    """Two steps of a recipe through the command, on pictures of the real size and number of classes."""
    config = recipes.get(name)
    data = stand_in(tmp_path / "data", config.model.image_size, config.model.num_classes or 10)
    words = [f"--data={data}", f"--data.cache={tmp_path / 'cache'}", f"--out={tmp_path / out}"]
    words += ["--epochs=1", "--batch-size=2", "--monitor-images=1", "--log-every=1", "--device=cpu"]
    assert main(["train", name, *words, *options]) == 0
    run = Run(tmp_path / out)
    losses = [row["loss"] for row in run.rows() if row["kind"] == "train"]
    assert len(losses) == 2 and all(losses)
    summary = run.read_summary()
    assert summary is not None and summary["steps"] == 2 and summary["skipped"] == 0
    return run


SHALLOW = {  # blocks of those that would take longest
    "imagenet-vit-b": "2",
    "imagenet-vit-b-skipless": "1",
    "imagenet-cait-s24": "2",
    "imagenet-mae-vit-b": "2",
    "imagenet-dino-vit-s": "2",
    **{name: "2" for name in NAMES if not name.startswith("imagenet") and "-vit-s" in name},
}


def shallow(name: str) -> list[str]:
    return ["--model.options", "depth", SHALLOW[name]] if name in SHALLOW else []


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("imagenet")])
def test_two_steps(name, tmp_path, capsys):
    words = shallow(name)
    if name in FINETUNE:
        trained(FINETUNE[name], tmp_path, "--monitor-every=0", *words, out="before")
        shutil.rmtree(tmp_path / "data")
        words += ["global_pool", "avg"] if words else []
        words += [f"--pretrained={tmp_path / 'before'}"]
    run = trained(name, tmp_path, *words)
    probes = [row for row in run.rows() if row["kind"] == "probe"]
    assert any(row["quantity"] == "log_kappa" and row["value"] is not None for row in probes)
    assert ("val_loss" in next(row for row in run.rows() if row["kind"] == "eval")) == (name in WITHOUT_LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*IMAGENET, "imagenet-mae-vit-b", "imagenet-dino-vit-s"])
def test_two_steps_of_imagenet(name, tmp_path, capsys):
    """At 224 px and with everything that the recipe has, but each picture twice in a batch of two."""
    repeats = [] if name in WITHOUT_LABELS else ["--data.augment.repeats=2"]
    trained(name, tmp_path, *repeats, "--monitor-every=0", "--keep=1", *shallow(name))


@pytest.mark.slow
def test_two_steps_of_fine_tuning_on_imagenet(tmp_path, capsys):
    small = ["--monitor-every=0", "--keep=1"]
    trained("imagenet-mae-vit-b", tmp_path, *small, "--model.options", "depth", "2", out="before")
    shutil.rmtree(tmp_path / "data")
    words = ["--model.options", "depth", "2", "global_pool", "avg", f"--pretrained={tmp_path / 'before'}"]
    trained("imagenet-vit-b-finetune", tmp_path, *small, *words)


MILLIONS = {  # of weights, as the papers of these models have them
    "cifar10-vit-tiny": 5.4,
    "cifar10-vit-s": 21.3,
    "tiny-imagenet-vit-s": 21.5,
    "imagenet-vit-s": 22.1,
    "imagenet-vit-b": 86.6,
    "imagenet-swin-s": 49.6,
    "imagenet-cait-s24": 46.9,
    "imagenet-pvt-v2-b3": 45.2,
    "imagenet-mae-vit-b": 85.8,  # without a head
    "imagenet-dino-vit-s": 21.7,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_the_one_that_is_meant(name):
    with torch.device("meta"):  # shapes only
        model = build_model(recipes.get(name).model, initialized=False)
    count = sum(p.numel() for p in model.parameters()) / 1e6
    assert count == pytest.approx(MILLIONS.get(name, count), rel=0.02)
    assert count > 0
