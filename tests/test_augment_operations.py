"""Each operation on given parameters against Pillow, timm or torchvision: the same bits."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as tv
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from timm.data import auto_augment
from timm.data.mixup import cutmix_bbox_and_lam, mixup_target

from wellcond.data.augment import crops, enhancing, erasing, flips, jitter, mixing, normalising, randaugment, resampling
from wellcond.data.augment.layers import statistics
from wellcond.data.augment.rounding import product
from wellcond.data.procedural import images as drawn

FILL = (124, 116, 104)
BILINEAR = Image.Resampling.BILINEAR


def pictures(side: int = 40) -> np.ndarray:
    """Generated ones, noise, a flat grey, a two-valued one, a narrow range, black and white."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (2, side, side, 3), np.uint8)
    flat = np.full((1, side, side, 3), 77, np.uint8)
    two = np.where(rng.random((1, side, side, 3)) < 0.5, 12, 200).astype(np.uint8)
    narrow = rng.integers(100, 107, (1, side, side, 3), np.uint8)
    ends = np.stack([np.zeros((side, side, 3), np.uint8), np.full((side, side, 3), 255, np.uint8)])
    return np.concatenate([drawn(6, size=side), noise, flat, two, narrow, ends])


def to_tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).permute(0, 3, 1, 2).contiguous()


def to_array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.permute(0, 2, 3, 1).numpy()


def timm_operation(name: str, picture: np.ndarray, *argument: float) -> np.ndarray:
    operation = auto_augment.NAME_TO_OP[name + "Rel" if name.startswith("Translate") else name]
    return np.asarray(operation(Image.fromarray(picture), *argument, fillcolor=FILL, resample=BILINEAR))


# 0.0125 of 40 pixels is half of one: samples fall on the very edge
FACTORS = [(0.1,), (0.19,), (0.7,), (1.0,), (1.81,), (1.9,)]
ARGUMENTS = {
    "AutoContrast": [()],
    "Equalize": [()],
    "Invert": [()],
    "Rotate": [(0.0,), (27.0,), (-30.0,), (13.37,), (-0.01,)],
    "Posterize": [(1,), (2,), (3,), (4,), (8,)],
    "Solarize": [(0,), (26,), (128,), (255,), (256,)],
    "SolarizeAdd": [(0,), (99,), (110,), (128,)],
    **dict.fromkeys(("Color", "Contrast", "Brightness", "Sharpness"), FACTORS),
    **{name: [(0.0,), (0.27,), (-0.3,), (0.123,)] for name in ("ShearX", "ShearY")},
    **{
        name: [(0.0,), (0.405,), (-0.45,), (0.25,), (0.0125,), (-0.0125,), (-0.0123,)]
        for name in ("TranslateX", "TranslateY")
    },
}


@pytest.mark.parametrize("name", randaugment.OPERATIONS)
def test_operation_has_pillows_bits(name):
    array = pictures()
    number = torch.full((len(array),), randaugment.OPERATIONS.index(name))
    for argument in ARGUMENTS[name]:
        given_argument = torch.full((len(array),), float(argument[0]) if argument else 0.0, dtype=torch.float64)
        got = randaugment.apply(to_tensor(array), number, given_argument, torch.tensor(FILL, dtype=torch.uint8))
        want = np.stack([timm_operation(name, picture, *argument) for picture in array])
        assert np.array_equal(to_array(got), want), argument


def test_turned_the_other_way_two_flat_colours_keep_their_bits():
    """Pillow turns by −30 % 360 degrees, whose cosine has another last decimal; blends of equal pixels show it."""
    spots = np.random.default_rng(0).random((64, 64, 1)) < 0.5
    array = np.where(spots, (3, 200, 77), (250, 0, 9)).astype(np.uint8)[None]
    number = torch.tensor([randaugment.OPERATIONS.index("Rotate")])
    for degrees in (-30.0, -27.0, -13.0):
        given = torch.tensor([degrees], dtype=torch.float64)
        got = randaugment.apply(to_tensor(array), number, given, torch.tensor(FILL, dtype=torch.uint8))
        assert np.array_equal(to_array(got)[0], timm_operation("Rotate", array[0], degrees)), degrees


def test_posterise_to_no_bits_is_black():
    number = torch.tensor([randaugment.OPERATIONS.index("Posterize")])
    got = randaugment.apply(
        to_tensor(pictures()[:1]), number, torch.zeros(1).double(), torch.zeros(3, dtype=torch.uint8)
    )
    assert not got.any()


def test_every_picture_of_a_batch_may_have_another_operation():
    array = np.repeat(drawn(1, size=40), 16, 0)
    number = torch.arange(-1, 15)
    argument = torch.tensor([ARGUMENTS[name][-1][0] if ARGUMENTS[name][-1] else 0.0 for name in randaugment.OPERATIONS])
    argument = torch.cat([torch.tensor([5.0]), argument]).double()
    got = to_array(randaugment.apply(to_tensor(array), number, argument, torch.tensor(FILL, dtype=torch.uint8)))
    assert np.array_equal(got[0], array[0])  # −1 is none
    for i, name in enumerate(randaugment.OPERATIONS):
        assert np.array_equal(got[i + 1], timm_operation(name, array[0], *ARGUMENTS[name][-1])), name


def test_a_picture_that_is_not_square_is_moved_as_pillow_does():
    array = drawn(2, size=48)[:, :30]
    for name, argument in (("Rotate", 21.0), ("TranslateX", 0.2), ("TranslateY", -0.3), ("ShearX", 0.2)):
        number = torch.full((2,), randaugment.OPERATIONS.index(name))
        got = randaugment.apply(
            to_tensor(array), number, torch.full((2,), argument).double(), torch.tensor(FILL, dtype=torch.uint8)
        )
        want = [timm_operation(name, picture, torch.tensor(argument).item()) for picture in array]
        assert np.array_equal(to_array(got), np.stack(want)), name


def test_statistics_of_what_is_wanted():
    array = pictures()
    wants_counts, wants_grey = torch.arange(len(array)) % 2 == 0, torch.arange(len(array)) % 3 == 0
    counts, grey = statistics(to_tensor(array), wants_counts, wants_grey)
    for i, picture in enumerate(array):
        image = Image.fromarray(picture)
        want = np.array(image.histogram()).reshape(3, 256)
        assert np.array_equal(counts[i], want if wants_counts[i] else 0 * want)
        assert grey[i] == (np.asarray(image.convert("L")).sum(dtype=int) if wants_grey[i] else 0)


@given(st.integers(-(2**23), 2**23), st.floats(-1e6, 1e6).filter(lambda b: b == 0 or abs(b) > 1e-12))
def test_product_is_rounded_once(a, b):
    got = product(torch.tensor([a / 2]).double(), torch.tensor([b], dtype=torch.float64))
    assert got.item() == (a / 2) * b


boxes = st.tuples(*[st.integers(0, 20)] * 2, *[st.integers(1, 28)] * 2)


@given(st.lists(boxes, min_size=1, max_size=3), st.integers(1, 50), st.integers(1, 50), st.booleans())
def test_resized_box_has_pillows_bits(chosen, height, width, mirrored):
    array = drawn(3, size=48)[: len(chosen)]
    flip = torch.full((len(chosen),), mirrored)
    got = to_array(resampling.resize_boxes(to_tensor(array), torch.tensor(chosen), (height, width), flip))
    for picture, (top, left, h, w), result in zip(array, chosen, got, strict=True):
        box = Image.fromarray(picture).crop((left, top, left + w, top + h))
        rows = box.resize((width, h), BILINEAR)  # across first, then down: Pillow before 13 always goes this way
        want = np.asarray(rows.resize((width, height), BILINEAR))
        at_once = np.asarray(box.resize((width, height), BILINEAR))
        if mirrored:
            want, at_once = want[:, ::-1], at_once[:, ::-1]
        assert np.array_equal(result, want)
        assert np.abs(result.astype(int) - at_once).max() <= 1


def test_resized_box_is_near_torchvisions_tensor_result():
    x = to_tensor(drawn(2, size=48))
    for top, left, h, w in ((3, 5, 40, 30), (0, 0, 48, 48), (10, 2, 9, 21)):
        got = resampling.resize_boxes(x, torch.tensor([[top, left, h, w]] * 2), (24, 24))
        want = tv.resized_crop(x, top, left, h, w, [24, 24], antialias=True)
        assert (got.int() - want.int()).abs().max() <= 1


@pytest.mark.parametrize("mirrored", [False, True])
def test_pad_crop_equals_torchvision(mirrored):
    x = to_tensor(drawn(3, size=24))
    offsets = torch.tensor([[0, 0], [8, 3], [4, 4]])
    got = crops.pad_crop(x, offsets, 4, torch.full((3,), mirrored))
    for i, (top, left) in enumerate(offsets.tolist()):
        want = tv.crop(tv.pad(x[i], [4, 4]), top, left, 24, 24)
        assert torch.equal(got[i], want.flip(2) if mirrored else want)
    assert torch.equal(crops.pad_crop(x, torch.zeros(3, 2, dtype=torch.int64), 0), x)


def test_flip_equals_torchvision():
    x = to_tensor(drawn(2, size=24))
    got = flips.flip(x, torch.tensor([True, False]))
    assert torch.equal(got[0], tv.horizontal_flip(x[0])) and torch.equal(got[1], x[1])


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_jitter_has_pillows_bits_in_every_order(order):
    array = pictures()
    factors = torch.tensor([[0.63, 1.37, 1.21]]).repeat(len(array), 1)
    got = to_array(jitter.apply(to_tensor(array), torch.tensor([order]).repeat(len(array), 1), factors))
    kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for picture, result in zip(array, got, strict=True):
        image = Image.fromarray(picture)
        for which in order:
            image = kinds[which](image).enhance(factors[0, which].item())
        assert np.array_equal(result, np.asarray(image))


def test_smooth_leaves_pictures_of_two_pixels_alone():
    x = torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2)
    assert torch.equal(enhancing.smooth(x), x.int())


def test_normalise_equals_timms_prefetcher():
    x = to_tensor(drawn(2, size=24))
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    m, s = (torch.tensor([255 * v for v in values]).view(1, 3, 1, 1) for values in (mean, std))
    assert torch.equal(normalising.normalise(x, mean, std), x.float().sub_(m).div_(s))


def test_erase_fills_the_box_and_nothing_else():
    x = torch.zeros(3, 3, 20, 20) + 7
    keys = torch.arange(3)
    boxes = torch.tensor([[2, 3, 5, 6], [0, 0, 0, 9], [19, 19, 1, 1]])
    noisy = erasing.erase(x, boxes, keys, 0)
    for i, (top, left, h, w) in enumerate(boxes.tolist()):
        want = x[i].clone()
        want[:, top : top + h, left : left + w] = 0
        assert torch.equal(noisy[i] == 7, want == 7)


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.77, 1.0])
def test_cut_box_equals_timm(lam, monkeypatch):
    side = (21, 30)
    for centre in ((0, 0), (10, 15), (20, 29), (3, 28)):
        drawn = iter(centre)
        monkeypatch.setattr(np.random, "randint", lambda *_, drawn=drawn, **__: next(drawn))
        (yl, yh, xl, xh), want_lam = cutmix_bbox_and_lam((2, 3, *side), lam)
        inside, share = mixing.cut_box(
            torch.tensor(lam, dtype=torch.float64), (torch.tensor(centre[0]), torch.tensor(centre[1])), side
        )
        want = torch.zeros(side, dtype=torch.bool)
        want[yl:yh, xl:xh] = True
        assert torch.equal(inside, want)
        assert 1 - share.item() == pytest.approx(want_lam, abs=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_labels_equal_timm_on_its_pairs(smoothing):
    labels = torch.tensor([0, 3])  # of two, the neighbour is timm's partner too
    got = mixing.soft_labels(labels, 5, smoothing, torch.tensor(0.3))
    assert torch.allclose(got, mixup_target(labels, 5, 0.3, smoothing), atol=1e-7)
    alone = mixing.soft_labels(labels, 5, smoothing, None)
    assert torch.allclose(alone, mixup_target(labels, 5, 1.0, smoothing), atol=1e-7)


def test_mix_is_a_weighted_sum_with_the_neighbour():
    x = torch.randn(6, 3, 4, 4)
    weights = torch.rand(4, 4)
    got = mixing.mix(x, weights)
    for p in range(6):
        assert torch.allclose(got[p], weights * x[p] + (1 - weights) * x[p ^ 1], atol=1e-6)
    assert torch.equal(mixing.mix(x, torch.ones(4, 4)), x)
    with pytest.raises(ValueError, match="batch of 5"):
        mixing.mix(x[:5], weights)
