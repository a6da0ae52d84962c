"""Augmentation on CUDA: the CPU's bits in integers, no wait for the host, captured in a graph."""

import pytest
import torch

from wellcond.config import AugmentConfig
from wellcond.data import randomness
from wellcond.data.augment import build, jitter, layers, randaugment, resampling
from wellcond.data.cache import open_cache
from wellcond.data.feeds import Resident, Streamed
from wellcond.data.generated import GeneratedSource
from wellcond.data.procedural import images as drawn
from wellcond.data.sampling import Sampling, permutation

pytestmark = pytest.mark.gpu
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FULL = AugmentConfig(
    crop="resized", randaugment="rand-m9-mstd0.5-inc1", mixup=0.8, cutmix=1.0, erase=0.25, smoothing=0.1
)
CONFIGS = {
    "small": AugmentConfig(crop="pad", randaugment="rand-m9-mstd0.5-inc1"),
    "jitter": AugmentConfig(crop="resized", jitter=0.4),
    "full": FULL,
}
COUNT = 64


def batch(epoch: int = 1, side: int = 48) -> tuple[torch.Tensor, ...]:
    raw = torch.from_numpy(drawn(8, size=side)).permute(0, 3, 1, 2).repeat(COUNT // 8, 1, 1, 1)
    keys = randomness.keys(0, epoch, torch.arange(COUNT))
    return raw, torch.arange(COUNT) % 10, keys, torch.tensor(randomness.step_key(0, epoch))


def on_device(values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(value.cuda() for value in values)


def test_random_bits_are_the_cpus():
    keys = randomness.keys(3, 5, torch.arange(10_000))
    assert torch.equal(randomness.keys(3, 5, torch.arange(10_000, device="cuda")).cpu(), keys)
    for stream in (0, 7, 1000):
        assert torch.equal(randomness.bits(keys.cuda(), stream).cpu(), randomness.bits(keys, stream))
        assert torch.equal(randomness.uniform(keys.cuda(), stream).cpu(), randomness.uniform(keys, stream))
        assert torch.equal(randomness.integers(keys.cuda(), stream, 15).cpu(), randomness.integers(keys, stream, 15))
        assert torch.allclose(randomness.normal(keys.cuda(), stream).cpu(), randomness.normal(keys, stream), atol=1e-6)
    hashes = randomness.mix(torch.arange(5000, device="cuda") ^ randomness.scalar_key(0, 0, 1 << 40))
    assert torch.equal(torch.argsort(hashes).cpu(), permutation(5000, 0, 0))


@pytest.mark.parametrize("side", [32, 37])
def test_every_operation_has_the_cpus_bits(side):
    raw = torch.from_numpy(drawn(16, size=side)).permute(0, 3, 1, 2).contiguous()
    raw[5] = 77
    operation, fill = torch.arange(-1, 15), torch.tensor([124, 116, 104], dtype=torch.uint8)
    for magnitude in (0.0, 3.3, 9.0, 10.0):
        for negative in (False, True):
            level = torch.full((16,), magnitude, dtype=torch.float64)
            argument = randaugment.arguments(operation, level, torch.full((16,), negative), increasing=True)
            want = randaugment.apply(raw, operation, argument, fill)
            got = randaugment.apply(raw.cuda(), operation.cuda(), argument.cuda(), fill.cuda()).cpu()
            wrong = [randaugment.OPERATIONS[i - 1] for i in range(16) if not torch.equal(got[i], want[i])]
            assert not wrong, (magnitude, negative, wrong)


def test_statistics_have_the_cpus_bits():
    raw = batch()[0]
    wants = torch.arange(COUNT) % 2 == 0, torch.arange(COUNT) % 3 == 0
    for got, want in zip(layers.statistics(raw.cuda(), *on_device(wants)), layers.statistics(raw, *wants), strict=True):
        assert torch.equal(got.cpu(), want)


def test_resizing_and_jitter_have_the_cpus_bits():
    raw, _, keys, _ = batch()
    boxes = torch.tensor([[1, 2, 40, 30]]).repeat(COUNT, 1)
    want = resampling.resize_boxes(raw, boxes, (32, 32))
    assert torch.equal(resampling.resize_boxes(raw.cuda(), boxes.cuda(), (32, 32)).cpu(), want)
    drawn = jitter.draw(keys, 0, 0.4)
    assert torch.equal(jitter.apply(raw.cuda(), *on_device(drawn)).cpu(), jitter.apply(raw, *drawn))


@pytest.mark.parametrize("name", CONFIGS)
def test_whole_augmentation_equals_the_cpus(name):
    augment = build(CONFIGS[name], 32 if name != "small" else 48, 10, MEAN, STD)
    want, want_targets = augment(*batch())
    got, targets = augment(*on_device(batch()))
    assert torch.allclose(got.cpu(), want, atol=1e-5, rtol=1e-5)  # 1e-5: the logarithm and cosine of pixel noise
    assert torch.allclose(targets.cpu().double(), want_targets.double(), atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_waits_for_the_host(name):
    augment = build(CONFIGS[name], 32, 10, MEAN, STD)
    given = on_device(batch())
    augment(*given)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        augment(*given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", CONFIGS)
def test_captured_in_a_graph_and_replayed_with_other_keys(name):
    augment = build(CONFIGS[name], 32, 10, MEAN, STD)
    given = on_device(batch())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        augment(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got, targets = augment(*given)
    for epoch in (2, 3):
        for static, value in zip(given, on_device(batch(epoch)), strict=True):
            static.copy_(value)
        graph.replay()
        want, want_targets = augment(*on_device(batch(epoch)))
        assert torch.equal(got, want) and torch.equal(targets, want_targets)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "full"])
def test_compiled_equals_eager(name):
    augment = build(CONFIGS[name], 32, 10, MEAN, STD)
    got, targets = torch.compile(augment, fullgraph=True)(*on_device(batch()))
    want, want_targets = augment(*on_device(batch()))
    assert torch.allclose(got, want, atol=1e-5, rtol=1e-5)
    assert torch.allclose(targets.double(), want_targets.double(), atol=1e-6)


def test_feeds_carry_the_same_batches(tmp_path):
    cache = open_cache(GeneratedSource(50, size=16), 16, tmp_path)
    sampling = Sampling(length=50, batch_size=8, seed=0)
    chosen = [sampling.indices(t) for t in range(20)]
    device = torch.device("cuda")
    both = zip(
        Resident(cache, device).batches(chosen), Streamed(cache, device, workers=3).batches(chosen), chosen, strict=True
    )
    for (raw, labels), (streamed, streamed_labels), indices in both:
        assert raw.is_cuda and streamed.is_cuda
        assert torch.equal(raw, streamed) and torch.equal(labels, streamed_labels)
        assert torch.equal(raw.cpu(), torch.from_numpy(cache.images)[indices])


def test_a_streamed_batch_stays_as_it_was_while_the_device_is_busy(tmp_path):
    """Its slot of pinned memory is filled anew while the device still computes with batches that came through it."""
    cache = open_cache(GeneratedSource(64, size=64), 64, tmp_path)
    generator = torch.Generator().manual_seed(0)
    chosen = [torch.randint(64, (256,), generator=generator) for _ in range(60)]
    work = torch.randn(2048, 2048, device="cuda")
    found = []
    for raw, _ in Streamed(cache, torch.device("cuda"), workers=2).batches(chosen):
        for _ in range(10):
            work = (work @ work).sign()
        found.append(raw.flatten(1).double().sum(1))  # long after the next ones were carried over
    sums = torch.from_numpy(cache.images).flatten(1).double().sum(1)
    for got, rows in zip(found, chosen, strict=True):
        assert torch.equal(got.cpu(), sums[rows])
