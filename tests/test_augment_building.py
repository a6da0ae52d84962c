"""The whole augmentation: pure in its keys, traceable without a break, and each switch does what it says."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from wellcond.config import AugmentConfig
from wellcond.data import randomness
from wellcond.data.augment import build, erasing, evaluation
from wellcond.data.procedural import images as drawn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FULL = AugmentConfig(
    crop="resized", randaugment="rand-m9-mstd0.5-inc1", mixup=0.8, cutmix=1.0, erase=0.25, smoothing=0.1
)
CONFIGS = {
    "nothing": AugmentConfig(flip=False),
    "small": AugmentConfig(crop="pad"),
    "jitter": AugmentConfig(crop="resized", jitter=0.4),
    "full": FULL,
    "unmixed": AugmentConfig(crop="resized", randaugment="rand-m9-mstd0.5-inc1", erase=0.25),
}


def batch(count: int = 8, side: int = 32) -> tuple[torch.Tensor, ...]:
    raw = torch.from_numpy(drawn(count, size=side)).permute(0, 3, 1, 2).contiguous()
    keys = randomness.keys(0, 1, torch.arange(count))
    return raw, torch.arange(count) % 10, keys, torch.tensor(randomness.step_key(0, 5))


def made(config: AugmentConfig, size: int = 32):
    return build(config, size, 10, MEAN, STD)


@pytest.mark.parametrize("name", CONFIGS)
def test_shapes_and_types(name):
    got, targets = made(CONFIGS[name])(*batch())
    assert got.shape == (8, 3, 32, 32) and got.dtype == torch.float32 and got.isfinite().all()
    if name == "full":
        assert targets.shape == (8, 10) and targets.dtype == torch.float32
        assert torch.allclose(targets.sum(1), torch.ones(8))
    else:
        assert torch.equal(targets, batch()[1])


def test_nothing_is_normalising_alone():
    raw, labels, keys, step_key = batch()
    got, _ = made(CONFIGS["nothing"])(raw, labels, keys, step_key)
    assert torch.equal(got, evaluation(raw, 32, MEAN, STD))
    m, s = (torch.tensor(v).view(1, 3, 1, 1) for v in (MEAN, STD))
    assert torch.allclose(got, (raw / 255 - m) / s, atol=1e-5)


@pytest.mark.parametrize("name", ["small", "jitter", "unmixed"])
def test_a_view_does_not_depend_on_its_batch(name):
    raw, labels, keys, step_key = batch()
    augment = made(CONFIGS[name])
    whole, _ = augment(raw, labels, keys, step_key)
    chosen = torch.tensor([5, 2, 7])
    some, _ = augment(raw[chosen], labels[chosen], keys[chosen], step_key)
    assert torch.equal(some, whole[chosen])


def test_even_parts_of_a_mixed_batch_are_the_batch():
    raw, labels, keys, step_key = batch()
    augment = made(FULL)
    whole, targets = augment(raw, labels, keys, step_key)
    halves = [augment(raw[h], labels[h], keys[h], step_key) for h in (slice(0, 4), slice(4, 8))]
    assert torch.equal(torch.cat([h[0] for h in halves]), whole)
    assert torch.equal(torch.cat([h[1] for h in halves]), targets)


@pytest.mark.parametrize("name", ["small", "jitter", "unmixed"])
def test_other_keys_give_other_views(name):
    raw, labels, keys, step_key = batch()
    augment = made(CONFIGS[name])
    one = augment(raw, labels, keys, step_key)[0]
    other = augment(raw, labels, randomness.keys(0, 2, torch.arange(8)), step_key)[0]
    assert ((one - other).abs().amax((1, 2, 3)) > 0).float().mean() > 0.8
    assert torch.equal(one, augment(raw, labels, keys, step_key)[0])


def test_turning_a_part_on_leaves_the_others_as_they_were():
    raw, labels, keys, step_key = batch()
    plain = made(AugmentConfig(crop="resized"))(raw, labels, keys, step_key)[0]
    erased = made(AugmentConfig(crop="resized", erase=1.0))(raw, labels, keys, step_key)[0]
    assert 0.4 < (plain == erased).float().mean() < 0.99


def test_targets_follow_the_pixels():
    """White pictures of class 0 beside black ones of class 1: the share of white is the share of class 0."""
    raw = torch.zeros(4, 3, 32, 32, dtype=torch.uint8)
    raw[::2] = 255
    labels = torch.tensor([0, 1, 0, 1])
    augment = build(AugmentConfig(flip=False, mixup=0.8, cutmix=1.0), 32, 2, (0, 0, 0), (1, 1, 1))
    for step in range(20):
        got, targets = augment(raw, labels, torch.arange(4), torch.tensor(randomness.step_key(0, step)))
        assert torch.allclose(got.mean((1, 2, 3)), targets[:, 0], atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", CONFIGS)
def test_waits_for_no_data_and_stays_on_its_device(name, device):
    """Tensors without content: asking one for a value, or mixing devices, is an error there."""
    real = batch()
    with FakeTensorMode():
        raw, labels, keys, step_key = (torch.empty(x.shape, dtype=x.dtype, device=device) for x in real)
        got, targets = made(CONFIGS[name])(raw, labels, keys, step_key)
        assert got.shape == (8, 3, 32, 32) and got.device.type == targets.device.type == device


@pytest.mark.slow
def test_compiled_whole_is_the_same():
    compiled = torch.compile(made(FULL), backend="aot_eager", fullgraph=True)
    want, got = made(FULL)(*batch()), compiled(*batch())
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_pictures_of_another_size_are_fitted():
    raw = batch(side=40)[0]
    assert evaluation(raw, 32, MEAN, STD).shape == (8, 3, 32, 32)
    assert torch.equal(evaluation(raw, 32, MEAN, STD), evaluation(raw[:, :, 4:36, 4:36], 32, MEAN, STD))
    assert evaluation(raw[:, :, :, :30], 48, MEAN, STD).shape == (8, 3, 48, 48)
    for crop in ("none", "pad", "resized"):
        assert made(AugmentConfig(crop=crop), 24)(*batch(side=40))[0].shape == (8, 3, 24, 24)
        assert made(AugmentConfig(crop=crop), 48)(*batch(side=40))[0].shape == (8, 3, 48, 48)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AugmentConfig(jitter=0.4, randaugment="rand-m9"), "jitter is 0.4 and randaugment"),
        (AugmentConfig(mixup=3.0), "mixup is 3.0"),
        (AugmentConfig(randaugment="randm9"), "'randm9'"),
    ],
)
def test_what_cannot_be_done_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        made(config)


def test_no_two_parts_draw_from_the_same_stream(monkeypatch):
    """A number that is drawn twice from one key would tie two decisions together."""
    seen: list[tuple[int, int]] = []
    real = randomness.bits

    def watched(keys, stream):
        for number in [stream] if isinstance(stream, int) else stream.flatten().tolist():
            seen.append((int(keys.flatten()[0]), int(number)))
        return real(keys, stream)

    monkeypatch.setattr(randomness, "bits", watched)
    monkeypatch.setattr(randomness, "normal_field", lambda keys, stream, shape: torch.zeros(len(keys), *shape))
    monkeypatch.setattr(erasing, "normal_field", lambda keys, stream, shape: watched(keys, stream).sum() * 0.0)
    for config in (replace(FULL, cutmix=0.0), CONFIGS["jitter"], CONFIGS["small"]):
        seen.clear()
        made(config)(*batch())
        assert len(seen) == len(set(seen)) and len(seen) > 2
