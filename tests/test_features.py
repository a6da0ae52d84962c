"""Features of blocks: against timm's own forward, for every family, with and without skips, in any size."""

from typing import Any

import pytest
import timm
import torch
from timm.models.convmixer import ConvMixer
from timm.models.pit import PoolingVisionTransformer
from torch import nn

from wellcond.blocks import adapted_blocks
from wellcond.evaluation.features import Backbone, pad_to_patches
from wellcond.graying import gray
from wellcond.skips import cut_skips

SMALL: dict[str, Any] = {"embed_dim": 24, "depth": 4, "num_heads": 3}
LAST = (3,)


def vit(name: str = "vit_tiny_patch16_224", **options: Any) -> Any:
    return timm.create_model(name, **{"img_size": 32, "patch_size": 8, "num_classes": 5, **SMALL, **options}).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32)


@pytest.mark.parametrize("cut", [False, True], ids=["skips", "no skips"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"class_token": False, "global_pool": "avg"},
        {"global_pool": "avg"},
        {"reg_tokens": 2},
        {"qk_norm": True},
        {"norm_layer": "rmsnorm"},
        {"norm_layer": "rmsnorm", "global_pool": "avg"},
    ],
    ids=str,
)
def test_the_last_layer_is_what_the_head_reads(options, cut, images):
    model = vit(**options)
    if cut:
        cut_skips(model)
    with torch.no_grad():
        tokens = model.forward_features(images)
        pooled = model.forward_head(tokens, pre_logits=True)
    backbone = Backbone(model)
    torch.testing.assert_close(backbone.read(images, LAST, "pooled")[3], pooled)
    if not options.get("global_pool"):  # there the norm comes after the mean
        want = tokens[:, model.num_prefix_tokens :]
        torch.testing.assert_close(backbone.read(images, LAST, "patches")[3], want)


def test_the_mean_of_the_patches_may_be_asked_for(images):
    model = vit()
    mean = Backbone(model, pool="mean").read(images, LAST, "pooled")[3]
    torch.testing.assert_close(mean, Backbone(model).read(images, LAST, "patches")[3].mean(1))
    with pytest.raises(ValueError, match="no class token"):
        Backbone(vit(class_token=False, global_pool="avg"), pool="class")


def test_layers_are_those_of_timm(images):
    model = vit()
    got = Backbone(model).read(images, (0, 2), "patches")
    want = model.forward_intermediates(images, indices=[0, 2], norm=True, output_fmt="NLC", intermediates_only=True)
    assert list(got) == [0, 2]
    for layer, tokens in zip((0, 2), want, strict=True):
        torch.testing.assert_close(got[layer], tokens)


@pytest.mark.parametrize("name", ["vit", "beit", "eva", "unfused eva", "cait"])
def test_keys_are_those_that_the_attention_compares(name, images, monkeypatch):
    options: dict[str, Any] = {"img_size": 32, "patch_size": 8, **SMALL}
    model: Any = {
        "vit": lambda: vit(qk_norm=True),
        "beit": lambda: timm.create_model("beit_base_patch16_224", **options),
        "eva": lambda: timm.create_model("eva02_tiny_patch14_224", **options, qkv_fused=True),
        "unfused eva": lambda: timm.create_model("eva02_tiny_patch14_224", **options, qkv_fused=False),
        "cait": lambda: timm.create_model("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=24, depth=4),
    }[name]()
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    model.eval()
    seen: list[torch.Tensor] = []
    attention = (model.blocks[-1]).attn
    projection = attention.k_proj if getattr(attention, "k_proj", None) is not None else attention.qkv
    weight, third = projection.weight, projection.out_features // 3
    with torch.no_grad():
        handle = attention.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        model(images)
        handle.remove()
        if projection is attention.qkv:
            weight, bias = weight[third : 2 * third], projection.bias
            bias = getattr(attention, "k_bias", None) if bias is None else bias[third : 2 * third]
        else:
            bias = projection.bias
        want = seen[0] @ weight.T + (0 if bias is None else bias)
        if name == "vit":
            B, n, d = want.shape
            want = attention.k_norm(want.reshape(B, n, 3, d // 3).transpose(1, 2)).transpose(1, 2).reshape(B, n, d)
    prefix = 0 if name == "cait" else model.num_prefix_tokens
    got = Backbone(model).read(images, LAST, "keys")[3]
    assert got.shape == (2, 16, 24)
    torch.testing.assert_close(got, want[:, prefix:])


def test_reading_leaves_the_model_as_it_was(images):
    model = vit(drop_path_rate=0.5).train()
    before = [type(m) for m in model.modules()]
    backbone = Backbone(model)
    one, other = (backbone.read(images, LAST, "pooled")[3] for _ in range(2))
    assert torch.equal(one, other)  # in eval mode inside
    assert model.training and [type(m) for m in model.modules()] == before
    backbone.read(torch.randn(1, 3, 48, 40), LAST, "patches")
    assert model(images).shape == (2, 5) and not adapted_blocks(model)


def test_other_sizes_by_interpolated_positions(images):
    model = vit()
    wide = torch.randn(2, 3, 48, 40)
    flexible = vit(dynamic_img_size=True)
    flexible.load_state_dict(model.state_dict())
    backbone = Backbone(model)
    with torch.no_grad():
        torch.testing.assert_close(backbone.read(wide, LAST, "patches")[3], flexible.forward_features(wide)[:, 1:])
    assert backbone.grid(wide) == (6, 5)
    with pytest.raises(AssertionError):  # the model itself is as strict as before
        model(wide)


def test_a_grayed_model_is_read_grayed(images):
    plain, grayed = vit(), vit()
    grayed.load_state_dict(plain.state_dict())
    gray(grayed, method="dct", epsilon=0.8)
    a, b = (Backbone(m).read(images, LAST, "pooled")[3] for m in (plain, grayed))
    assert not torch.allclose(a, b)


@pytest.mark.parametrize(
    ("name", "options", "shapes"),
    [
        ("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 2, "depths": (1, 1), "embed_dim": 24,
                                         "num_heads": (2, 2)}, {0: (256, 24), 1: (64, 48)}),
        ("xcit_nano_12_p16_224", {"depth": 2, "embed_dim": 32}, {0: (16, 32), 1: (16, 32)}),
        ("pvt_v2_b0", {"depths": (1, 1, 1, 1)}, {0: (256, 32), 3: (4, 256)}),
        ("convmixer", {"depth": 2, "dim": 16, "patch_size": 8}, {0: (64, 16), 1: (64, 16)}),
    ],
)  # fmt: skip
def test_other_families_have_patches_but_no_keys(name, options, shapes):
    model = ConvMixer(**options) if name == "convmixer" else timm.create_model(name, **options)
    backbone = Backbone(model)
    images = torch.randn(1, 3, 64, 64)
    got = backbone.read(images, tuple(shapes), "patches")
    assert {layer: tuple(x.shape[1:]) for layer, x in got.items()} == shapes
    assert backbone.read(images, tuple(shapes), "pooled")[0].shape == (1, shapes[0][1])
    with pytest.raises(ValueError, match="no attention keys"):
        backbone.check_keys()


def pit(**options: Any) -> Any:
    """Patches of 16 px every 8 px: 5 × 5 of a picture of 48 × 48 px, then 3 × 3."""
    small = {"img_size": 48, "patch_size": 16, "stride": 8, "base_dims": (8, 8), "depth": (2, 1), "heads": (2, 2)}
    return PoolingVisionTransformer(**{**small, "num_classes": 5, **options}).eval()


@pytest.mark.parametrize("num_tokens", [1, 2])
def test_overlapping_patches_and_class_tokens_under_another_name(num_tokens):
    model, images = pit(distilled=num_tokens == 2, heads=(2, 4)), torch.randn(2, 3, 48, 48)
    maps: list[Any] = []
    handles = [stage.register_forward_hook(lambda _m, _i, out: maps.append(out)) for stage in model.transformers]
    with torch.no_grad():
        head = model.forward_features(images)
    [handle.remove() for handle in handles]
    backbone = Backbone(model)
    assert backbone.grid(images) == model.patch_embed.grid_size == (5, 5) != (6, 6)
    assert backbone.num_prefix == [num_tokens] * 3 and backbone.takes_class_token
    got = backbone.read(images, (1, 2), "patches")
    assert [backbone.grid_of(images, x.shape[1]) for x in got.values()] == [(5, 5), (3, 3)]
    torch.testing.assert_close(got[1], maps[0][0].flatten(2).mT)
    torch.testing.assert_close(got[2], model.norm(maps[1][0].flatten(2).mT))
    torch.testing.assert_close(backbone.read(images, (2,), "pooled")[2], head[:, 0])
    with pytest.raises(ValueError, match="PoolingVisionTransformer overlap and do not tile a picture"):
        backbone.check_keys()
    with pytest.raises(ValueError, match="takes pictures of 48 × 48 px only"):
        backbone.read(torch.randn(2, 3, 64, 64), (2,), "pooled")


def test_a_class_token_that_joins_late(images):
    options: dict[str, Any] = {"embed_dim": 24, "num_heads": 2, "depth": 3, "local_up_to_layer": 2}
    model: Any = timm.create_model("convit_tiny", img_size=32, patch_size=8, **options).eval()
    with torch.no_grad():
        tokens = model.forward_features(images)
    backbone = Backbone(model)
    assert backbone.num_prefix == [0, 0, 1]
    got = backbone.read(images, (0, 2), "patches")
    assert got[0].shape == got[2].shape == (2, 16, 48)
    torch.testing.assert_close(got[2], tokens[:, 1:])
    pooled = backbone.read(images, (0, 2), "pooled")
    torch.testing.assert_close(pooled[2], tokens[:, 0])
    torch.testing.assert_close(pooled[0], got[0].mean(1))
    with pytest.raises(ValueError, match="layer 0 comes before the class token"):
        Backbone(model, pool="class").read(images, (0,), "pooled")


def test_the_last_layer_of_a_pyramid_is_what_the_head_reads(images):
    model: Any = timm.create_model("pvt_v2_b0", depths=(1, 1, 1, 1)).eval()
    with torch.no_grad():
        tokens = model.forward_features(images)
        pooled = model.forward_head(tokens, pre_logits=True)
    backbone = Backbone(model)
    torch.testing.assert_close(backbone.read(images, LAST, "patches")[3], tokens.flatten(2).mT)
    torch.testing.assert_close(backbone.read(images, LAST, "pooled")[3], pooled)


def test_a_norm_after_the_mean_by_the_name_of_one_before_it(images):
    if not timm.is_model("qwen3_vit_88m"):
        pytest.skip("this timm has no Qwen")
    model: Any = timm.create_model("qwen3_vit_88m", **SMALL).eval()
    with torch.no_grad():
        pooled = model.forward_head(model.forward_features(images), pre_logits=True)
    torch.testing.assert_close(Backbone(model).read(images, LAST, "pooled")[3], pooled)


@pytest.mark.parametrize(
    ("name", "options", "grids"),
    [
        ("pvt_v2_b0", {"depths": (1, 1, 1, 1)}, [(9, 11), (5, 6), (3, 3), (2, 2)]),  # odd sides are padded
        ("twins_svt_small", {"depths": (1, 1, 1, 1), "embed_dims": (8, 8, 8, 8), "num_heads": (1, 1, 1, 1)},
         [(9, 11), (4, 5), (2, 2), (1, 1)]),  # or cut off
    ],
)  # fmt: skip
def test_grids_of_the_stages_of_a_pyramid(name, options, grids):
    backbone, images = Backbone(timm.create_model(name, **options).eval()), torch.randn(2, 3, 36, 44)
    tokens = backbone.read(images, (0, 1, 2, 3), "patches")
    assert [backbone.grid_of(images, x.shape[1]) for x in tokens.values()] == grids


@pytest.mark.parametrize("kind", ["pooled", "patches", "keys"])
def test_tokens_that_are_no_grid_are_refused(kind, images):
    model = vit()
    model.num_prefix_tokens = 0  # it has one
    with pytest.raises(ValueError, match=r"VisionTransformer has 17 tokens .* no grid of a picture with 4 × 4 patches"):
        Backbone(model).read(images, (0,), kind)


def test_mistakes_name_what_was_given(images):
    backbone = Backbone(vit())
    with pytest.raises(ValueError, match=r"layer 4 .*0 … 3"):
        backbone.layers((4,))
    with pytest.raises(ValueError, match="smaller than a patch"):
        backbone.read(torch.randn(1, 3, 4, 32), LAST, "pooled")
    with pytest.raises(ValueError, match="not whole patches"):
        backbone.read(torch.randn(1, 3, 36, 32), LAST, "pooled")
    with pytest.raises(ValueError, match="1 channels, and VisionTransformer takes 3"):
        backbone.read(images[:, :1], LAST, "pooled")
    strict = Backbone(timm.create_model("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=24, depth=2))
    with pytest.raises(ValueError, match="32 × 32 px only"):
        strict.read(torch.randn(1, 3, 48, 32), (1,), "pooled")


@pytest.mark.parametrize("kind", ["pooled", "patches", "keys"])
def test_features_that_are_no_numbers_are_refused(kind, images):
    """Neighbours, cuts and maps of NaN would all be something."""
    model = vit()
    with torch.no_grad():
        model.blocks[1].mlp.fc2.bias[0] = torch.nan
    backbone = Backbone(model)
    assert backbone.read(images, (0,), kind)[0].isfinite().all()
    with pytest.raises(ValueError, match="features of layer 3 are not finite"):
        backbone.read(images, (0, 3), kind)


def test_layers_and_quarters():
    backbone = Backbone(vit(depth=12))
    assert backbone.layers("last") == (11,) and len(backbone.layers("all")) == 12
    assert backbone.layers((5, 1, 5)) == (1, 5)
    assert backbone.quarters() == (2, 5, 8, 11)
    assert Backbone(vit(depth=2)).quarters() == (0, 1)


def test_padding_is_to_the_right_and_below():
    padded = pad_to_patches(torch.ones(1, 3, 9, 8), (8, 8))
    assert padded.shape == (1, 3, 16, 8)
    assert padded[:, :, :9].all() and not padded[:, :, 9:].any()


def test_blocks_of_no_known_family_are_proven_on_noise():
    """The command line has no pictures to give for it."""
    model = timm.create_model("convit_tiny", img_size=32, patch_size=8, embed_dim=24, num_heads=2, depth=2).eval()
    images = torch.randn(3, 3, 32, 32)
    state = torch.get_rng_state()
    backbone = Backbone(model)
    assert torch.equal(torch.get_rng_state(), state)
    given = Backbone(model, images=images)
    for layer in range(backbone.num_layers):
        ours, theirs = (b.read(images, (layer,), "patches")[layer] for b in (backbone, given))
        assert torch.equal(ours, theirs) and ours.shape == (3, 16, 48)


def test_models_without_patches_are_told_of_features_not_of_graying():
    with pytest.raises(ValueError, match=r"ResNet has no patch embedding .* judge a vision transformer") as refused:
        Backbone(timm.create_model("resnet10t"))
    assert "gray" not in str(refused.value).lower()
