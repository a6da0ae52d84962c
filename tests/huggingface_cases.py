"""Small models of `transformers` with random weights, and what their blocks compute, written out twice.

`plainly` calls the blocks' own submodules, as block_cases does for timm's. `by_hand` shares nothing with either
library's modules: it reads the state dict, in float64.
"""

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import (
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    DeiTModel,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

HEADS, WIDTH, DEPTH = 3, 48, 2
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "image_size": 32,
    "patch_size": 8,
}
_VIT: dict[str, Any] = {"intermediate_size": 96}
_DINO: dict[str, Any] = {"mlp_ratio": 2, "drop_path_rate": 0.4, "layerscale_value": 0.5}


@dataclass(frozen=True)
class Case:
    name: str
    kind: Any
    config: Any
    options: dict[str, Any] = field(hash=False)
    num_prefix: int = 1
    size: int = 32

    def __str__(self) -> str:
        return self.name

    def create(self, implementation: str = "sdpa", **options: Any) -> Any:
        """The same random weights every time, none of them zero or one."""
        torch.manual_seed(0)
        config = self.config(**{**SIZES, **self.options, **options}, attn_implementation=implementation)
        model = self.kind(config).eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p), alpha=0.1)
        return model


VIT = Case("vit", ViTModel, ViTConfig, _VIT)
DEIT = Case("deit", DeiTModel, DeiTConfig, _VIT, num_prefix=2)
DINO = Case("dinov2", Dinov2Model, Dinov2Config, _DINO)
CASES = [
    VIT,
    DEIT,
    DINO,
    Case("vit-classifier", ViTForImageClassification, ViTConfig, {**_VIT, "qkv_bias": False}),
    Case("deit-two-heads", DeiTForImageClassificationWithTeacher, DeiTConfig, _VIT, num_prefix=2),
    Case("dinov2-swiglu", Dinov2ForImageClassification, Dinov2Config, {**_DINO, "use_swiglu_ffn": True}),
    Case("dinov2-registers", Dinov2WithRegistersModel, Dinov2WithRegistersConfig, _DINO, num_prefix=5),
]
BLOCKS = ("ViTLayer", "DeiTLayer", "Dinov2Layer", "Dinov2WithRegistersLayer")


def blocks_of(model: Any) -> list[Any]:
    """By the name of the class, adapted or not."""
    return [m for m in model.modules() if type(m).__name__.removeprefix("Adapted") in BLOCKS]


def _add(gain: float, x: Tensor, y: Tensor) -> Tensor:
    return gain * x + y if gain else y


def _vit(b: Any, x: Tensor, mask: Any = None, *, attention: float, mlp: float, **kwargs: Any) -> Tensor:
    x = _add(attention, x, b.dropout(b.attention(b.layernorm_before(x), mask, **kwargs)[0]))
    return _add(mlp, x, b.dropout(b.mlp(b.layernorm_after(x))))


def _dino(b: Any, x: Tensor, mask: Any = None, *, attention: float, mlp: float, **kwargs: Any) -> Tensor:
    y = b.layer_scale1(b.attention(b.norm1(x), mask, **kwargs)[0])
    x = _add(attention, x, b.drop_path(y) if attention else y)
    y = b.layer_scale2(b.mlp(b.norm2(x)))
    return _add(mlp, x, b.drop_path(y) if mlp else y)


def plainly(model: Any, attention: float = 1.0, mlp: float = 1.0) -> Any:
    for block in blocks_of(model):
        plain = _dino if type(block).__name__.startswith("Dinov2") else _vit
        block.forward = functools.partial(plain, block, attention=attention, mlp=mlp)
    return model


def by_hand(block: Any, X: Tensor, attention: float = 1.0, mlp: float = 1.0) -> dict[str, Tensor]:
    """Every site of one block for tokens X (B, n, d), and its attention map, in float64 and in evaluation."""
    w = {name: value.double() for name, value in block.state_dict().items()}
    dino = "norm1.weight" in w
    X = X.double()

    def affine(name: str, y: Tensor) -> Tensor:
        return y @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros((), dtype=torch.float64))

    def norm(name: str, y: Tensor) -> Tensor:
        centred = y - y.mean(-1, keepdim=True)
        eps = 1e-6 if dino else 1e-12
        return (
            centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]
        )

    def heads(name: str, y: Tensor) -> list[Tensor]:
        return list(affine(f"attention.{name}_proj", y).split(WIDTH // HEADS, -1))

    y = norm("norm1" if dino else "layernorm_before", X)
    maps, mixed = [], []
    for Q, K, V in zip(*(heads(name, y) for name in "qkv"), strict=True):
        logits = Q @ K.mT / (WIDTH // HEADS) ** 0.5
        A = logits.exp() / logits.exp().sum(-1, keepdim=True)
        maps.append(A)
        mixed.append(A @ V)
    out = affine("attention.o_proj", torch.cat(mixed, -1)) * w.get("layer_scale1.lambda1", 1.0)
    total = attention * X + out
    y = norm("norm2" if dino else "layernorm_after", total)
    if "mlp.gate_proj.weight" in w:
        gate = affine("mlp.gate_proj", y)
        y = affine("mlp.down_proj", gate * gate.sigmoid() * affine("mlp.up_proj", y))
    else:
        y = affine("mlp.fc1", y)
        y = affine("mlp.fc2", y * (1 + torch.erf(y / 2**0.5)) / 2)
    y = y * w.get("layer_scale2.lambda1", 1.0)
    sites = {"sab_in": X, "sab_out": out, "sab_sum": total, "ffn_out": y, "ffn_sum": mlp * total + y}
    return {**sites, "map": torch.stack(maps, 1)}
