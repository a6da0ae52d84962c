"""DINO against slow double loops in float64: loss, centre, teacher, schedules; its crops against torchvision."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from cases import images as pictures
from torchvision.transforms.v2 import functional as torchvision
from training_cases import without_labels

from wellcond.blocks import adapted_blocks
from wellcond.config import DINOConfig, TrainConfig
from wellcond.data import multicrop
from wellcond.data.augment import colours
from wellcond.data.multicrop import MultiCrop, crop_keys
from wellcond.data.randomness import keys
from wellcond.objectives import DINO, build_objective, vit
from wellcond.skips import cut_skips
from wellcond.training import build_model

SIDE, PATCH, WIDTH, K = 16, 4, 12, 7
SMALL: dict[str, Any] = {
    "img_size": SIDE,
    "patch_size": PATCH,
    "embed_dim": WIDTH,
    "depth": 2,
    "num_heads": 2,
    "num_classes": 0,
}
CONFIG = DINOConfig(out_dim=K, hidden=10, bottleneck=5, local_crops=3, local_size=8, temperature_epochs=2.0)


def model_of(**options):
    torch.manual_seed(3)
    return timm.create_model("vit_tiny_patch16_224", **{**SMALL, **options}).double()


def objective_of(accumulate: int = 1, **options) -> DINO:
    torch.manual_seed(4)
    objective = DINO(model_of(), replace(CONFIG, **options), accumulate=accumulate).double()
    with torch.no_grad():
        for parameter in objective.parameters():  # the teacher is another than the student
            parameter.add_(0.3 * torch.randn_like(parameter))
        objective.centre.normal_()
    return objective


def batch(B: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    images = pictures(B * 2, 3, SIDE, SIDE, dtype=torch.float64).unflatten(0, (B, 2))
    return images, pictures(B * 3, 3, 8, 8, dtype=torch.float64, seed=1).unflatten(0, (B, 3))


def softmax(x: np.ndarray) -> np.ndarray:
    e = [math.exp(v - max(x)) for v in x]
    return np.array(e) / sum(e)


def answers(backbone, head, crop: torch.Tensor) -> np.ndarray:
    """Of one crop, by numpy after the backbone's own forward; small crops through timm's dynamic image size."""
    dynamic = timm.create_model("vit_tiny_patch16_224", **SMALL, dynamic_img_size=True).double().eval()
    dynamic.load_state_dict(backbone.state_dict())
    with torch.no_grad():
        z = dynamic(crop[None])[0].numpy()
    linears = [module for module in head.mlp if isinstance(module, torch.nn.Linear)]
    for i, linear in enumerate(linears):
        z = linear.weight.detach().numpy() @ z + linear.bias.detach().numpy()
        if i < 2:
            z = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in z])
    z = z / np.linalg.norm(z)
    return np.array([row @ z / np.linalg.norm(row) for row in head.last.detach().numpy()])


def slow_step(objective: DINO, images, crops, temperature: float) -> tuple[float, np.ndarray]:
    """(loss, mean answer of the teacher), a pair of crops at a time."""
    centre = objective.centre.numpy().copy()
    losses, taught = [], []
    for large, small in zip(images, crops, strict=True):
        student = [answers(objective.model, objective.head, crop) for crop in (*large, *small)]
        teacher = [answers(objective.teacher.model, objective.teacher.head, crop) for crop in large]
        taught += teacher
        total, pairs = 0.0, 0
        for i, t in enumerate(teacher):
            q = softmax((t - centre) / temperature)
            for v, s in enumerate(student):
                if v != i:
                    p = softmax(s / CONFIG.student_temperature)
                    total -= sum(q[k] * math.log(p[k]) for k in range(K))
                    pairs += 1
        losses.append(total / pairs)
    return sum(losses) / len(losses), np.mean(taught, axis=0)


def set_numbers(objective: DINO, **values: float) -> None:
    for name, value in values.items():
        objective.get_buffer(name).fill_(value)


def test_loss_centre_and_teacher_are_those_of_the_slow_version():
    objective = objective_of()
    images, crops = batch()
    set_numbers(objective, temperature=0.05, student_share=0.03, freeze=0.0)
    expected, mean = slow_step(objective, images, crops, 0.05)
    centre = objective.centre.numpy().copy()
    before = {name: p.detach().clone() for name, p in objective.named_parameters()}
    loss, _ = objective(images, crops)
    assert loss.item() == pytest.approx(expected, rel=1e-6)  # timm interpolates positions in float32
    objective.settle_(torch.tensor(1.0), lambda t: t)
    np.testing.assert_allclose(objective.centre, 0.9 * centre + 0.1 * mean, rtol=0, atol=1e-10)
    for name, old in before.items():
        new = objective.get_parameter(name)
        if name.startswith("teacher."):
            expected_weight = 0.97 * old + 0.03 * before[name.removeprefix("teacher.")]
            np.testing.assert_allclose(new, expected_weight, rtol=0, atol=1e-10)
        else:
            assert torch.equal(new, old)
    assert not objective.seen.any()


def test_without_small_crops_to_full_precision():
    objective = objective_of(local_crops=0)
    images, _ = batch()
    crops = torch.zeros(3, 0, 3, 8, 8, dtype=torch.float64)
    set_numbers(objective, temperature=0.05)
    loss, _ = objective(images, crops)
    assert loss.item() == pytest.approx(slow_step(objective, images, crops, 0.05)[0], rel=1e-10)


def test_chunks_make_one_centre():
    """Two chunks use the same centre and move it once, by the mean of both."""
    whole, chunked = objective_of(), objective_of(accumulate=2)
    images, crops = batch(4)
    set_numbers(whole, temperature=0.05)
    set_numbers(chunked, temperature=0.05)
    loss, _ = whole(images, crops)
    losses = [chunked(images[i : i + 2], crops[i : i + 2])[0] for i in (0, 2)]
    assert (losses[0] + losses[1]).item() / 2 == pytest.approx(loss.item(), rel=1e-10)
    one, two = (objective.settle_(torch.tensor(1.0), lambda t: t) for objective in (whole, chunked))
    torch.testing.assert_close(whole.centre, chunked.centre, rtol=0, atol=1e-10)
    torch.testing.assert_close(one["teacher_spread"], two["teacher_spread"], rtol=0, atol=1e-10)


def test_a_skipped_step_settles_nothing():
    objective = objective_of()
    before = {name: t.clone() for name, t in objective.state_dict().items()}
    set_numbers(objective, student_share=0.03)
    objective.settle_(torch.tensor(0.0), lambda t: t)
    assert all(torch.equal(before[name], t) for name, t in objective.state_dict().items())


def test_evaluation_gives_a_loss_for_each_image_and_moves_nothing():
    objective = objective_of()
    images, crops = batch()
    loss = objective(images, crops)[0].item()
    objective.seen.zero_()
    losses = objective.eval()(images, crops)
    assert losses.shape == (3,) and losses.mean().item() == pytest.approx(loss, rel=1e-10)
    assert not objective.seen.any()


def test_only_the_student_learns_and_the_teacher_never_drops_paths():
    model = model_of(drop_path_rate=0.5)
    objective = DINO(model, CONFIG).double().train()
    assert objective.model.training and not any(module.training for module in objective.teacher.modules())
    objective(*batch())[0].backward()
    for name, parameter in objective.named_parameters():
        assert (parameter.grad is None) == name.startswith("teacher."), name


@pytest.mark.parametrize("size", [8, 12, 20, 24])
@pytest.mark.parametrize("options", [{}, {"no_embed_class": True, "reg_tokens": 2}])
def test_positions_of_other_sizes_are_timms(size, options):
    model = model_of(**options).eval()
    dynamic = timm.create_model("vit_tiny_patch16_224", **SMALL, **options, dynamic_img_size=True).double().eval()
    dynamic.load_state_dict(model.state_dict())
    images = pictures(2, 3, size, size, dtype=torch.float64)
    found = vit.features(model, images, vit.resampling(model, size))
    torch.testing.assert_close(found, dynamic(images), rtol=0, atol=1e-5)


def test_a_skipless_teacher_is_skipless():
    objective = DINO(cut_skips(model_of()), CONFIG)
    assert [block.attention_gain for block in adapted_blocks(objective.teacher)] == [0.0, 0.0]


def test_schedules():
    objective = objective_of(freeze_epochs=1.5)
    shape = {"steps_per_epoch": 10, "epochs": 5}
    found = [objective.numbers(step, **shape) for step in range(50)]
    assert [row["freeze"] for row in found] == [1.0] * 15 + [0.0] * 35
    expected = [0.04 + 0.03 * min(1, t / 20) for t in range(50)]
    assert [row["temperature"] for row in found] == pytest.approx(expected, rel=1e-12)
    momentum = [1 - row["student_share"] for row in found]
    assert momentum[0] == pytest.approx(0.996) and momentum[25] == pytest.approx(0.998)
    assert momentum[-1] == pytest.approx(1, abs=1e-5) and momentum == sorted(momentum)


def test_collapse_is_told_and_explained():
    objective = objective_of(out_dim=1000)
    most = math.log(1000)

    def told(loss: float, spread: float, epoch: int = 3, *, epochs: int = 20, **more: float) -> str | None:
        return objective.collapse({"loss": loss, "teacher_spread": spread, **more}, epoch, epochs=epochs)

    assert told(most, 0.0, epoch=2) is None  # so it begins
    assert told(most, 0.0, epoch=2, epochs=2) == told(most, 0.0)  # and so a short run ends
    assert told(most, 0.0, epoch=1, epochs=1) is None  # its last layer has never moved
    flat = told(most, 0.0)
    assert flat is not None and "ln(dino.out_dim) = 6.908" in flat and "lower dino.teacher_temperature" in flat
    assert told(0.998 * most, 0.09, epoch=5) is None  # about to come apart
    assert told(0.998 * most, 0.09, epoch=6) == flat.replace("6.908 is", "6.894 is")
    assert told(0.97 * most, 0.1, epoch=19) is None
    student = told(0.998 * most, 0.1, epoch=19, teacher_entropy=0.9 * most)  # the teacher's are not flat: no such word
    assert student is not None and "the student's are flat" in student and "teacher's are flat" not in student
    same = told(1.5 * most, 0.001)  # sharp and the same for all, ahead of its centre
    assert same is not None and "every picture the same answer" in same and "raise dino.teacher_temperature" in same
    early = told(1.01 * most, 0.001, teacher_entropy=0.999 * most)  # a student that is not yet as flat as its teacher
    assert early is not None and "entropy 6.901" in early and "lower dino.teacher_temperature" in early
    assert told(1.01 * most, 0.001, teacher_entropy=0.2) == same
    assert told(1.5 * most, 0.5) is None  # a student that is wrong, not a teacher that is empty
    assert objective.collapse({"loss": None}, epoch=9, epochs=20) is None


def test_the_measure_of_collapse():
    objective = objective_of()
    images, crops = batch()
    set_numbers(objective, temperature=0.05)
    centre = objective.centre.numpy().copy()
    answered = [answers(objective.teacher.model, objective.teacher.head, crop) for large in images for crop in large]
    q = [softmax((t - centre) / 0.05) for t in answered]
    entropies = [-sum(p * math.log(p) for p in one) for one in q]
    mean = np.mean(q, axis=0)
    _, metrics = objective(images, crops)
    assert metrics["teacher_entropy"].item() == pytest.approx(np.mean(entropies), rel=1e-10)
    spread = objective.settle_(torch.tensor(1.0), lambda t: t)["teacher_spread"].item()
    assert spread == pytest.approx(-sum(p * math.log(p) for p in mean) - np.mean(entropies), abs=1e-10) and spread > 0
    objective(images[:1, :1].expand(3, 2, -1, -1, -1), crops)
    same = objective.settle_(torch.tensor(1.0), lambda t: t)["teacher_spread"].item()
    assert same == pytest.approx(0, abs=1e-12)
    assert DINO(model_of(), CONFIG, batch_size=1).settle_(torch.tensor(1.0), lambda t: t) == {}


# crops


def test_every_crop_hangs_on_its_sample_alone():
    views = MultiCrop(config=CONFIG, image_size=16, mean=(0.5,) * 3, std=(0.2,) * 3)
    raw = torch.randint(0, 256, (5, 3, 24, 24), dtype=torch.uint8)
    k = keys(0, 2, torch.arange(5))
    large, small = views(raw, k, k, k[0])
    assert large.shape == (5, 2, 3, 16, 16) and small.shape == (5, 3, 3, 8, 8)
    chosen = torch.tensor([3, 1])
    again = views(raw[chosen], k, k[chosen], k[0])
    assert torch.equal(again[0], large[chosen]) and torch.equal(again[1], small[chosen])
    other = views(raw, k, keys(0, 3, torch.arange(5)), k[0])
    assert not torch.equal(other[0], large)
    assert len({tuple(crop.flatten().tolist()) for crop in small.flatten(0, 1)}) == 15


def test_the_chances_are_the_papers(monkeypatch):
    """Each operation replaced by a mark: how often it comes, in the first and second large and in the small crops."""
    shares = {}
    for name, marked in {"jitter": "jitter", "luma": "luma", "blur": "blur", "solarise": "solarise"}.items():
        with monkeypatch.context() as patch:
            for other in ("jitter", "luma", "blur", "solarise"):
                patch.setattr(colours, other, lambda x, *_: x)
            patch.setattr(colours, marked, lambda x, *_: torch.full_like(x, 9.0))
            views = MultiCrop(config=CONFIG, image_size=8, mean=(0.0,) * 3, std=(1.0,) * 3)
            raw = torch.zeros(2000, 3, 8, 8, dtype=torch.uint8)
            k = keys(0, 0, torch.arange(2000))
            large, small = views(raw, k, k, k[0])
            hit = [(crops[:, v, 0, 0, 0] > 5).float().mean().item() for crops in (large, small) for v in range(2)]
            shares[name] = hit[:3]
    assert shares["jitter"] == pytest.approx([0.8] * 3, abs=0.04)
    assert shares["luma"] == pytest.approx([0.2] * 3, abs=0.04)
    assert shares["blur"] == pytest.approx([1.0, 0.1, 0.5], abs=0.04)
    assert shares["solarise"] == pytest.approx([0.0, 0.2, 0.0], abs=0.04)


def test_crop_keys_do_not_repeat():
    found = crop_keys(keys(0, 0, torch.arange(1000)), 0, 10)
    assert found.unique().numel() == 10_000


def coloured(B: int = 6) -> torch.Tensor:
    """Random, with grey, black and white pixels among them."""
    x = torch.rand(B, 3, 12, 10, dtype=torch.float64)
    x[:, :, 0] = x[:, :1, 0]
    x[:, :, 1, :3], x[:, :, 1, 3:6] = 0.0, 1.0
    return x


def test_jitter_is_torchvisions():
    x, k = coloured(), keys(0, 0, torch.arange(6))
    order, factors = colours.draw_jitter(k, 0, multicrop.STRENGTHS)
    found = colours.jitter(x, order, factors.double())
    operations = (
        torchvision.adjust_brightness,
        torchvision.adjust_contrast,
        torchvision.adjust_saturation,
        torchvision.adjust_hue,
    )
    for picture, own, strengths, result in zip(x, order.tolist(), factors.tolist(), found, strict=True):
        for number in own:
            picture = operations[number](picture, strengths[number])
        torch.testing.assert_close(result, picture, rtol=0, atol=1e-5)
    assert len({tuple(own) for own in order.tolist()}) > 2


def test_jitter_is_drawn_evenly():
    order, factors = colours.draw_jitter(keys(0, 0, torch.arange(4000)), 0, multicrop.STRENGTHS)
    assert len({tuple(own) for own in order.tolist()}) == 24
    low, high = factors.amin(0), factors.amax(0)
    torch.testing.assert_close(low, torch.tensor([0.6, 0.6, 0.8, -0.1]), rtol=0, atol=2e-3)
    torch.testing.assert_close(high, torch.tensor([1.4, 1.4, 1.2, 0.1]), rtol=0, atol=2e-3)


def test_blur_and_solarise_are_torchvisions():
    x, sigma = coloured(), torch.linspace(0.1, 1.9, 6, dtype=torch.float64)
    found = colours.blur(x, sigma, 5)
    for picture, width, result in zip(x, sigma.tolist(), found, strict=True):
        expected = torchvision.gaussian_blur(picture, [11, 11], [width, width])
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(colours.solarise(x), torchvision.solarize(x, 0.5), rtol=0, atol=0)
    torch.testing.assert_close(colours.luma(x), torchvision.rgb_to_grayscale(x), rtol=0, atol=1e-10)


# refusals


def config(**changes) -> TrainConfig:
    return without_labels("dino", **changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: config(ema=0.9), r"ema is 0\.9, but dino's teacher is the average"),
        (lambda: config(dino=replace(CONFIG, local_size=10)), r"local_size is 10, which patches of 4 do not divide"),
        (lambda: config(dino=replace(CONFIG, out_dim=1)), r"dino\.out_dim is 1; choose 2 or more"),
        (lambda: config(dino=replace(CONFIG, local_scale=(0.5, 2.0))), r"local_scale is \(0\.5, 2\.0\)"),
        (lambda: config(dino=replace(CONFIG, teacher_temperature=0.0)), r"teacher_temperature is 0\.0"),
        (
            lambda: config(data=replace(config().data, augment=replace(config().data.augment, crop="pad"))),
            "crops and colours of its own",
        ),
        (lambda: replace(config(), objective="mae"), "dino has options, but the objective is mae; say objective dino"),
    ],
)
def test_mistakes_in_one_line(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        change()
    assert "\n" not in str(caught.value)


def test_a_model_that_is_no_plain_vit_is_refused():
    base = config()
    swin = build_model(replace(base.model, name="swin_tiny_patch4_window7_224", image_size=32, options=()))
    with pytest.raises(ValueError, match="objective dino cannot train SwinTransformer: it is no plain ViT"):
        build_objective(base, swin)
