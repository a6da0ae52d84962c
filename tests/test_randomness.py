"""The keyed hash against big Python ints, and its numbers against the distributions they claim."""

import math
import shutil

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from wellcond.data import randomness

WORD = (1 << 64) - 1
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def splitmix(z: int) -> int:
    """One output of splitmix64 from its state, in unbounded integers (the published algorithm)."""
    z = (z + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def as_word(tensor: torch.Tensor) -> list[int]:
    return [value & WORD for value in tensor.flatten().tolist()]


def test_splitmix_has_its_published_first_outputs():
    assert splitmix(0) == 0xE220A8397B1DCDAF  # seed 0, as in the reference implementation's test vectors
    assert as_word(randomness.mix(torch.zeros(1, dtype=torch.int64))) == [0xE220A8397B1DCDAF]


@given(st.lists(int64, min_size=1, max_size=20))
def test_mix_equals_unbounded_integers(values):
    assert as_word(randomness.mix(torch.tensor(values))) == [splitmix(v & WORD) for v in values]


@given(int64, st.integers(0, 1000))
def test_bits_uniform_and_integers_equal_unbounded_integers(key, stream):
    tensor = torch.tensor([key])
    want = splitmix(((key & WORD) + (stream + 1) * 0x9E3779B97F4A7C15) & WORD)
    assert as_word(randomness.bits(tensor, stream)) == [want]
    assert as_word(randomness.bits(tensor, torch.tensor([stream]))) == [want]
    assert randomness.uniform(tensor, stream).item() == (want >> 40) / 2**24
    assert randomness.integers(tensor, stream, 15).item() == (want >> 32) * 15 >> 32


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(0, 2**40), st.integers(0, 9))
def test_keys_equal_unbounded_integers(seed, epoch, index, repeat):
    state = splitmix(splitmix(seed) ^ epoch)
    want = splitmix(splitmix(index ^ state) ^ repeat)
    assert as_word(randomness.keys(seed, epoch, torch.tensor([index]), repeat)) == [want]
    assert as_word(randomness.keys(seed, epoch, torch.tensor([index]), torch.tensor([repeat]))) == [want]


def test_keys_do_not_depend_on_the_batch():
    whole = randomness.keys(5, 2, torch.arange(100), 1)
    assert torch.equal(whole[40:50], randomness.keys(5, 2, torch.arange(40, 50), 1))


def test_all_keys_of_a_small_run_differ():
    found = [randomness.keys(s, e, torch.arange(2000), r) for s in range(3) for e in range(3) for r in range(3)]
    steps = torch.tensor([randomness.step_key(s, t) for s in range(3) for t in range(1000)])
    together = torch.cat([*found, steps])
    assert together.unique().numel() == together.numel()


@pytest.mark.parametrize("stream", [0, 1, 77])
def test_uniform_is_flat(stream):
    values = randomness.uniform(randomness.keys(0, 0, torch.arange(200_000)), stream).numpy()
    assert values.min() >= 0 and values.max() < 1
    counts = np.histogram(values, 256, (0, 1))[0]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


def test_integers_are_flat():
    counts = torch.bincount(randomness.integers(randomness.keys(1, 0, torch.arange(150_000)), 3, 15), minlength=15)
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_streams_epochs_repeats_and_neighbours_are_uncorrelated():
    indices = torch.arange(50_000)
    key = randomness.keys(0, 0, indices)
    series = [randomness.uniform(key, s) for s in range(6)]
    series += [randomness.uniform(randomness.keys(0, e, indices), 0) for e in (1, 2)]
    series += [randomness.uniform(randomness.keys(0, 0, indices, r), 0) for r in (1, 2)]
    series += [randomness.uniform(randomness.keys(1, 0, indices), 0), series[0].roll(1)]
    correlation = np.corrcoef(torch.stack(series).double().numpy())
    assert np.abs(correlation - np.eye(len(series))).max() < 5 / math.sqrt(len(indices))


@pytest.mark.parametrize("field", [False, True])
def test_normal_is_normal(field):
    if field:
        values = randomness.normal_field(randomness.keys(0, 0, torch.arange(4)), 2, (3, 50, 100))
        assert values.shape == (4, 3, 50, 100)
        one = randomness.normal_field(randomness.keys(0, 0, torch.tensor([2])), 2, (3, 50, 100))
        assert torch.equal(one[0], values[2])
    else:
        values = randomness.normal(randomness.keys(0, 0, torch.arange(60_000)), 2)
    assert values.dtype == torch.float32 and values.isfinite().all()
    assert scipy.stats.kstest(values.flatten().double().numpy(), "norm").pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_inductor_keeps_streams_of_a_range_in_64_bits():
    """It works out sums and products of an `arange` in unbounded integers, which overflow where int64 wraps."""

    def draw(keys):
        return randomness.uniform(keys[:, None], 5 + 2 * torch.arange(10)), randomness.normal_field(keys, 3, (2, 5))

    keys = randomness.keys(0, 0, torch.arange(16))
    uniform, normal = torch.compile(draw, fullgraph=True)(keys)
    assert torch.equal(uniform, draw(keys)[0])
    assert torch.allclose(normal, draw(keys)[1], atol=1e-5)
