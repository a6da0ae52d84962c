"""Small timm models of every family that can be grayed, and those that must be refused."""

from dataclasses import dataclass, field
from typing import Any

import oracles
import timm
import torch
from torch import nn

SMALL = {"depth": 2, "embed_dim": 48, "num_heads": 3}


@dataclass(frozen=True, kw_only=True)
class Family:
    name: str
    patch: int
    size: int = 64
    options: dict = field(default_factory=dict)
    own_class: bool = False

    def __str__(self) -> str:
        return self.name

    def create(self, **more) -> Any:
        """Random weights of unit gain, no LayerScale near zero: outputs depend visibly on the pixels."""
        torch.manual_seed(0)
        if self.own_class:
            from timm.models.convmixer import ConvMixer

            model = ConvMixer(**self.options, num_classes=5, **more)
        else:
            model = timm.create_model(self.name, num_classes=5, **self.options, **more)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "gamma" in name:
                    parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
                elif parameter.ndim <= 1:
                    parameter.add_(0.05 * torch.randn_like(parameter))
                else:
                    fan_in = parameter[0].numel() if len(parameter) > 1 else 25
                    parameter.copy_(torch.randn_like(parameter) / fan_in**0.5)
        return model.eval()


def _square(name: str, patch: int, size: int = 64, **options) -> Family:
    return Family(name=name, patch=patch, size=size, options={"img_size": size, **options})


VIT = _square("vit_tiny_patch16_224", 16, **SMALL)
FAMILIES = [
    VIT,
    _square("deit_tiny_patch16_224", 16, **SMALL),
    _square("deit_tiny_distilled_patch16_224", 16, **SMALL),
    _square("deit3_small_patch16_224", 16, **SMALL),
    _square("beit_base_patch16_224", 16, **SMALL),
    _square("eva02_tiny_patch14_224", 14, 56, **SMALL),
    _square("vit_small_patch14_reg4_dinov2", 14, 56, **SMALL),
    _square("swin_tiny_patch4_window7_224", 4, 56, depths=(1, 1), num_heads=(3, 6), embed_dim=24),
    _square("swinv2_tiny_window8_256", 4, 32, depths=(1, 1), num_heads=(3, 6), embed_dim=24, window_size=4),
    _square("swinv2_cr_tiny_224", 4, 32, depths=(1, 1), num_heads=(3, 6), embed_dim=24, window_size=4),
    _square("cait_xxs24_224", 16, **SMALL),
    Family(name="pvt_v2_b0", patch=4, options={"depths": (1, 1, 1, 1)}),
    _square("pit_ti_224", 8, 32, depth=(1, 1, 1)),
    Family(
        name="convmixer",
        patch=8,
        own_class=True,
        options={"dim": 32, "depth": 2, "kernel_size": 3, "patch_size": 8},
    ),
    _square("xcit_nano_12_p16_224", 16, depth=2),
    _square("xcit_nano_12_p8_224", 8, 32, depth=2),
]
REFUSED = {  # name: a word of the reason besides the class
    "resnet18": "(?i)patch|embedding",
    "vit_tiny_r_s16_p8_224": "(?i)stem|hybrid|convol|backbone",
    "maxvit_pico_rw_256": "(?i)patch|embedding|stem|convol",
    "levit_128s": "(?i)patch|embedding|stem|convol",
    "mobilevit_xxs": "(?i)patch|embedding|stem|convol",
    "tnt_s_patch16_224": "no patch embedding that gray knows; put TokenGraying",  # it has one, of two sizes of patches
    "visformer_tiny": "convolutional stem",  # these two also have patch embeddings, of the stem's features
    "nextvit_small": "convolutional stem",
}


def gap(got: torch.Tensor, want: torch.Tensor) -> float:
    """Relative Frobenius distance of whole tensors."""
    assert got.shape == want.shape, (got.shape, want.shape)
    got, want = got.detach().double(), want.detach().double()
    assert not torch.isnan(got).any()
    return float((got - want).norm() / want.norm())


def assert_same_gradients(got: nn.Module, want: nn.Module, bar: float) -> None:
    """Parameter by parameter; gradients that are zero but for rounding count against the whole."""
    total = sum(float(p.grad.double().square().sum()) for p in want.parameters() if p.grad is not None) ** 0.5
    assert total > 0
    for (name, mine), theirs in zip(got.named_parameters(), want.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if mine.grad is not None and theirs.grad is not None:
            off = float((mine.grad.double() - theirs.grad.double()).norm())
            assert off <= bar * (float(theirs.grad.double().norm()) + 1e-2 * total), name


def by_oracle(images: torch.Tensor, patch: int, method: str, epsilon: float, **options) -> torch.Tensor:
    """Images grayed by the oracle in float64, rounded back to the dtype of `images`."""
    grayed = oracles.gray_images(images.numpy(), patch, method, epsilon, **options)
    return torch.from_numpy(grayed).to(images.dtype)
