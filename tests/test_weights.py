"""Checkpoints: every common wrapping is taken off, what does not fit is told, and nothing is ever unpickled."""

import argparse
import errno
import pickle
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from wellcond.checkup.models import load_model
from wellcond.checkup.weights import read_weights
from wellcond.config import DiagnoseConfig

NAME = "test_vit"


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    torch.manual_seed(7)
    return timm.create_model(NAME, num_classes=5)


def load(path, **options) -> nn.Module:
    model, _ = load_model(DiagnoseConfig(model=NAME, weights=path, **options))
    return model


def same(model: nn.Module, other: nn.Module) -> bool:
    ours, theirs = model.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def prefixed(state: dict, prefix: str) -> dict:
    return {prefix + key: value for key, value in state.items()}


WRAPPED = {
    "bare": lambda state: state,
    "model": lambda state: {"model": state, "epoch": 3},
    "state_dict": lambda state: {"state_dict": state, "args": argparse.Namespace(lr=1e-3)},
    "ema before the model": lambda state: {"model": {k: v + 1 for k, v in state.items()}, "model_ema": state},
    "data parallel": lambda state: prefixed(state, "module."),
    "compiled": lambda state: {"model": prefixed(state, "_orig_mod.")},
    "compiled and parallel": lambda state: prefixed(state, "module._orig_mod."),
    "backbone beside another head": lambda state: {**prefixed(state, "backbone."), "neck.weight": torch.zeros(2)},
    "three prefixes": lambda state: {"state_dict": prefixed(state, "module.model.backbone.")},
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED.keys())
def test_wrappers_and_prefixes_are_taken_off(wrap, trained, tmp_path):
    torch.save(wrap(trained.state_dict()), tmp_path / "w.pth")
    assert same(load(tmp_path / "w.pth"), trained)


def test_safetensors_and_its_number_of_classes(trained, tmp_path):
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    model, kind = load_model(DiagnoseConfig(model=NAME, weights=tmp_path / "w.safetensors"))
    assert same(model, trained)
    assert kind == "w.safetensors"
    with pytest.raises(ValueError, match=r"5 classes, --num-classes says 9"):
        load(tmp_path / "w.safetensors", num_classes=9)


def test_weights_without_a_classifier(trained, tmp_path):
    state = {k: v for k, v in trained.state_dict().items() if not k.startswith("head.")}
    save_file(state, tmp_path / "w.safetensors")
    assert load(tmp_path / "w.safetensors").state_dict().keys() == state.keys()


def test_the_wrapper_is_named(trained, tmp_path):
    torch.save({"model_ema": trained.state_dict()}, tmp_path / "w.pth")
    assert load_model(DiagnoseConfig(model=NAME, weights=tmp_path / "w.pth"))[1] == "w.pth (model_ema)"


def test_another_architecture_is_told_by_its_keys(trained, tmp_path):
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(
        ValueError, match=r"no weights of test_vit: \d+ keys missing \(cls_token.*\), \d+ keys unexpected \(.*conv1"
    ):
        load(tmp_path / "w.safetensors")


def test_another_width_is_told_by_both_shapes(trained, tmp_path):
    state = trained.state_dict()
    state["norm.weight"] = torch.ones(96)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"1 of another shape \(norm.weight is 96 in the file, 64 in the model\)"):
        load(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda p: p.to(torch.int8), "int8"),
        (lambda p: p.to(torch.complex64), "complex64"),
        (lambda p: p.to_sparse(), r"float32 \(sparse_coo\)"),
    ],
)
def test_numbers_that_no_weight_can_take_as_they_are(trained, tmp_path, change, kind):
    """int8 of a quantized model lacks its scale, and was taken as it stands."""
    state = trained.state_dict()
    state["norm.weight"] = change(state["norm.weight"])
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=rf"1 of another kind \(norm.weight is {kind} in the file, float32"):
        load(tmp_path / "w.pth")


def test_another_image_size_is_told_with_its_remedy(trained, tmp_path):
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"pos_embed.*--image-size"):
        load(tmp_path / "w.safetensors", image_size=64)


class Trap:
    """What an attacker would pickle."""

    def __reduce__(self):
        return open, ("sprung", "w")


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Trap()}, "a.pth")
    (tmp_path / "b.bin").write_bytes(pickle.dumps(Trap()))
    for name in ("a.pth", "b.bin"):
        with pytest.raises(ValueError, match=rf"{name}.*(open|checkpoint)"):
            load(tmp_path / name)
    with pytest.raises(ValueError, match=r"holds code \((io|_io|builtins).open\), which is not run.*safetensors"):
        load(tmp_path / "a.pth")
    assert not (tmp_path / "sprung").exists()


def test_a_module_pickled_whole_is_refused(trained, tmp_path):
    torch.save(trained, tmp_path / "whole.pt")
    with pytest.raises(ValueError, match=r"holds code \(timm.*VisionTransformer\).*safetensors"):
        load(tmp_path / "whole.pt")


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors", "w.bin"])
@pytest.mark.parametrize("content", [b"", b"text, and no weights", b"\x80\x02.", b"PK\x03\x04"], ids=repr)
def test_files_that_are_no_checkpoints(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"no checkpoint|not a safetensors|no tensors"):
        load(tmp_path / name)


def test_a_file_that_may_not_be_read_is_there(trained, tmp_path, monkeypatch):
    """root may read everything, so the answer of the disk is played."""
    save_file(trained.state_dict(), tmp_path / "x.safetensors")

    def refused(self, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(PermissionError, match=r"x\.safetensors"):
        read_weights(tmp_path / "x.safetensors")


def test_a_checkpoint_without_tensors(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="no tensors"):
        load(tmp_path / "w.pth")


@pytest.mark.parametrize("shape", [(1_000_000_000, 0), ()], ids=str)
def test_a_classifier_of_another_shape_is_not_believed(shape, trained, tmp_path):
    """A tensor without columns costs no byte and may claim any number of rows: a model of so many classes would not."""
    save_file({**trained.state_dict(), "head.weight": torch.zeros(shape)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"head\.weight is .* in the file, \d+×64 in the model"):
        load_model(DiagnoseConfig(model=NAME, weights=tmp_path / "w.safetensors"))


def test_random_weights_depend_on_the_seed_only():
    def make(seed: int) -> nn.Module:
        return load_model(DiagnoseConfig(model=NAME, seed=seed))[0]

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = make(1)
    assert torch.equal(torch.rand(3), expected)  # the caller's generator is where it was
    assert same(first, make(1))
    assert not same(first, make(2))
    assert not first.training
