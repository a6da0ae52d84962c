"""Resident and streamed batches: the same bits, in the order asked for."""

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from wellcond.data.arrays import ArraySource
from wellcond.data.augment import evaluation
from wellcond.data.cache import open_cache
from wellcond.data.feeds import Resident, Streamed, check_labels, fits, open_feed
from wellcond.data.generated import GeneratedSource
from wellcond.data.sampling import Sampling, evaluation_batches, part

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return open_cache(GeneratedSource(50, size=16), 16, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_both_feeds_give_the_same_batches(cache, workers):
    sampling = Sampling(length=50, batch_size=8, seed=0)
    chosen = [sampling.indices(t) for t in range(15)]
    resident, streamed = Resident(cache, CPU), Streamed(cache, CPU, workers)
    assert len(resident) == len(streamed) == 50
    both = zip(resident.batches(iter(chosen)), streamed.batches(iter(chosen)), chosen, strict=True)
    for (raw, labels), (other_raw, other_labels), indices in both:
        assert torch.equal(raw, torch.from_numpy(np.asarray(cache.images[indices.numpy()])))
        assert torch.equal(raw, other_raw) and torch.equal(labels, other_labels)
        assert torch.equal(labels, torch.from_numpy(cache.labels)[indices]) and raw.dtype == torch.uint8


def test_parts_of_a_batch_are_read_alone(cache):
    indices = Sampling(length=50, batch_size=8, seed=0).indices(3)
    whole = next(Streamed(cache, CPU).batches([indices]))[0]
    halves = [next(Streamed(cache, CPU).batches([part(indices, i, 2)]))[0] for i in range(2)]
    assert torch.equal(torch.cat(halves), whole)


def test_evaluation_covers_the_set_in_order(cache):
    feed = open_feed(cache, "cpu", "no", workers=2)
    found = list(feed.batches(evaluation_batches(len(feed), 16)))
    assert [len(raw) for raw, _ in found] == [16, 16, 16, 2]
    assert torch.equal(torch.cat([labels for _, labels in found]), torch.from_numpy(cache.labels))
    assert evaluation(found[0][0], 16, (0.5,) * 3, (0.25,) * 3).shape == (16, 3, 16, 16)


def test_streaming_reads_ahead_but_not_without_end(cache):
    asked = []

    def endless():
        t = 0
        while True:
            asked.append(t)
            yield torch.arange(4)
            t += 1

    batches: Any = Streamed(cache, CPU, workers=2).batches(endless())
    next(batches)
    assert len(asked) <= 5
    batches.close()
    for _ in range(100):
        if not any(thread.name.startswith("wellcond-read") for thread in threading.enumerate()):
            return
        time.sleep(0.02)
    raise AssertionError("reading threads are left")


def test_an_error_in_a_thread_reaches_the_reader(cache):
    with pytest.raises((TypeError, IndexError)):
        list(Streamed(cache, CPU).batches([torch.zeros(2, 2)]))


def test_which_feed(cache, monkeypatch):
    assert isinstance(open_feed(cache, "cpu"), Resident)
    assert isinstance(open_feed(cache, "cpu", "no"), Streamed)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    assert fits(400, torch.device("cuda")) and not fits(401, torch.device("cuda"))


def test_labels_and_classes_are_checked(cache, tmp_path):
    check_labels(cache, 10)
    check_labels(cache, 12)
    with pytest.raises(ValueError, match="procedural has 10 classes, but the model has 4"):
        check_labels(cache, 4)
    unlabelled = ArraySource("bare", np.zeros((3, 8, 8), np.uint8), np.full(3, -1), ())
    with pytest.raises(ValueError, match=r"bare has no labels; .* in the folder of its class"):
        check_labels(open_cache(unlabelled, 8, tmp_path), 10)
    partly = ArraySource("partly", np.zeros((3, 8, 8), np.uint8), np.array([0, -1, 1]), ())
    with pytest.raises(ValueError, match="1 images without a label"):
        check_labels(open_cache(partly, 8, tmp_path), 10)
