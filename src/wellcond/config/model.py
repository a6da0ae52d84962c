"""What is trained: a timm model, changed as the papers change it."""

from dataclasses import dataclass
from typing import Literal

from .checks import check_at_least, check_one_of, check_positive, check_within

Option = None | bool | int | float | str  # in the order in which the command line tries them


@dataclass(frozen=True, kw_only=True)
class GrayingConfig:
    """Token Graying of the input (Always Skip Attention, Algorithms 1 and 2)."""

    method: Literal["none", "svd", "dct"] = "none"
    """none, svd or dct."""
    epsilon: float = 0.95
    """Exponent in (0, 1]: 1 changes nothing, smaller is grayer."""
    rescale: bool | Literal["contrast"] = True
    """True keeps the largest value, False is the paper's literal algorithm, contrast keeps the norm."""
    precision: Literal["exact", "fast"] = "fast"
    """exact: error up to 1e-5; fast: up to 1e-3."""

    def __post_init__(self) -> None:
        check_one_of("graying.method", self.method, ("none", "svd", "dct"))
        check_within("graying.epsilon", self.epsilon, 0, 1, brackets="(]", example=0.95)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A timm model by name, its size, and what is changed in it."""

    name: str
    """A timm name, e.g. vit_tiny_patch16_224."""
    image_size: int
    """Side of the images in pixels."""
    patch_size: int | None = None
    """Side of a patch; none: the model's own."""
    num_classes: int
    """How many classes; 0: no head, for objectives without labels."""
    drop_path: float = 0.0
    """Stochastic depth: probability of dropping the last block's branches."""
    options: tuple[tuple[str, Option], ...] = ()
    """Further keyword arguments of timm.create_model, as (name, value) pairs."""
    attention: Literal["softmax", "linear"] = "softmax"
    """softmax, or linear: (1/k) Q Kᵀ V."""
    k: float | None = None
    """The constant of linear attention; none: 16."""
    cut_attention_skips: bool = False
    """Train without the skips around attention."""
    cut_mlp_skips: bool = False
    """Train without the skips around the MLPs."""
    graying: GrayingConfig = GrayingConfig()

    def __post_init__(self) -> None:
        check_at_least("model.image_size", self.image_size, 1, example=224)
        if self.patch_size is not None:
            check_at_least("model.patch_size", self.patch_size, 1, example=16)
        check_at_least("model.num_classes", self.num_classes, 0, example=10)
        check_within("model.drop_path", self.drop_path, 0, 1, brackets="[)", example=0.1)
        check_one_of("model.attention", self.attention, ("softmax", "linear"))
        if self.k is not None:
            check_positive("model.k", self.k, example=16)
            if self.attention != "linear":
                raise ValueError(f"model.k is {self.k}, which only linear attention has; say model.attention linear")
        names = [name for name, _ in self.options]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"model.options has {repeated[0]!r} twice; give it once")
