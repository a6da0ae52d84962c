"""Small models of every family of blocks, and what each block computes, written out plainly.

`PLAIN[class](block, x, *args, gain=…)` calls the block's own submodules and nothing of wellcond's; `gain` maps
"attention", "mlp", "lpi" to the factor of that skip, 0 meaning that it is absent.
"""

import functools
from typing import Any

import torch
from families import SMALL, Family
from timm.models import beit, cait, convmixer, eva, maxxvit, pvt_v2, swin_transformer, swin_transformer_v2, xcit
from timm.models import vision_transformer as vit

DROPS = {"proj_drop_rate": 0.1, "attn_drop_rate": 0.1, "drop_path_rate": 0.4}


def _of(name, size=32, drops=DROPS, patch=16, **options):
    return Family(name=name, patch=patch, size=size, options={"img_size": size, **drops, **options})


def _small(name, size=32, **options):
    return _of(name, size, **{**SMALL, **options})


_SWIN: dict[str, Any] = {"depths": (2, 1), "num_heads": (2, 4), "embed_dim": 16, "patch": 4}
_MAX: dict[str, Any] = {"drops": {"drop_path_rate": 0.4, "transformer_attn_drop": 0.1, "transformer_proj_drop": 0.1}}
_MAX |= {"embed_dim": (32, 32), "depths": (1, 1), "stem_width": (16, 16), "block_type": ("M", "M"), "size": 64}

VIT, SWIN, CAIT, XCIT, PVT, CONVMIXER, MAXVIT, EVA, BEIT, SWINV2 = _NAMED = [
    _small("vit_tiny_patch16_224"),
    _of("swin_tiny_patch4_window7_224", 32, window_size=4, **_SWIN),
    _small("cait_xxs24_224"),
    _of("xcit_nano_12_p16_224", depth=2, embed_dim=32, num_heads=4, drop_rate=0.1),
    Family(
        name="pvt_v2_b0",
        patch=4,
        size=32,
        options={"depths": (1, 2), "embed_dims": (16, 32), "num_heads": (1, 2), "sr_ratios": (4, 1), **DROPS},
    ),
    Family(
        name="convmixer",
        patch=8,
        size=32,
        own_class=True,
        options={"dim": 16, "depth": 2, "kernel_size": 3, "patch_size": 8, "drop_rate": 0.1},
    ),
    _of("maxvit_pico_rw_256", **_MAX),
    _small("eva02_tiny_patch14_224", 28),
    _small("beit_base_patch16_224"),
    _of("swinv2_tiny_window8_256", 32, window_size=4, **_SWIN),
]
MODELS = [
    *_NAMED,
    _small("deit_tiny_patch16_224"),
    _small("deit_tiny_distilled_patch16_224"),
    _small("deit3_small_patch16_224"),
    _small("vit_small_patch14_reg4_dinov2", 28),
    _small("vit_giant_patch14_dinov2", 28),
    _small("vit_base_patch16_siglip_224"),
    _small("vit_base_patch16_clip_224"),
    _small("vit_base_patch16_rpn_224"),
    _small("beitv2_base_patch16_224", use_shared_rel_pos_bias=True),
    _small("eva02_base_patch16_clip_224"),
    _small("eva02_enormous_patch14_clip_224", 28),
    _small("vit_small_patch16_dinov3"),
    _small("vit_medium_patch16_rope_reg1_gap_256"),
    _small("vit_small_patch16_rope_mixed_224"),
    _of("swin_s3_tiny_224", 32, window_size=(4, 4), **_SWIN),
    _of("swinv2_small_window16_256", 32, window_size=2, **_SWIN),
    _of("cait_s24_224", depth=1, embed_dim=32, num_heads=4, depth_token_only=1),
    _of("xcit_tiny_12_p8_224", depth=1, embed_dim=32, num_heads=4, drop_rate=0.1),
    Family(
        name="pvt_v2_b2_li",
        patch=4,
        size=32,
        options={"depths": (1, 1), "embed_dims": (16, 32), "num_heads": (1, 2), "sr_ratios": (4, 1), **DROPS},
    ),
    _of("maxvit_rmlp_pico_rw_256", **_MAX, transformer_use_nchw_attn=True, transformer_init_values=1.0),
    _of("maxvit_tiny_tf_224", **_MAX),
]


def plus(gain, x, y):
    return gain * x + y if gain else y  # in this order: x decides the strides, and those decide later kernels


def _pre(scale1, scale2, drops=("drop_path1", "drop_path2"), attention="attn"):
    def plain(b, x, *args, gain, **kwargs):
        drop1, drop2 = (getattr(b, d) for d in drops)
        y = scale1(b, getattr(b, attention)(b.norm1(x), *args, **kwargs))
        x = plus(gain["attention"], x, drop1(y) if gain["attention"] else y)
        y = scale2(b, b.mlp(b.norm2(x), *args) if isinstance(b, pvt_v2.Block) else b.mlp(b.norm2(x)))
        return plus(gain["mlp"], x, drop2(y) if gain["mlp"] else y)

    return plain


def _post(b, x, *args, gain, **kwargs):
    y = b.norm1(b.attn(x, *args, **kwargs))
    x = plus(gain["attention"], x, b.drop_path1(y) if gain["attention"] else y)
    y = b.norm2(b.mlp(x))
    return plus(gain["mlp"], x, b.drop_path2(y) if gain["mlp"] else y)


def _swin(b, x, gain):
    shape, v2 = x.shape, isinstance(b, swin_transformer_v2.SwinTransformerV2Block)
    y = b.norm1(b._attn(x)) if v2 else b._attn(b.norm1(x))
    x = plus(gain["attention"], x, b.drop_path1(y) if gain["attention"] else y).flatten(1, 2)
    y = b.norm2(b.mlp(x)) if v2 else b.mlp(b.norm2(x))
    return plus(gain["mlp"], x, b.drop_path2(y) if gain["mlp"] else y).view(shape)


def _cait_class(b, x, x_cls, gain):
    y = b.gamma_1 * b.attn(b.norm1(torch.cat([x_cls, x], dim=1)))
    x_cls = plus(gain["attention"], x_cls, b.drop_path(y) if gain["attention"] else y)
    y = b.gamma_2 * b.mlp(b.norm2(x_cls))
    return plus(gain["mlp"], x_cls, b.drop_path(y) if gain["mlp"] else y)


def _xcit(b, x, height, width, gain):
    y = b.gamma1 * b.attn(b.norm1(x))
    x = plus(gain["attention"], x, b.drop_path1(y) if gain["attention"] else y)
    y = b.gamma3 * b.local_mp(b.norm3(x), height, width)
    x = plus(gain["lpi"], x, b.drop_path3(y) if gain["lpi"] else y)
    y = b.gamma2 * b.mlp(b.norm2(x))
    return plus(gain["mlp"], x, b.drop_path2(y) if gain["mlp"] else y)


def _xcit_class(b, x, gain):
    tokens = b.norm1(x)
    y = b.gamma1 * torch.cat([b.attn(tokens), tokens[:, 1:]], dim=1)
    x = plus(gain["attention"], x, b.drop_path1(y) if gain["attention"] else y)
    x = b.norm2(x) if b.tokens_norm else torch.cat([b.norm2(x[:, :1]), x[:, 1:]], dim=1)
    y = torch.cat([b.gamma2 * b.mlp(x[:, :1]), x[:, 1:]], dim=1)
    return plus(gain["mlp"], x, b.drop_path2(y) if gain["mlp"] else y)


def _residual(b, x, gain):
    return plus(gain["attention"], x, b.fn(x))


def _ls(number):
    return lambda b, y: getattr(b, f"ls{number}")(y)


def _gamma(number):
    return lambda b, y: y if getattr(b, f"gamma_{number}") is None else getattr(b, f"gamma_{number}") * y


def _none(b, y):
    return y


_WINDOWS = _pre(_ls(1), _ls(2), attention="_partition_attn")
PLAIN = {
    vit.Block: _pre(_ls(1), _ls(2)),
    vit.ResPostBlock: _post,
    beit.Block: _pre(_gamma(1), _gamma(2)),
    eva.EvaBlock: _pre(_gamma(1), _gamma(2)),
    eva.EvaBlockPostNorm: _post,
    swin_transformer.SwinTransformerBlock: _swin,
    swin_transformer_v2.SwinTransformerV2Block: _swin,
    cait.LayerScaleBlock: _pre(_gamma(1), _gamma(2), drops=("drop_path", "drop_path")),
    cait.LayerScaleBlockClassAttn: _cait_class,
    pvt_v2.Block: _pre(_none, _none),
    xcit.XCABlock: _xcit,
    xcit.ClassAttentionBlock: _xcit_class,
    maxxvit.PartitionAttentionCl: _WINDOWS,
    maxxvit.PartitionAttention2d: _WINDOWS,
    convmixer.Residual: _residual,
}


def blocks_of(model):
    return [module for module in model.modules() if type(module) in PLAIN]


def plainly(model, attention=1.0, mlp=1.0, lpi=1.0):
    """The same model with every block's forward replaced by the plain function."""
    gain = {"attention": attention, "mlp": mlp, "lpi": lpi}
    for block in blocks_of(model):
        block.forward = functools.partial(PLAIN[type(block)], block, gain=gain)
    return model


def images_of(family, batch=2):
    return torch.randn(batch, 3, family.size, family.size, generator=torch.Generator().manual_seed(1))


def outcome(model, images, training=False):
    """Everything a step of training computes, from a fixed random state: logits, gradients, buffers."""
    model.train(training).zero_grad()
    torch.manual_seed(7)
    out = model(images)
    out = out[0] if isinstance(out, tuple | dict) else out  # distilled DeiT in training: two heads; transformers
    (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return {"out": out.detach(), **gradients, **{f"buffer {k}": v.clone() for k, v in model.named_buffers()}}


def assert_identical(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert (value is None) == (got[name] is None), name
        assert value is None or torch.equal(got[name], value), name
