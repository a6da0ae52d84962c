"""The order of samples: every one once, the same everywhere, pure in (seed, step)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wellcond.data import randomness
from wellcond.data.sampling import Sampling, evaluation_batches, permutation

WORD = (1 << 64) - 1


def splitmix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


@given(st.integers(1, 60), st.integers(0, 2**40), st.integers(0, 1000))
def test_permutation_equals_sorting_big_integers(length, seed, epoch):
    word = splitmix(splitmix(splitmix(seed) ^ epoch) ^ (1 << 40))

    def signed(i):
        z = splitmix(i ^ word)
        return z - (1 << 64) if z >> 63 else z

    assert permutation(length, seed, epoch).tolist() == sorted(range(length), key=signed)


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 5))
def test_an_epoch_sees_every_sample_at_most_once(length, batch_size, seed):
    if batch_size > length:
        with pytest.raises(ValueError, match=f"only {length} training images"):
            Sampling(length=length, batch_size=batch_size, seed=seed)
        return
    sampling = Sampling(length=length, batch_size=batch_size, seed=seed)
    steps = sampling.steps_per_epoch
    for epoch in range(3):
        seen = torch.cat([sampling.indices(epoch * steps + t) for t in range(steps)])
        assert len(seen) == steps * batch_size == length // batch_size * batch_size
        assert seen.unique().numel() == len(seen) and seen.min() >= 0 and seen.max() < length


def test_a_step_needs_no_history():
    walked = Sampling(length=37, batch_size=5, seed=3)
    for step in range(40):
        fresh = Sampling(length=37, batch_size=5, seed=3)
        assert torch.equal(walked.indices(step), fresh.indices(step))
        assert torch.equal(walked.keys(step), fresh.keys(step))
        assert torch.equal(walked.step_key(step), fresh.step_key(step))


def test_epochs_seeds_and_places_are_shuffled():
    orders = torch.stack([permutation(1000, s, e) for s in range(2) for e in range(3)])
    places = orders.double()
    correlation = torch.corrcoef(torch.cat([places, torch.arange(1000.0).double()[None]]))
    assert (correlation - torch.eye(7)).abs().max() < 5 / math.sqrt(1000)


@pytest.mark.parametrize(("batch_size", "repeats"), [(12, 3), (10, 3), (8, 2), (6, 5), (2, 2)])
def test_repeated_augmentation(batch_size, repeats):
    sampling = Sampling(length=40, batch_size=batch_size, seed=0, repeats=repeats)
    assert sampling.steps_per_epoch == 40 // batch_size
    views = sampling.steps_per_epoch * batch_size
    indices = torch.cat([sampling.indices(t) for t in range(sampling.steps_per_epoch)])
    keys = torch.cat([sampling.keys(t) for t in range(sampling.steps_per_epoch)])
    assert keys.unique().numel() == views
    counts = indices.bincount(minlength=40)
    want = sampling.order(0)[: math.ceil(views / repeats)]
    assert (counts[want[:-1]] == repeats).all() and counts.sum() == views
    if batch_size > 2 * repeats:
        for t in range(sampling.steps_per_epoch):
            batch = sampling.indices(t)
            assert (batch != batch.view(-1, 2).flip(1).flatten()).all()  # no picture is mixed with itself


def test_keys_follow_the_sample_not_the_batch():
    small, large = (Sampling(length=48, batch_size=b, seed=1) for b in (4, 12))

    def by_sample(sampling):
        pairs = [(sampling.indices(t), sampling.keys(t)) for t in range(sampling.steps_per_epoch)]
        return {int(i): int(k) for indices, keys in pairs for i, k in zip(indices, keys, strict=True)}

    assert by_sample(small) == by_sample(large)
    assert by_sample(small)[7] == randomness.keys(1, 0, torch.tensor([7])).item()


@pytest.mark.parametrize(("length", "batch_size", "num_parts"), [(10, 3, 1), (10, 3, 4), (2, 5, 3), (7, 7, 2)])
def test_evaluation_sees_every_sample_once(length, batch_size, num_parts):
    found = [b for i in range(num_parts) for b in evaluation_batches(length, batch_size, i, num_parts)]
    assert torch.cat(found).tolist() == list(range(length))
    assert all(1 <= len(batch) <= batch_size for batch in found)


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"repeats": 0}, {"repeats": 9}])
def test_nonsense_is_refused(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name.replace('_', ' ')} is {value}"):
        Sampling(**{"length": 10, "batch_size": 4, "seed": 0, **wrong})
