"""Procedural pictures: deterministic, balanced, labelled correctly, with photograph-like spectra."""

import hashlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wellcond.data.procedural import CLASSES, images, procedural

GOLDEN = "ea050e6364ec01d2a7d411745a34476dea071caa98fcafdcb1233284cd8f8e19"


def test_same_bits_as_ever():
    digest = hashlib.sha256(images(20, size=64).tobytes()).hexdigest()
    assert digest == GOLDEN


@settings(max_examples=25, deadline=None)
@given(index=st.integers(0, 10**9), seed=st.integers(0, 2**32), size=st.sampled_from([16, 33, 64]))
def test_mask_and_box_agree(index, seed, size):
    sample = procedural(index, size=size, seed=seed)
    assert sample.image.shape == (size, size, 3)
    assert sample.image.dtype == np.uint8
    assert sample.mask.shape == (size, size)
    assert sample.mask.dtype == bool
    x0, y0, x1, y1 = sample.box
    assert 0 <= x0 < x1 <= size
    assert 0 <= y0 < y1 <= size
    inside = sample.mask[y0:y1, x0:x1]
    assert inside.sum() == sample.mask.sum()
    assert inside[0].any() and inside[-1].any() and inside[:, 0].any() and inside[:, -1].any()
    again = procedural(index, size=size, seed=seed)
    assert np.array_equal(again.image, sample.image)


def test_classes_are_balanced():
    counts = Counter(procedural(index, size=16).label for index in range(40))
    assert counts == dict.fromkeys(range(10), 4)
    assert len(set(CLASSES)) == 10


def test_index_seed_and_class_all_matter():
    pictures = [procedural(0), procedural(10), procedural(0, seed=1), procedural(1)]
    digests = {hashlib.sha256(p.image.tobytes()).hexdigest() for p in pictures}
    assert len(digests) == 4


def test_shape_differs_from_its_background():
    for index in range(20):
        sample = procedural(index, size=96)
        difference = sample.image[sample.mask].mean(0) - sample.image[~sample.mask].mean(0)
        assert np.abs(difference).max() > 10


def test_token_matrices_are_of_full_rank_and_badly_conditioned():
    for index in range(5):
        pixels = procedural(index).image / 255 - 0.5
        tokens = pixels.reshape(14, 16, 14, 16, 3).transpose(0, 2, 1, 3, 4).reshape(196, 768)
        sigma = np.linalg.svd(tokens, compute_uv=False)
        assert 50 < sigma[0] / sigma[-1] < 1e5


def test_background_amplitude_falls_like_that_of_photographs():
    size, slopes = 128, []
    for index in range(10):
        grey = procedural(index, size=size).image.mean(-1)
        amplitude = np.abs(np.fft.fft2(grey * np.hanning(size)[:, None] * np.hanning(size)))
        frequency = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size))
        band = (frequency > 0.03) & (frequency < 0.3)
        slopes.append(np.polyfit(np.log(frequency[band]), np.log(amplitude[band]), 1)[0])
    assert -2.0 < np.mean(slopes) < -0.8


@pytest.mark.parametrize(("arguments", "words"), [({"size": 8}, "8"), ({"index": -1}, "-1"), ({"seed": -3}, "-3")])
def test_bad_arguments_name_the_value(arguments, words):
    with pytest.raises(ValueError, match=words):
        procedural(**({"index": 0} | arguments))
