"""What is drawn, against the samplers of timm and torchvision: the same distributions."""

import random
import re
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torchvision.transforms as tv
from PIL import Image
from timm.data import auto_augment
from timm.data.mixup import Mixup
from timm.data.random_erasing import RandomErasing

from wellcond.data import randomness
from wellcond.data.augment import crops, erasing, flips, jitter, mixing, randaugment

RATIO = (3 / 4, 4 / 3)


def keys(count: int) -> torch.Tensor:
    return randomness.keys(0, 0, torch.arange(count))


def same(ours, theirs) -> bool:
    """Two-sample Kolmogorov–Smirnov at one in a thousand."""
    result: Any = scipy.stats.ks_2samp(np.asarray(ours, float), np.asarray(theirs, float))
    return result.pvalue > 1e-3


def timm_arguments(policy: str, count: int) -> tuple[dict[str, int], dict[str, list[float]]]:
    """How often timm's sampler applies each operation, and with which first argument; none of them is carried out."""
    transform = auto_augment.rand_augment_transform(policy, {"img_mean": (1, 2, 3)})
    applied, found = defaultdict(int), defaultdict(list)

    def record(name):
        def operation(image, *argument, **_):
            applied[name] += 1
            found[name] += argument[:1]
            return image

        return operation

    for operation in transform.ops:
        operation.aug_fn = record(re.sub(r"Increasing|Rel", "", operation.name))
    random.seed(0)
    np.random.seed(0)
    image = Image.new("RGB", (2, 2))
    for _ in range(count):
        transform(image)
    return applied, found


@pytest.mark.parametrize(
    "policy", ["rand-m9-mstd0.5-inc1", "rand-m5-mstd2-n3-p0.8", "rand-m7-mstd101-inc1", "rand-m12-mmax15"]
)
def test_randaugment_draws_what_timm_draws(policy):
    count = 3000
    applied, found = timm_arguments(policy, count)
    layers = randaugment.draw(keys(count), 0, randaugment.parse(policy))
    operations, arguments = (torch.cat(column) for column in zip(*layers, strict=True))
    ours = torch.bincount(operations[operations >= 0], minlength=15).numpy()
    theirs = np.array([applied[name] for name in randaugment.OPERATIONS])
    result: Any = scipy.stats.chi2_contingency(np.stack([ours, theirs]))
    assert result.pvalue > 1e-3
    total = len(layers) * count
    assert abs(ours.sum() - theirs.sum()) < 5 * np.sqrt(total / 2)
    for number, name in enumerate(randaugment.OPERATIONS):
        values = arguments[operations == number]
        if found[name]:
            assert same(values, found[name]), name
        else:
            assert not values.any()


@pytest.mark.parametrize("text", ["rand-m9", "rand-m9-mstd0.5-inc1", "rand-n3-p0.25-mmax12", "rand"])
def test_policy_reads_what_timm_reads(text):
    policy, theirs = randaugment.parse(text), auto_augment.rand_augment_transform(text, {"img_mean": (1, 2, 3)})
    first = theirs.ops[0]
    assert (policy.magnitude, policy.probability, policy.num_layers) == (first.magnitude, first.prob, theirs.num_layers)
    assert policy.spread == first.magnitude_std and policy.highest == (first.magnitude_max or 10)
    assert policy.increasing == any("Increasing" in operation.name for operation in theirs.ops)


@pytest.mark.parametrize(
    "text", ["augmix-m3", "rand-x9", "rand-m", "rand-m9-tweights", "m9", "", "rand-p2", "rand-n1.5"]
)
def test_a_policy_that_is_none_is_quoted(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        randaugment.parse(text)


@pytest.mark.parametrize(("side", "scale"), [((64, 64), (0.08, 1.0)), ((40, 100), (0.9, 1.0)), ((100, 30), (0.5, 1.0))])
def test_boxes_are_drawn_as_torchvision_draws_them(side, scale):
    ours = crops.resized_boxes(keys(3000), 0, side, scale, RATIO)
    blank = torch.zeros(1, *side)
    theirs = np.array([tv.RandomResizedCrop.get_params(blank, list(scale), list(RATIO)) for _ in range(1500)])
    top, left, height, width = ours.unbind(1)
    assert (top >= 0).all() and (left >= 0).all() and (height > 0).all() and (width > 0).all()
    assert (top + height <= side[0]).all() and (left + width <= side[1]).all()
    for i in range(4):
        assert same(ours[:, i], theirs[:, i]), ["top", "left", "height", "width"][i]
    assert same(height * width, theirs[:, 2] * theirs[:, 3])


def test_a_box_reaches_every_place():
    boxes = crops.resized_boxes(keys(200), 0, (8, 8), (0.76, 0.77), (1.0, 1.0))  # 7 of 8 pixels
    assert boxes.unique(dim=0).tolist() == [[top, left, 7, 7] for top in (0, 1) for left in (0, 1)]


@pytest.mark.parametrize("side", [(20, 100), (100, 20), (50, 50)])
def test_fallback_is_torchvisions(side):
    never = torch.zeros(1, *side)
    i, j, h, w = (
        tv.RandomResizedCrop.get_params(never, [1.0, 1.0], list(RATIO)) if side[0] != side[1] else (0, 0, 50, 50)
    )
    assert crops.fallback(side, RATIO) == (h, w)
    ours = crops.resized_boxes(keys(3), 0, side, (1.0, 1.0), RATIO)
    if side[0] != side[1]:
        assert ours.tolist() == [[i, j, h, w]] * 3


def test_pad_offsets_and_flips_are_fair():
    offsets = crops.pad_offsets(keys(20_000), 0, 4)
    table = torch.bincount(offsets[:, 0] * 9 + offsets[:, 1], minlength=81)
    assert scipy.stats.chisquare(table.numpy()).pvalue > 1e-3
    assert abs(flips.draw_flip(keys(20_000), 0).float().mean() - 0.5) < 0.02


def test_jitter_draws_what_torchvision_draws():
    order, factors = jitter.draw(keys(6000), 0, 0.4)
    span = [0.6, 1.4]
    drawn = [tv.ColorJitter.get_params(span, span, span, None) for _ in range(600)]
    for i in range(3):
        assert same(factors[:, i], [row[1 + i] for row in drawn])
    assert (order.sort(1).values == torch.arange(3)).all()
    counts = torch.unique(order[:, 0] * 3 + order[:, 1], return_counts=True)[1]
    assert len(counts) == 6 and scipy.stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert jitter.draw(keys(500), 0, 1.5)[1].min() >= 0


def test_erasing_draws_what_timm_draws():
    side, count = (32, 32), 4000
    ours = erasing.draw(keys(count), 0, side, 0.25)
    erased = ours[:, 2] > 0
    assert abs(erased.float().mean() - 0.25) < 0.03
    eraser = RandomErasing(probability=1.0, mode="const", device="cpu")
    boxes = []
    random.seed(0)
    for _ in range(800):
        hole = eraser(torch.ones(1, *side))[0] == 0
        rows, columns = hole.any(1).nonzero()[:, 0], hole.any(0).nonzero()[:, 0]
        boxes.append([rows[0], columns[0], len(rows), len(columns)])
    theirs = np.array(boxes)
    for i in range(4):
        assert same(ours[erased][:, i], theirs[:, i])
    always = erasing.draw(keys(count), 0, side, 1.0)
    assert (always[:, 2] > 0).all()
    assert not erasing.draw(keys(count), 0, side, 0.0)[:, 2].any()


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 2.0])
def test_beta_is_beta(alpha):
    steps = torch.tensor([randomness.step_key(0, t) for t in range(1000)])
    values = torch.stack([mixing.beta(key, 0, alpha) for key in steps])
    assert scipy.stats.kstest(values.double().numpy(), "beta", args=(alpha, alpha)).pvalue > 1e-3


@pytest.mark.parametrize("alpha", [1e-3, 1e-300])
def test_a_tiny_alpha_mixes_nothing(alpha):
    """λ is then 0 or 1 but for the rarest draws, and never NaN, which would be a step without a finite loss."""
    steps = torch.tensor([randomness.step_key(0, t) for t in range(200)])
    values = torch.stack([mixing.beta(key, 0, alpha) for key in steps])
    assert ((values < 0.01) | (values > 0.99)).float().mean() > 0.97
    assert 0.35 < values.mean() < 0.65


@pytest.mark.parametrize(("mixup", "cutmix", "probability"), [(0.8, 1.0, 1.0), (0.8, 0.0, 0.6), (0.0, 1.0, 0.6)])
def test_mixing_draws_what_timm_draws(mixup, cutmix, probability):
    side = (16, 16)
    steps = [torch.tensor(randomness.step_key(0, t)) for t in range(600)]
    drawn = [mixing.draw(key, 0, mixup, cutmix, probability, side) for key in steps]
    ours = torch.stack([lam for _, lam in drawn])
    np.random.seed(0)
    timm = Mixup(mixup, cutmix, prob=probability, num_classes=2)
    theirs = [timm._mix_batch(torch.zeros(2, 3, *side)) for _ in range(600)]
    assert same(ours, theirs)
    for weights, lam in drawn:
        assert weights.mean().item() == pytest.approx(lam.item(), abs=1e-5)  # λ is the share that is kept
        assert weights.unique().numel() == 1 or set(weights.unique().tolist()) <= {0.0, 1.0}
