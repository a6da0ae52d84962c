"""MAE against a slow version with a loop over images and patches, float64; its masks; its pieces of timm's ViT."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from cases import images as pictures
from hypothesis import given
from hypothesis import strategies as st
from training_cases import without_labels

from wellcond.attention import set_attention
from wellcond.config import DataConfig, MAEConfig, ModelConfig, TrainConfig
from wellcond.data.masking import patch_order
from wellcond.data.randomness import keys
from wellcond.data.views import build_fixed_views, build_views
from wellcond.graying import gray
from wellcond.objectives import MAE, build_objective, vit
from wellcond.objectives.decoder import sine_positions
from wellcond.objectives.mae import count_visible, split
from wellcond.objectives.permuting import permute
from wellcond.skips import cut_skips
from wellcond.training import build_model

SIDE, PATCH, WIDTH = 16, 4, 12
SMALL: dict[str, Any] = {
    "img_size": SIDE,
    "patch_size": PATCH,
    "embed_dim": WIDTH,
    "depth": 3,
    "num_heads": 2,
    "num_classes": 0,
}
VARIANTS = {
    "plain": {},
    "registers": {"reg_tokens": 2},
    "positions of patches only": {"no_embed_class": True, "reg_tokens": 1},
    "without a class token": {"class_token": False, "global_pool": "avg"},
    "a norm before the blocks": {"pre_norm": True},
    "layer scale": {"init_values": 0.1},
}


def model_of(**options):
    torch.manual_seed(3)
    model = timm.create_model("vit_tiny_patch16_224", **{**SMALL, **options}).double()
    with torch.no_grad():
        for parameter in model.parameters():  # nothing stays 0 or 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def objective_of(model, **options) -> MAE:
    torch.manual_seed(4)
    config = MAEConfig(**{"decoder_depth": 2, "decoder_width": 8, "decoder_heads": 2, **options})
    return MAE(model, config).double()


def batch(B: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    images = pictures(B, 3, SIDE, SIDE, dtype=torch.float64)
    order = torch.stack([torch.randperm((SIDE // PATCH) ** 2) for _ in range(B)])
    return images, order


def ordered(objective: MAE, order: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Visible patches first, each half in reading order, and the inverse."""
    order = torch.cat(split(order, objective.num_visible), 1)
    return order, torch.argsort(order, 1)


def patch_of(image: np.ndarray, i: int) -> np.ndarray:
    """Pixels (p, p, C) of patch i in reading order."""
    row, column = divmod(i, SIDE // PATCH)
    return image[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH].transpose(1, 2, 0)


def slow_loss(objective: MAE, images: torch.Tensor, order: torch.Tensor, *, normalise: bool) -> float:
    """One image and one patch at a time; blocks are those of the modules, on one image each."""
    model, decoder = objective.model, objective.decoder
    n, P = order.shape[1], model.num_prefix_tokens
    num_visible = n // 4
    weight = model.patch_embed.proj.weight.detach().numpy()
    positions = model.pos_embed.detach().numpy()[0]
    losses = []
    for image, permutation in zip(images.numpy(), order.tolist(), strict=True):
        visible = permutation[:num_visible]
        tokens = [model.cls_token[0, 0].detach().numpy() + positions[0]]
        for i in visible:
            pixels = patch_of(image, i).transpose(2, 0, 1)
            tokens.append(
                (weight * pixels).sum((1, 2, 3)) + model.patch_embed.proj.bias.detach().numpy() + positions[1 + i]
            )
        x = torch.from_numpy(np.stack(tokens))[None]
        for block in model.blocks:
            x = block(x)
        x = decoder.embed(model.norm(x))[0]
        grid = SIDE // PATCH
        full = [x[0]] + [decoder.mask_token + torch.from_numpy(slow_position(divmod(i, grid))) for i in range(n)]
        for place, i in enumerate(visible):
            full[P + i] = x[P + place] + torch.from_numpy(slow_position(divmod(i, grid)))
        y = torch.stack(full)[None]
        for block in decoder.blocks:
            y = block(y)
        painted = decoder.predict(decoder.norm(y))[0, P:].detach().numpy()
        total = 0.0
        for i in permutation[num_visible:]:
            target = patch_of(image, i).reshape(-1)
            if normalise:
                target = (target - target.mean()) / math.sqrt(target.var(ddof=1) + 1e-6)
            total += sum((a - b) ** 2 for a, b in zip(painted[i], target, strict=True)) / len(target)
        losses.append(total / (n - num_visible))
    return sum(losses) / len(losses)


def slow_position(place: tuple[int, int], width: int = 8) -> np.ndarray:
    found = []
    for coordinate in place:
        angles = [coordinate / 10000 ** (i / (width // 4)) for i in range(width // 4)]
        found += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return np.array(found).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("skips", [True, False])
def test_the_loss_is_that_of_the_slow_version(normalise, skips):
    model = model_of() if skips else cut_skips(model_of())
    objective = objective_of(model, normalise=normalise)
    images, order = batch()
    loss, metrics = objective(images, order)
    assert loss.item() == pytest.approx(slow_loss(objective, images, order, normalise=normalise), rel=1e-10)
    assert metrics == {}
    losses = objective.eval()(images, order)
    assert losses.shape == (2,) and losses.mean().item() == pytest.approx(loss.item(), rel=1e-10)


def test_positions_of_the_decoder():
    found = sine_positions((2, 3), 8).double().numpy()
    expected = [slow_position(divmod(i, 3)) for i in range(6)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@given(n=st.integers(2, 64), k=st.integers(1, 63), seed=st.integers(0, 2**40))
def test_masks_partition(n, k, seed):
    k = min(k, n - 1)
    order = patch_order(keys(seed, 3, torch.arange(5)), n)
    visible, hidden = split(order, k)
    assert visible.shape == (5, k) and hidden.shape == (5, n - k)
    for one, two in zip(visible.tolist(), hidden.tolist(), strict=True):
        assert one == sorted(one) and two == sorted(two) and sorted(one + two) == list(range(n))


def test_masks_hang_on_the_sample_and_the_epoch_alone():
    indices = torch.arange(2000)
    order = patch_order(keys(0, 1, indices), 16)
    assert torch.equal(order[[7, 3]], patch_order(keys(0, 1, indices[[7, 3]]), 16))
    assert not torch.equal(order, patch_order(keys(0, 2, indices), 16))
    visible = torch.zeros(2000, 16).scatter(1, order[:, :4], 1.0)
    assert visible.mean(0).numpy() == pytest.approx(np.full(16, 0.25), abs=0.04)  # 4 deviations
    together = (visible[:, 0] * visible[:, 1]).mean().item()
    assert together == pytest.approx(4 / 16 * 3 / 15, abs=0.02)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("change", ["none", "skipless", "linear", "grayed"])
def test_the_pieces_are_the_model(variant, change):
    model = model_of(**VARIANTS[variant]).eval()
    if change == "skipless":
        cut_skips(model)
    elif change == "linear":
        set_attention(model, "linear", k=4)
    elif change == "grayed":
        gray(model, "dct", 0.9, precision="exact")
    images, _ = batch()
    torch.testing.assert_close(vit.features(vit.check_plain(model, "mae"), images), model(images), rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("long_skips", [True, False])
def test_every_weight_learns(variant, long_skips):
    """DDP and the optimizer meet no parameter without a gradient."""
    objective = objective_of(model_of(**VARIANTS[variant]), long_skips=long_skips)
    objective(*batch())[0].backward()
    for name, parameter in objective.named_parameters():
        assert parameter.grad is not None and (parameter.grad.any() or "qkv.bias" in name), name


def test_long_skips_reach_visible_patches_only():
    objective = objective_of(cut_skips(model_of()), long_skips=True, decoder_depth=2)
    assert objective.decoder.sources == (2, 1)
    images, order = batch()
    visible, hidden = split(order, objective.num_visible)
    order, restore = ordered(objective, order)
    added = torch.ones(2, 1 + objective.num_visible, 8, dtype=torch.float64)
    placed = objective.decoder._place(added, torch.zeros(2, hidden.shape[1], 8, dtype=torch.float64), order, restore)
    expected = torch.zeros(2, 16).scatter(1, visible, 1.0)
    assert torch.equal(placed[:, 1:, 0].float(), expected) and placed[:, 0].all()
    without = objective_of(cut_skips(model_of()), decoder_depth=2)
    assert objective(images, order)[0].item() != without(images, order)[0].item()


def grayed(**options) -> MAE:
    return objective_of(gray(model_of(), "svd", 0.7, precision="exact"), **options)


def test_graying_reads_the_whole_image_and_paints_ungrayed_pixels():
    objective, plain = grayed(), objective_of(model_of())
    images, order = batch()
    assert torch.equal(objective.targets(images), plain.targets(images))
    X = np.stack([np.stack([patch_of(image, i).reshape(-1) for i in range(16)]) for image in images.numpy()])
    U, s, V = np.linalg.svd(X, full_matrices=False)
    Y = U * (s[:, :1] * (s / s[:, :1]) ** 0.7)[:, None] @ V
    visible, _ = split(order, objective.num_visible)
    flat = objective.model.patch_embed.proj.weight.detach().numpy().transpose(0, 2, 3, 1).reshape(WIDTH, -1)
    expected = Y @ flat.T + objective.model.patch_embed.proj.bias.detach().numpy()
    expected = expected + objective.model.pos_embed.detach().numpy()[:, 1:]
    expected = np.take_along_axis(expected, visible.numpy()[:, :, None], 1)
    found = objective.embed_visible(images, *ordered(objective, order)).detach()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def test_visible_grays_the_matrix_of_the_visible_patches():
    objective = grayed(visible=True)
    images, order = batch()
    visible, _ = split(order, objective.num_visible)
    rows = [
        [patch_of(image, i).reshape(-1) for i in v] for image, v in zip(images.numpy(), visible.tolist(), strict=True)
    ]
    X = np.array(rows)
    U, s, V = np.linalg.svd(X, full_matrices=False)
    Y = U * (s[:, :1] * (s / s[:, :1]) ** 0.7)[:, None] @ V
    flat = objective.model.patch_embed.proj.weight.detach().numpy().transpose(0, 2, 3, 1).reshape(WIDTH, -1)
    expected = Y @ flat.T + objective.model.patch_embed.proj.bias.detach().numpy()
    expected = expected + objective.model.pos_embed.detach().numpy()[0, 1:][visible.numpy()]
    found = objective.embed_visible(images, *ordered(objective, order)).detach()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("visible", [True, False])
def test_what_is_hidden_leaks_only_through_graying_of_the_whole(visible):
    objective = grayed(visible=visible)
    images, order = batch()
    _, hidden = split(order, objective.num_visible)
    before = objective.encode(images, *ordered(objective, order))[0]
    for image, places in zip(images, hidden.tolist(), strict=True):
        for i in places:
            row, column = divmod(i, SIDE // PATCH)
            image[:, row * PATCH : (row + 1) * PATCH, column * PATCH : (column + 1) * PATCH] += 1.0
    same = torch.equal(objective.encode(images, *ordered(objective, order))[0], before)
    assert same == visible


def test_a_permutation_and_its_gradient():
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    order = torch.stack([torch.randperm(5) for _ in range(2)])
    inverse = torch.argsort(order, 1)
    assert torch.equal(permute(x, order, inverse), torch.stack([x[b, order[b]] for b in range(2)]))
    assert torch.autograd.gradcheck(lambda x: permute(x, order, inverse), x)


def supplied(**changes) -> TrainConfig:
    model = ModelConfig(name="vit_tiny_patch16_224", image_size=32, patch_size=8, num_classes=0)
    data = DataConfig(train="procedural:8", val="procedural:8", image_size=32)
    return replace(TrainConfig(objective="mae", model=model, data=data, epochs=1, batch_size=4), **changes)


def test_views_bring_orders_in_place_of_labels():
    views, fixed = build_views(supplied()), build_fixed_views(supplied())
    raw = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    k = keys(0, 0, torch.arange(3))
    images, order = views(raw, torch.full((3,), -1), k, torch.tensor(0))
    assert images.shape == (3, 3, 32, 32) and torch.equal(order, patch_order(k, 16))
    one, two = fixed(raw, torch.arange(3)), fixed(raw.flip(0), torch.arange(3).flip(0))
    assert torch.equal(one[0], two[0].flip(0)) and torch.equal(one[1], two[1].flip(0))


def test_the_heads_hang_on_the_seed_alone():
    config = without_labels("mae")
    state = torch.random.get_rng_state()
    one, two = (build_objective(config, build_model(config.model)) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    other = build_objective(replace(config, seed=1), build_model(config.model))
    for name, weight in one.named_parameters():
        assert torch.equal(weight, two.get_parameter(name))
    assert not torch.equal(other.get_parameter("decoder.embed.weight"), one.get_parameter("decoder.embed.weight"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("swin_tiny_patch4_window7_224", {}, "SwinTransformer: it is no plain ViT"),
        ("deit_tiny_distilled_patch16_224", {}, "VisionTransformerDistilled: its patch embedding or its positions"),
        ("eva02_tiny_patch14_224", {}, "Eva: it is no plain ViT"),
        ("vit_tiny_patch16_224", {"patch_drop_rate": 0.5}, "it drops patches"),
        ("vit_tiny_patch16_224", {"pos_embed": "none"}, "it has no position embedding"),
    ],
)
def test_what_is_no_plain_vit_is_refused(name, options, words):
    with pytest.raises(ValueError, match=words):
        MAE(timm.create_model(name, num_classes=0, **options), MAEConfig())


@pytest.mark.parametrize("n", [10, 50, 64, 100, 196, 256])
def test_as_many_are_seen_as_the_share_says(n):
    for percent in range(1, 100):
        if 0 < n * (100 - percent) // 100 < n:
            assert count_visible(n, percent / 100) == n * (100 - percent) // 100


def test_a_mask_that_shows_nothing_is_refused():
    config = supplied(mae=MAEConfig(mask=0.99))
    with pytest.raises(ValueError, match=r"mae\.mask is 0\.99, which shows 0 of 16 patches"):
        build_objective(config, build_model(config.model))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda c: replace(c, model=replace(c.model, num_classes=10)),
            "objective mae has no classes, but .* is 10; use 0",
        ),
        (lambda c: replace(c, model=replace(c.model, patch_size=None)), "needs model.patch_size"),
        (
            lambda c: replace(c, model=replace(c.model, patch_size=5)),
            "a divisor of 32 pixels, and it is 5; say it, for example 16",
        ),
        (
            lambda c: replace(c, model=replace(c.model, image_size=36), data=replace(c.data, image_size=36)),
            "example 12",
        ),
        (
            lambda c: replace(c, objective="supervised", mae=MAEConfig(mask=0.5)),
            "mae has options, but the objective is",
        ),
        (lambda c: replace(c, mae=MAEConfig(visible=True)), "model.graying.method is 'none'; say dct or svd"),
        (lambda c: replace(c, mae=MAEConfig(decoder_width=510)), "mae.decoder_width is 510; choose a multiple of 4"),
        (lambda c: replace(c, mae=MAEConfig(mask=1.0)), "mae.mask is 1.0; choose it in"),
        (
            lambda c: replace(c, data=replace(c.data, augment=replace(c.data.augment, mixup=0.8))),
            "mixup, cutmix or smoothing, which are for labels",
        ),
        (lambda c: replace(c, objective="supervised"), "model.num_classes is 0; choose 1 or more"),
    ],
)
def test_mistakes_in_one_line(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        change(supplied())
    assert "\n" not in str(caught.value)
