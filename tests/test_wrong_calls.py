"""Wrong arguments in Python, and pictures that cannot be what they are given for: a ValueError names the value.

Settings of graying and matrices are in test_bad_input.py.
"""

import io
from typing import Any

import numpy as np
import pyarrow
import pytest
import timm
import torch
from PIL import Image
from pyarrow import parquet
from torch import nn

import wellcond as wc
from wellcond import recipes
from wellcond.blocks.images import check_images, own_size
from wellcond.data.annotations import boxes_of, check_boxes, mask_of
from wellcond.data.feeds import check_same_classes
from wellcond.data.parquet import ParquetSource


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("labels", "said"), [(["a", "b"], "string, for example 'a'"), ([0.5, 1.0], "double"), ([[0], [1]], "list")]
)
def test_labels_that_are_no_whole_numbers(labels, said, tmp_path):
    picture = {"bytes": png(np.zeros((4, 4, 3), np.uint8)), "path": "a.png"}
    parquet.write_table(pyarrow.table({"image": [picture] * 2, "label": labels}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=f"{said}.*whole number"):
        ParquetSource([tmp_path / "a.parquet"], "set").labels()
    parquet.write_table(pyarrow.table({"image": [picture] * 2, "label": [1.0, None]}), tmp_path / "a.parquet")
    found = ParquetSource([tmp_path / "a.parquet"], "set").labels()
    assert found is not None and found.tolist() == [1, -1]  # what pandas makes of a column with a gap


def test_masks_and_boxes_that_say_nothing():
    for value, said in ((1, "is 1; give a picture"), (b"zz", "no image that Pillow knows")):
        with pytest.raises(ValueError, match=said):
            mask_of(value, "a")
    for value in ([float("nan")] * 4, "abcd", [1, 2, 3]):
        with pytest.raises(ValueError, match="give four numbers"):
            boxes_of(value, "a")
    with pytest.raises(ValueError, match="outside the picture of 6 × 4 px"):
        check_boxes(np.array([[7.0, 0.0, 9.0, 2.0]]), np.zeros((4, 6, 3), np.uint8), "a")
    check_boxes(np.array([[6.0, 0.0, 6.0, 4.0]]), np.zeros((4, 6, 3), np.uint8), "a")  # at the edge


def test_halves_of_other_classes():
    """A folder numbers its classes in its own order: b would be called c."""

    class Half:
        def __init__(self, *classes: str) -> None:
            self.meta = self
            self.title, self.classes = "set", list(classes)

    check_same_classes(Half("a", "b"), Half("a", "b"))  # pyright: ignore[reportArgumentType]
    check_same_classes(Half("a", "b"), Half())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'b' is not in both"):
        check_same_classes(Half("a", "b"), Half("a", "c"))  # pyright: ignore[reportArgumentType]


def vit() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3).eval()


NAN, IMAGES = float("nan"), torch.zeros(1, 3, 32, 32)
LOOKING = {
    "diagnose": lambda x: wc.diagnose(vit(), x, jacobian=False),
    "verify_init": lambda x: wc.verify_init(vit(), x, jacobian=False),
    "calibrate_": lambda x: wc.calibrate_(vit(), x),
    "Monitor": lambda x: wc.Monitor(vit(), images=x),
}
WRONG_IMAGES = {
    "NaN": (IMAGES * NAN, "holds NaN or inf"),
    "size": (torch.zeros(1, 3, 48, 48), "takes 32 × 32 px"),
    "channels": (IMAGES[:, :1], r"1 channels, and VisionTransformer takes 3; repeat it"),
    "none": (IMAGES[:0], r"no images|\(0, 3, 32, 32\)"),
    "words": ("photo.jpg", "str|'photo.jpg'"),
}


@pytest.mark.parametrize("call", LOOKING.values(), ids=LOOKING)
@pytest.mark.parametrize(("images", "said"), WRONG_IMAGES.values(), ids=WRONG_IMAGES)
def test_images_that_the_model_does_not_take(call, images, said):
    if call is LOOKING["diagnose"] and said.endswith("inf"):
        return  # it has a finding for it (test_diagnose)
    with pytest.raises(ValueError, match=said):
        call(images)


def test_a_model_built_by_its_class_tells_its_channels():
    model = timm.models.VisionTransformer(img_size=32, in_chans=1, embed_dim=24, depth=1, num_heads=3)
    with pytest.raises(ValueError, match="3 channels, and VisionTransformer takes 1; give so many"):
        check_images(model, IMAGES)


def pit() -> nn.Module:
    return timm.create_model("pit_ti_224", img_size=40, depth=(1, 1, 1)).eval()


def relpos() -> nn.Module:
    return timm.create_model("vit_relpos_small_patch16_224", img_size=32, depth=1, embed_dim=24, num_heads=3).eval()


def naflex() -> nn.Module:
    small: dict[str, Any] = {"depth": 1, "embed_dim": 24, "num_heads": 3}
    return timm.create_model("naflexvit_base_patch16_gap", **small).eval()


class Encoding(nn.Module):
    """A classifier around an encoder that takes any number of whole patches (Qwen's, DeepSeek's)."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        encoder.patch_embed.strict_img_size = False


def twins() -> nn.Module:
    small: dict[str, Any] = {"depths": (1, 1, 1, 1), "embed_dims": (8, 8, 8, 8), "num_heads": (1, 1, 1, 1)}
    return timm.create_model("twins_svt_small", **small).eval()


def pvt() -> nn.Module:
    return timm.create_model("pvt_v2_b0", depths=(1, 1, 1, 1)).eval()


BEFORE_TORCH = {  # whose own errors speak of dimensions and groups
    "positions that are not interpolated": (lambda: wc.diagnose(pit(), torch.zeros(1, 3, 48, 48)), "takes 40 × 40 px"),
    "the same, smaller": (lambda: wc.verify_init(pit(), torch.zeros(1, 3, 39, 39)), "takes 40 × 40 px"),
    "proof on too many channels": (lambda: wc.cut_skips(relpos(), images=torch.zeros(2, 5, 32, 32)), "takes 3; give"),
    "proof on another size": (lambda: wc.cut_skips(relpos(), images=torch.zeros(2, 3, 48, 48)), "takes 32 × 32 px"),
    "proof on what breaks inside": (
        lambda: wc.cut_skips(twins(), images=torch.zeros(2, 3, 8, 8)),
        r"Twins does not run on images of shape \(2, 3, 8, 8\), on which .* pass images= that it takes",
    ),
    "flattened patches": (lambda: wc.verify_init(naflex(), torch.zeros(1, 3, 32, 40)), "patches of 16 × 16 px"),
    "channels of flattened patches": (lambda: wc.verify_init(naflex(), torch.zeros(1, 1, 32, 32)), "takes 3; repeat"),
    "patches of an encoder inside": (lambda: check_images(Encoding(vit()), torch.zeros(1, 3, 32, 40)), "16 × 16 px"),
    "grayed positions that are not interpolated": (lambda: wc.gray(pit())(torch.zeros(1, 3, 48, 48)), "takes 40×40"),
    "overlapping grayed patches": (lambda: wc.gray(pvt())(torch.zeros(1, 1, 32, 32)), "1 channels, .* takes 3; give"),
}


@pytest.mark.parametrize(("call", "said"), BEFORE_TORCH.values(), ids=BEFORE_TORCH)
def test_images_are_looked_at_before_torch_does(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_a_picture_of_its_own_size_need_not_be_whole_patches():
    check_images(timm.create_model("pit_ti_224", img_size=44, depth=(1, 1, 1)), torch.zeros(1, 3, 44, 44))
    small: dict[str, Any] = {"img_size": 40, "depth": 1, "embed_dim": 24, "num_heads": 3}
    model = timm.create_model("vit_so400m_patch14_siglip_384", **small).eval()  # whose own 384 px are 27.4 patches
    assert wc.diagnose(model, torch.randn(1, 3, 40, 40), jacobian=False, advice=False).rows[0].n == 4


def test_a_model_that_says_nothing_is_not_asked():
    check_images(nn.Linear(3, 3), torch.zeros(2, 5, 7, 9))


def test_a_model_has_a_size_of_its_own_also_where_it_takes_others():
    flexible: Any = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, dynamic_img_size=True).eval()
    check_images(flexible, torch.zeros(1, 3, 48, 48))
    with pytest.raises(ValueError, match=r"\(1, 3, 48, 40\), and VisionTransformer .* patches of 16 × 16 px"):
        wc.verify_init(flexible, torch.zeros(1, 3, 48, 40))
    flexible.patch_embed.dynamic_img_pad = True
    check_images(flexible, torch.zeros(1, 3, 48, 40))
    assert own_size(flexible) == own_size(vit()) == (32, 32) and own_size(nn.Linear(3, 3)) is None


def soap(**options) -> wc.SOAP:
    return wc.SOAP([nn.Parameter(torch.ones(4, 3))], **options)


PYTHON = {
    "generator": (lambda: wc.suo_(torch.ones(3, 3), generator=3), "generator is 3"),  # pyright: ignore[reportArgumentType]
    "generator of a model": (lambda: wc.init_skipless_(vit(), generator=3), "generator is 3"),  # pyright: ignore[reportArgumentType]
    "empty weight": (lambda: wc.suo_(torch.zeros(0, 3)), r"\(0, 3\)"),
    "skips in words": (lambda: wc.cut_skips(vit(), attention="no"), "attention is 'no'"),  # pyright: ignore[reportArgumentType]
    "no model": (lambda: wc.restore_skips("vit"), "model is a str"),  # pyright: ignore[reportArgumentType]
    "no model to ungray": (lambda: wc.ungray("vit"), "model is a str"),  # pyright: ignore[reportArgumentType]
    "sparse": (lambda: wc.condition_number(torch.eye(3).to_sparse()), "to_dense"),
    "map to NaN": (lambda: wc.spectral_map(torch.eye(3), lambda s: s * NAN), "singular value 1 to nan"),
    "map to NaN in float64": (lambda: wc.spectral_map(torch.eye(3).double(), lambda s: s / 0), "to inf"),
    "complex map": (lambda: wc.spectral_map(torch.eye(3), lambda s: s + 0j), "complex"),
    "no parameters": (lambda: wc.SOAP([]), "params is empty"),
    "a model": (lambda: wc.SOAP(nn.Linear(3, 2)), r"params is a Linear; pass its parameters, model.parameters\(\)"),  # pyright: ignore[reportArgumentType]
    "lr in words": (lambda: soap(lr="high"), "lr is 'high'; choose 0 or more"),
    "lr infinite": (lambda: soap(lr=float("inf")), "lr is inf"),
    "one beta": (lambda: soap(betas=(0.9,)), r"betas is \(0.9,\); choose both"),
    "beta alone": (lambda: soap(betas=0.9), "betas is 0.9; choose both"),
    "half a step": (lambda: soap(precondition_frequency=1.5), "precondition_frequency is 1.5"),
    "a step that is none": (lambda: soap(precondition_frequency=True), "precondition_frequency is True"),
    "lr that is none": (lambda: soap(lr=True), "lr is True; choose 0 or more"),
    "no state": (lambda: soap().load_state_dict({}), r"no state_dict\(\) of SOAP"),
    "a type": (lambda: recipes.get("procedural-vit", **{"optim.lr": "high"}), r"lr 'high' \(expected float\)"),
}


@pytest.mark.parametrize(("call", "said"), PYTHON.values(), ids=PYTHON)
def test_mistakes_in_python_name_the_value(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_what_f_makes_of_noise_under_the_floor_does_not_count():
    """1/σ is infinite at 0, where it is not used."""
    X = torch.diag(torch.tensor([2.0, 0.0]))
    assert torch.equal(wc.spectral_map(X, lambda s: 1 / s), torch.diag(torch.tensor([0.5, 0.0])))


def test_a_state_of_another_optimizer_is_refused_and_changes_nothing():
    parameter = nn.Parameter(torch.ones(4, 3))
    other = torch.optim.Adam([parameter])
    parameter.grad = torch.ones(4, 3)
    other.step()
    optimizer = wc.SOAP([parameter])
    optimizer.step()
    before = {key: value.clone() for key, value in optimizer.state[parameter].items()}
    wider = nn.Parameter(torch.ones(5, 3))
    wider.grad = torch.ones(5, 3)
    (grown := wc.SOAP([wider])).step()
    for state, said in ((other.state_dict(), "no precondition_frequency"), (grown.state_dict(), "does not fit: it is")):
        with pytest.raises(ValueError, match=said):
            optimizer.load_state_dict(state)
    wrong = optimizer.state_dict()
    wrong["param_groups"][0]["precondition_frequency"] = 0
    with pytest.raises(ValueError, match="precondition_frequency is 0"):
        optimizer.load_state_dict(wrong)
    assert all(torch.equal(optimizer.state[parameter][key], value) for key, value in before.items())
