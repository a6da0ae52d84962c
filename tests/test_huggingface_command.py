"""`wellcond diagnose` of saved models: folders of transformers, pushed runs; offline, and every mistake one line."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_cases import CASES, DINO, VIT
from PIL import Image
from training_cases import run as train
from training_cases import tiny
from transformers import ViTImageProcessor, logging

import wellcond as wc
from wellcond.checkup.models import load_model
from wellcond.cli import main
from wellcond.config import DiagnoseConfig
from wellcond.data.batches import Preprocessing
from wellcond.data.procedural import procedural

FEW = ["--images", "2", "--no-jacobian", "--json", "found.json"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", _offline)
    logging.disable_progress_bar()  # of save_pretrained


def _offline(*_args, **_options):
    raise ConnectionError("no network in tests")


def found() -> dict:
    return json.loads(Path("found.json").read_text())


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_a_folder_of_transformers(case, capsys):
    case.create().save_pretrained("saved")
    assert main(["diagnose", "hf:saved", "--tokens", "patch", *FEW]) == 0
    assert capsys.readouterr().err == ""
    result = found()
    assert (result["model"], result["weights"], result["image_size"]) == ("hf:saved", "as saved", [32, 32])
    row = next(r for r in result["rows"] if (r["layer"], r["site"], r["quantity"]) == (1, "ffn_sum", "log_kappa"))
    assert (row["n"], row["d"]) == (16, 48)


def test_its_weights_and_its_pictures_are_the_saved_ones():
    model = CASES[3].create()  # with a classifier, which the diagnosis leaves out
    model.save_pretrained("saved")
    ViTImageProcessor(image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]).save_pretrained("saved")
    loaded: Any = load_model(DiagnoseConfig(model="hf:saved"))[0]
    weights = loaded.state_dict()
    assert all(torch.equal(weights[k.removeprefix("vit.")], t) for k, t in model.state_dict().items() if "vit." in k)
    seen = Preprocessing(loaded)
    assert (list(seen.size), seen.mean, seen.std) == ([32, 32], (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert loaded.config._attn_implementation == "sdpa" and not loaded.training


def test_a_picture_is_as_wide_as_its_config_says():
    VIT.create(image_size=[32, 48]).save_pretrained("saved")
    assert main(["diagnose", "hf:saved", *FEW]) == 0
    assert found()["image_size"] == [32, 48]


def test_a_processor_that_does_not_normalise():
    VIT.create().save_pretrained("saved")
    ViTImageProcessor(do_normalize=False).save_pretrained("saved")
    seen = Preprocessing(load_model(DiagnoseConfig(model="hf:saved"))[0])
    assert (seen.mean, seen.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("config.json", {"num_hidden_layers": 9}, r"layers\.\d\.\S+ is missing; .*; …; fetch or save it again"),
        ("config.json", {"intermediate_size": 20}, r"fc1.bias is \d+ in the file, 20 by its config"),
        ("preprocessor_config.json", {"image_mean": [0.5]}, r"has image_mean \[0.5\]; it must be a number for each"),
    ],
)
def test_weights_and_moments_that_are_not_those_of_its_files(file, change, said, capsys):
    """transformers draws the weights of layers that the file has not, and they were measured as saved ones."""
    VIT.create().save_pretrained("saved")
    ViTImageProcessor().save_pretrained("saved")
    path = Path("saved") / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert main(["diagnose", "hf:saved", *FEW]) == 2
    assert re.search(said, capsys.readouterr().err.strip()) and not Path("found.json").exists()


def test_a_model_of_another_number_of_channels(capsys):
    VIT.create(num_channels=1).save_pretrained("saved")
    assert main(["diagnose", "hf:saved", *FEW]) == 2
    assert "the model takes 1 channels, and pictures have 3" in capsys.readouterr().err


def test_changes_are_made_to_it_as_to_others(capsys):
    DINO.create().save_pretrained("saved")
    assert main(["diagnose", "hf:saved", "--gray", "svd", "--cut", "both", "--image-size", "48", *FEW]) == 0
    result = found()
    assert result["model"] == "hf:saved, grayed by SVD 0.95, without skips" and result["image_size"] == [48, 48]
    assert main(["diagnose", "hf:saved", "--init", "--initialize", "skipless", *FEW]) == 0


def test_a_pushed_run(capsys):
    config = tiny(epochs=1)
    train(config, Path("run"))
    assert main(["push", "run", "me/model", "--dry-run", "--out", "pushed"]) == 0
    Path("photos").mkdir()
    for i in range(2):
        Image.fromarray(procedural(i, size=32).image).save(f"photos/{i}.png")
    rows = []
    for name in ("run", "pushed", "hf:pushed"):
        assert main(["diagnose", name, "--data", "photos", *FEW]) == 0
        rows.append(found()["rows"])
        assert found()["weights"] == "as trained"
    assert rows[0] == rows[1] == rows[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hf:saved", "--weights", "x.safetensors"], "weights is given, and 'hf:saved' is a model of transformers"),
        (["hf:saved", "--num-classes", "3"], "num classes is given"),
        (["hf:saved", "--image-size", "48"], "does not take images of 48 pixels"),
        (["hf:saved", "--image-size", "30"], "not a multiple of the patch size 8"),
        (["hf:bert"], "is of the type 'bert'; wellcond knows vit, deit, dinov2"),
        (["hf:pickled"], "cannot load 'hf:pickled'"),
        (["hf:timm"], "a model of timm is local-dir:timm"),
        (["timm"], "a model of timm is local-dir:timm"),
        (["hf:empty"], "is a folder without config.json"),
        (["hf:./nowhere"], "no folder here; write hf:FOLDER"),
        (["hf:"], "no folder here; write hf:FOLDER"),
        (["hf:me/model"], "could not be had from the hub: it cannot be reached"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(words, said, capsys):
    model = VIT.create()
    model.save_pretrained("saved")
    for name, config in (("bert", {"model_type": "bert"}), ("timm", {"architecture": "vit_tiny_patch16_224"})):
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps(config))
    Path("empty").mkdir()
    model.config.save_pretrained("pickled")
    torch.save(model.state_dict(), "pickled/pytorch_model.bin")
    assert main(["diagnose", *words, *FEW]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and said in captured.err, captured.err
    assert not Path("found.json").exists()


def test_a_run_of_that_name_is_still_a_run():
    train(tiny(epochs=1), Path("run"))
    assert torch.equal(
        load_model(DiagnoseConfig(model="run"))[0](torch.ones(1, 3, 8, 8)), wc.load("run")(torch.ones(1, 3, 8, 8))
    )
