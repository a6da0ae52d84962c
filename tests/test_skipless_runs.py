"""A residual-free model from its config: train, resume, load, evaluate, diagnose; and weights of the other kind."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from command_cases import TRAIN, terminated, trained
from recipe_cases import stand_in
from training_cases import final

import wellcond as wc
from wellcond import recipes
from wellcond.activations import CentredGELU
from wellcond.blocks import adapted_blocks
from wellcond.cli import main
from wellcond.config import InitConfig, ModelConfig, TrainConfig, from_json, to_json
from wellcond.reproduction.experiments import essence, identity
from wellcond.runs_page.names import words
from wellcond.training import build_model

SKIPLESS = ["--model.init.method", "skipless", "--model.init.temperature", "1", "1.5", "--model.init.alpha", "1.8"]
SKIPLESS += ["--model.activation", "centred-gelu", "--model.cut-attention-skips", "--model.cut-mlp-skips"]


@pytest.fixture(scope="module")
def straight(decoded, tmp_path_factory) -> Path:
    return trained(tmp_path_factory.mktemp("straight") / "run", decoded, *SKIPLESS)


def weights_of(run: Path) -> Path:
    return max((run / "checkpoints").glob("step-*")) / "model.safetensors"


def test_a_stopped_run_goes_on_to_the_same_bits(straight, decoded, tmp_path, monkeypatch):
    command = [*TRAIN, decoded, "--out", str(tmp_path / "run"), *SKIPLESS]
    with terminated(monkeypatch, at=3):
        assert main(command) == 75
    assert main(command) == 0
    assert final(tmp_path / "run") == final(straight)


def test_load_evaluate_diagnose(straight, tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = wc.load(straight)
    assert {block.attention_gain for block in adapted_blocks(model)} == {0.0}
    assert sum(isinstance(module, CentredGELU) for module in model.modules()) == 2
    saved = safetensors.torch.load_file(weights_of(straight))
    assert all(torch.equal(saved[f"model.{name}"], value) for name, value in model.state_dict().items())
    assert main(["evaluate", str(straight)]) == 0
    exported = torch.export.export(model, (torch.zeros(2, 3, 16, 16),)).module()
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(exported(images), model(images))
    diagnosis = wc.diagnose(model, images, jacobian=False, advice=False)
    assert diagnosis.rows


@pytest.mark.parametrize("optimizer", ["adamw", "soap"])
def test_a_recipe_without_skips_through_the_command_line(optimizer, tmp_path, capsys):
    """Two steps → diagnose → evaluate → report."""
    data = stand_in(tmp_path / "data", 32, 10)
    words = [f"--data={data}", f"--data.cache={tmp_path / 'cache'}", "--epochs=1", "--batch-size=2", "--log-every=1"]
    words += ["--device=cpu", "--model.options", "embed_dim", "24", "depth", "2", "num_heads", "3"]
    words += ["--optim.name", optimizer, "--optim.betas", "0.95", "0.95", "--model.anneal-skips", "0.5"]
    run = tmp_path / "runs" / optimizer
    assert main(["train", "cifar10-vit-tiny-skipless", *words, "--out", str(run)]) == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    common = ["--device=cpu", "--images=2", "--no-jacobian", "--json", str(tmp_path / "d.json")]
    assert main(["diagnose", str(run), *common]) == 0
    assert main(["evaluate", str(run), "--device=cpu"]) == 0
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert "cifar10-vit-tiny-skipless" in (tmp_path / "report.html").read_text()
    assert wc.diagnosis.Diagnosis.from_json(tmp_path / "d.json").rows


def test_diagnose_takes_a_run_as_it_was_trained(straight, tmp_path, capsys):
    common = ["diagnose", str(straight), "--images=2", "--device=cpu", "--no-jacobian"]
    assert main([*common, "--json", str(tmp_path / "d.json")]) == 0
    diagnosis = wc.diagnosis.Diagnosis.from_json(tmp_path / "d.json")
    assert diagnosis.image_size == (16, 16) and diagnosis.weights == "as trained"
    assert diagnosis.model == f"{straight}, without skips"
    assert main([*common, "--cut", "mlp"]) == 0
    assert "without mlp skips" not in capsys.readouterr().out, "those of attention are cut as well, by the run"
    rows = {(row.layer, row.site, row.quantity): row.value for row in diagnosis.rows}
    for quantity in ("effective_rank", "token_cosine"):
        assert rows[1, "sab_out", quantity] == rows[1, "sab_sum", quantity], "without its skips"
    assert main([*common, "--init", "--json", str(tmp_path / "v.json")]) == 0
    assert wc.diagnosis.Verification.from_json(tmp_path / "v.json").skips == "without skips"
    capsys.readouterr()
    for wrong in (["--initialize", "skipless"], ["--weights", str(weights_of(straight))], ["--image-size", "32"]):
        assert main([*common, *wrong]) == 2
        assert "is a run, which has its own" in capsys.readouterr().err


def test_the_config_decides_the_weights():
    """Seed and options; the rest of the model is that of timm's own initialization."""
    config = recipes.get("procedural-vit", **{"model.options": (("embed_dim", 16), ("depth", 2), ("num_heads", 2))})
    skipless = recipes.changing.changed(config, {"model.init.method": "skipless", "model.init.c": (2.0,)}).model
    a, b, other = build_model(skipless, 1), build_model(skipless, 1), build_model(skipless, 2)
    plain, bare = build_model(config.model, 1), build_model(skipless, 1, initialized=False)
    for (name, value), twin, else_ in zip(
        a.state_dict().items(), b.state_dict().values(), other.state_dict().values(), strict=True
    ):
        assert torch.equal(value, twin), name
        if name.endswith("qkv.weight"):
            assert not torch.equal(value, else_)
        if not name.startswith("blocks."):
            assert torch.equal(value, plain.state_dict()[name]), name
        assert torch.equal(bare.state_dict()[name], plain.state_dict()[name])
    proj: Any = a.get_submodule("blocks.0.attn.proj").weight
    assert torch.linalg.svdvals(proj.detach())[0] == pytest.approx(2.0, rel=1e-5)
    mimetic = build_model(recipes.changing.changed(config, {"model.init.method": "mimetic"}).model, 1)
    assert not torch.equal(mimetic.state_dict()["blocks.0.attn.qkv.weight"], a.state_dict()["blocks.0.attn.qkv.weight"])


def test_configs_from_before_there_was_a_choice():
    config = recipes.get("cifar10-vit-tiny")
    text = to_json(config)
    for old in ('"init"', '"activation"'):
        assert old in text
    value = copy.deepcopy(config)
    stripped = _without(text, "init", "activation")
    assert from_json(stripped, TrainConfig) == value
    assert not any("init" in name or "activation" in name for name in essence(config)), "identities in results/ stay"
    changed = recipes.changing.changed(config, {"model.init.method": "skipless", "model.init.alpha": (1.8,)})
    assert from_json(to_json(changed), TrainConfig) == changed and identity(changed) != identity(config)


def _without(text: str, *names: str) -> str:
    value = json.loads(text)
    for name in names:
        del value["model"][name]
    return json.dumps(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "orthogonal"}, "init.method is 'orthogonal'"),
        ({"method": "skipless", "c": (0.0,)}, "init.c is 0.0; choose a positive"),
        ({"method": "skipless", "alpha": ()}, "init.alpha is empty"),
        ({"method": "skipless", "beta": (float("nan"),)}, "init.beta is nan"),
        ({"alpha": (1.0,)}, r"init.alpha is \(1.0,\).*say init.method skipless"),
        ({"method": "mimetic", "z": "uniform"}, "init.z is uniform"),
    ],
    ids=str,
)
def test_bad_configs(options, message):
    with pytest.raises(ValueError, match=message):
        InitConfig(**options)
    with pytest.raises(ValueError, match=r"model\.activation"):
        ModelConfig(name="x", image_size=16, num_classes=2, activation="relu")  # pyright: ignore[reportArgumentType]


def test_names_of_runs():
    said = words({"model.init.method": "skipless", "model.activation": "tat"})
    assert said == ["init.method skipless", "activation tat"]
    assert words({"model.init.method": "default", "model.activation": "gelu"}) == []


def test_a_family_without_an_initialization_is_one_line(decoded, tmp_path, capsys):
    command = [*TRAIN, decoded, "--out", str(tmp_path / "run"), "--model.name=cait_xxs24_224"]
    assert main([*command, "--model.init.method", "skipless"]) == 2
    assert "talking heads" in capsys.readouterr().err


# ---- weights of the other kind


def vit() -> Any:
    return timm.create_model("vit_tiny_patch16_224", img_size=16, embed_dim=16, depth=3, num_heads=2, num_classes=5)


def warned(model, state) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.load_state_dict(state)
    return [str(warning.message) for warning in caught]


def test_a_skipless_model_warns_once_of_weights_with_skips(tmp_path):
    torch.save(vit().state_dict(), tmp_path / "plain.pt")
    for state in (vit().state_dict(), torch.load(tmp_path / "plain.pt", weights_only=True)):
        (message,) = warned(wc.cut_skips(vit()), state)
        assert "with its attention and mlp skips" in message and "init_skipless_" in message
    (message,) = warned(wc.cut_skips(vit(), mlp=False), vit().state_dict())
    assert "its attention skips" in message
    wrapped, plain = torch.nn.Sequential(wc.cut_skips(vit())), torch.nn.Sequential(vit())
    assert len(warned(wrapped, plain.state_dict())) == 1
    assert len(warned(copy.deepcopy(wrapped), plain.state_dict())) == 1
    assert warned(wc.cut_skips(vit(), attention=False), wc.cut_skips(vit(), mlp=False).state_dict())


def test_it_warns_once_too_of_weights_that_do_not_say(tmp_path):
    safetensors.torch.save_file(vit().state_dict(), tmp_path / "plain.safetensors")
    for state in (dict(vit().state_dict()), safetensors.torch.load_file(tmp_path / "plain.safetensors")):
        (message,) = warned(wc.cut_skips(vit()), state)
        assert "do not say whether they are of a model with its attention and mlp skips" in message
        assert not warned(vit(), state)


def test_no_warning_where_nothing_is_lost(tmp_path):
    cut = wc.cut_skips(vit())
    torch.save(cut.state_dict(), tmp_path / "cut.pt")
    assert not warned(wc.cut_skips(vit()), torch.load(tmp_path / "cut.pt", weights_only=True))
    assert not warned(vit(), cut.state_dict()) and not warned(wc.restore_skips(cut), vit().state_dict())
    assert list(wc.cut_skips(vit()).state_dict()) == list(vit().state_dict())


def test_diagnose_says_when_the_skips_are_not_those_of_training(straight, tmp_path, capsys):
    common = ["diagnose", "vit_tiny_patch16_224", "--no-jacobian", "--images=1", "--device=cpu", "--image-size=32"]
    model = timm.create_model("vit_tiny_patch16_224", num_classes=3, img_size=32)
    file = tmp_path / "weights.safetensors"
    for metadata, cut, told in (
        ({"cut": "no"}, "both", "was trained with all its skips, and is measured without skips; say --cut no"),
        ({"cut": "both"}, "no", "was trained without skips, and is measured with all its skips; say --cut both"),
        ({"cut": "attention"}, "attention", ""),
        ({}, "both", ""),
        (
            {"cut": "both", "activation": "tat"},
            "both",
            "without skips, with tat, and is measured without skips; give its",
        ),
    ):
        safetensors.torch.save_file(model.state_dict(), file, metadata={"wellcond": json.dumps(metadata)})
        assert main([*common, "--weights", str(file), "--cut", cut, "--json", str(tmp_path / "d.json")]) == 0
        error = capsys.readouterr().err
        assert (told in error and error.count("warning:") == 1) if told else "warning:" not in error
    with safetensors.safe_open(weights_of(straight), "pt") as opened:
        assert json.loads(opened.metadata()["wellcond"]) == {"cut": "both", "activation": "centred-gelu"}
