"""Small models of the families that can be initialized without skips, and their weights read off the running model.

Weights are never indexed: sequences of equal tokens go through the real attention, where every softmax is a convex
combination of the same value and the output is x W_V W_O whatever the layout; q and k are what the real forward hands
to scaled-dot-product attention for unit vectors. Nothing of wellcond is imported.
"""

import re
from typing import Any
from unittest import mock

import numpy as np
import oracles
import pytest
import skipless_oracles
import timm
import torch
from families import Family
from torch import nn
from torch.nn import functional

ALPHA, BETA, C = 2.0, 0.6, 3.0
CHANGED = re.compile(r"\.(attn|mlp)\.|gamma|\.ls\d\.")  # what the initialization may touch


def vit(name="vit_tiny_patch16_224", size=32, patch=16, **options) -> Family:
    options = {"img_size": size, "embed_dim": 48, "num_heads": 3, "depth": 2, **options}
    return Family(name=name, patch=patch, size=size, options=options)


SWIN = Family(
    name="swin_tiny_patch4_window7_224",
    patch=4,
    size=32,
    options={"img_size": 32, "window_size": 4, "depths": (2, 1), "num_heads": (2, 4), "embed_dim": 16},
)
EDGES = {
    "one head": vit(embed_dim=24, num_heads=1),
    "odd width": vit(embed_dim=45, depth=1),
    "odd width, one head": vit(embed_dim=33, num_heads=1, depth=1),
    "heads of width 1": vit(embed_dim=6, num_heads=6, depth=1),
    "no qkv bias": vit(qkv_bias=False),
    "narrow mlp": vit(mlp_ratio=0.5),
}
MODELS = {
    "vit": vit(),
    "deit3, layer scale": vit("deit3_small_patch16_224"),
    "dinov2, registers": vit("vit_small_patch14_reg4_dinov2", 28, 14),
    "eva02, packed swiglu": vit("eva02_tiny_patch14_224", 28, 14),
    "eva02, separate q k v": vit("eva02_base_patch14_224", 28, 14),
    "beit": vit("beit_base_patch16_224"),
    "swin": SWIN,
    **EDGES,
}
MANY = vit(embed_dim=32, num_heads=4, depth=8)  # 32 heads of width 8


def fresh(family: Family, seed: int = 0) -> Any:
    """timm's own initialization, except that what must become 0 or 1 is neither."""
    torch.manual_seed(seed)
    model = timm.create_model(family.name, num_classes=5, **family.options).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "gamma" in name or (CHANGED.search(name) and name.endswith("bias") and "norm" not in name):
                p.fill_(0.3)
    return model


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def attentions(model) -> list[Any]:
    found = [m for m in model.modules() if hasattr(m, "proj") and (hasattr(m, "qkv") or hasattr(m, "q_proj"))]
    assert found
    for attn in found:
        attn.fused_attn = True  # the same mathematics, in one call that can be watched
    return found


def linears(model) -> list[tuple[str, nn.Linear]]:
    return [(name, m) for name, m in model.named_modules() if ".mlp." in name and isinstance(m, nn.Linear)]


def num_tokens(attn) -> int:
    """Equal tokens need a length that the position biases fit."""
    window = getattr(attn, "window_size", None)
    if window is None:
        return 2
    return window[0] * window[1] + (1 if hasattr(attn, "q_bias") else 0)  # beit: and a class token


def watched(call) -> tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]:
    """What `call` returns, and q, k (B, H, N, d_h) of every attention inside."""
    seen, real = [], functional.scaled_dot_product_attention

    def spy(q, k, v, **options):
        assert options.get("scale") is None
        seen.append((q.detach(), k.detach()))
        return real(q, k, v, **options)

    with mock.patch.object(functional, "scaled_dot_product_attention", spy), torch.no_grad():
        return call(), seen


def effective(attn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """W_V W_O (d, d), W_Q and W_K (H, d, d_h) of a running attention."""
    weight = attn.proj.weight
    d, n = weight.shape[0], num_tokens(attn)
    units = torch.eye(d, dtype=weight.dtype)[:, None].expand(d, n, d)
    out, [(q, k)] = watched(lambda: attn(units))
    zero, [(q0, k0)] = watched(lambda: attn(torch.zeros_like(units)))
    assert q.shape[:3] == (d, attn.num_heads, n)
    queries, keys = ((t - t0)[:, :, 0].transpose(0, 1).double().numpy() for t, t0 in ((q, q0), (k, k0)))
    return (out - zero)[:, 0].double().numpy(), queries, keys


def through(linear: nn.Linear) -> np.ndarray:
    """(in, out) of y = x W, by unit vectors."""
    units = torch.eye(linear.in_features, dtype=linear.weight.dtype)
    with torch.no_grad():
        return (linear(units) - linear(torch.zeros_like(units))).double().numpy()


def kappa(X: np.ndarray) -> float:
    sigma = oracles.singular_values(X)
    return float(sigma[0] / sigma[-1])


def every(cases: dict[str, Family]):
    return pytest.mark.parametrize("family", cases.values(), ids=cases.keys())


def numbers_of(model) -> tuple[np.ndarray, list[np.ndarray]]:
    """What is decided without Z, of every head; and every W_V W_O."""
    parts = [effective(attn) for attn in attentions(model)]
    products = [Q @ K.T for _, queries, keys in parts for Q, K in zip(queries, keys, strict=True)]
    return np.stack([skipless_oracles.head_numbers(P, 8) for P in products]), [W for W, *_ in parts]
