"""The ε adviser against numpy and scipy in float64."""

import numpy as np
import oracles
import pytest
import torch

from wellcond.data.procedural import procedural
from wellcond.diagnosis.advice import SWEEP, TARGET_SHARE, advise


def pictures(count=3, size=32):
    pixels = np.stack([procedural(i, size=size).image for i in range(count)]) / 255.0
    return torch.from_numpy((pixels.transpose(0, 3, 1, 2) - 0.5) / 0.25).float()


def patches(image, p):
    """(C, H, W) → (n, p·p·C), a loop."""
    C, H, W = image.shape
    return np.array([image[:, i : i + p, j : j + p].transpose(1, 2, 0).ravel() for i in range(0, H, p)
                     for j in range(0, W, p)]).reshape(-1, p * p * C)  # fmt: skip


def log_kappa(images, method, epsilon, p=4):
    """Of each grayed image; float64, but rounded to float32 as a model would get it."""
    grayed = images.numpy() if epsilon == 1 else oracles.gray_images(images.numpy(), p, method, epsilon)
    tokens = np.stack([patches(image, p) for image in grayed.astype(np.float32)])
    return np.log(oracles.condition_number(tokens))


def test_sweep_and_advice_equal_numpy():
    images = pictures()
    advice = advise(images, (4, 4))
    before = log_kappa(images, "svd", 1).mean()
    assert (advice.n, advice.d, advice.patch_size) == (64, 48, (4, 4))
    assert advice.log_kappa == pytest.approx(before, abs=1e-3)
    assert advice.target == pytest.approx(TARGET_SHARE * before, abs=1e-3)
    steps = {(step.method, step.epsilon): step.log_kappa for step in advice.sweep}
    assert set(steps) >= {(method, epsilon) for method, epsilons in SWEEP.items() for epsilon in epsilons}
    for (method, epsilon), value in steps.items():
        assert value == pytest.approx(log_kappa(images, method, epsilon).mean(), abs=2e-3), (method, epsilon)
        if method == "svd":
            assert value == pytest.approx(epsilon * before, abs=2e-3)
    assert advice.epsilon["svd"] == pytest.approx(TARGET_SHARE, abs=1.5e-3)
    for method, epsilon in advice.epsilon.items():
        assert epsilon is not None and (method, epsilon) in steps
        assert log_kappa(images, method, epsilon).mean() <= advice.target + 1e-3
        assert log_kappa(images, method, min(1.0, epsilon + 0.002)).mean() > advice.target - 1e-3


@pytest.mark.parametrize("share", [0.6, 0.97, 2.0])
def test_targets_inside_at_the_end_and_beyond(share):
    images = pictures(2)
    before = log_kappa(images, "svd", 1).mean()
    advice = advise(images, (4, 4), target=share * before)
    assert advice.target == share * before
    assert advice.epsilon["svd"] == pytest.approx(min(1.0, share), abs=1.5e-3)
    reaches = log_kappa(images, "dct", 0.85).mean() <= advice.target
    assert (advice.epsilon["dct"] is not None) == reaches
    if share > 1:
        assert advice.epsilon == {"svd": 1.0, "dct": 1.0}


def test_a_target_out_of_reach():
    assert advise(pictures(1), (4, 4), target=0.5).epsilon == {"svd": None, "dct": None}


def test_rank_deficient_images_do_not_move_the_mean():
    images = pictures(3)
    images[1, 0, ::4, ::4] = 0  # one pixel of every patch: rank 47 of 48, until cosines fill it
    advice = advise(images, (4, 4))
    before = log_kappa(images[[0, 2]], "svd", 1).mean()
    assert advice.log_kappa == pytest.approx(before, abs=1e-3)
    first = {step.method: step for step in advice.sweep if step.epsilon == 1}
    assert first["svd"].num_infinite == first["dct"].num_infinite == 1
    last = [step for step in advice.sweep if step.epsilon < 1]
    assert {(step.method, step.num_infinite) for step in last} == {("svd", 1), ("dct", 0)}
    for step in advice.sweep:
        want = log_kappa(images[[0, 2]], step.method, step.epsilon).mean()
        assert step.log_kappa == pytest.approx(want, abs=2e-3)


def test_nothing_to_advise():
    with pytest.raises(ValueError, match="rank-deficient"):
        advise(torch.ones(2, 3, 32, 32), (4, 4))
    flat = advise(torch.ones(2, 3, 32, 32), (4, 4), target=3.0)
    assert flat.log_kappa is None and flat.epsilon == {"svd": None, "dct": None}
    with pytest.raises(ValueError, match="NaN"):
        advise(torch.full((1, 3, 32, 32), torch.nan), (4, 4))
    with pytest.raises(ValueError, match="not divisible"):
        advise(pictures(1), (5, 5))
    with pytest.raises(ValueError, match="target=0"):
        advise(pictures(1), (4, 4), target=0)
