"""What is trained: a timm model, changed as the papers change it."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from .checks import check_at_least, check_number, check_one_of, check_positive, check_within

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
        if self.method == "none" and self.epsilon != GrayingConfig.epsilon:
            raise ValueError(
                f"graying.epsilon is {self.epsilon}, but graying.method is none; say graying.method dct or svd"
            )


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """With which weights the blocks begin; alpha, beta, c, temperature: one number, or one for each block."""

    method: Literal["default", "skipless", "mimetic"] = "default"
    """default: timm's; skipless: Cutting the Skip; mimetic: Trockman & Kolter."""
    alpha: tuple[float, ...] = (2.0,)
    """Of W_Q W_Kᵀ ≈ αZ + βI (skipless)."""
    beta: tuple[float, ...] = (0.6,)
    """Of W_Q W_Kᵀ ≈ αZ + βI (skipless)."""
    c: tuple[float, ...] = (3.0,)
    """W_V and W_O are c times orthogonal (skipless)."""
    z: Literal["normal", "uniform"] = "normal"
    """Entries of Z (skipless)."""
    temperature: tuple[float, ...] = (1.0,)
    """Factor on the logits, folded into W_Q (skipless)."""
    positions: float | None = None
    """Standard deviation of the position embeddings, drawn anew; none: they stay timm's (skipless)."""
    calibrate: bool = False
    """Find the temperatures on the pictures of the monitor, so that attention stays diagonal over depth (skipless)."""

    def __post_init__(self) -> None:
        check_one_of("init.method", self.method, ("default", "skipless", "mimetic"))
        check_one_of("init.z", self.z, ("normal", "uniform"))
        for name in ("alpha", "beta", "c", "temperature"):
            values = getattr(self, name)
            if not values:
                raise ValueError(f"init.{name} is empty; give one number, or one for each block")
            for value in values:
                check_number(f"init.{name}", value, positive=name in ("c", "temperature"))
        if self.positions is not None:
            check_number("init.positions", self.positions, positive=True)
        if self.calibrate and self.temperature != (1.0,):
            raise ValueError(
                f"init.calibrate finds what init.temperature {self.temperature} sets; leave one of them out"
            )
        if self.method != "skipless" and (changed := _changed(self)):
            raise ValueError(
                f"init.{changed} is {getattr(self, changed)}, which only the skipless initialization has; "
                "say init.method skipless"
            )


def _changed(config: InitConfig) -> str:
    fields = (field for field in dataclasses.fields(config) if field.name != "method")
    return next((field.name for field in fields if getattr(config, field.name) != field.default), "")


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
    anneal_skips: float = 0.0
    """Share of the run over which the gain of the skips that are cut falls from 1 to 0; 0: without them at once."""
    graying: GrayingConfig = GrayingConfig()
    activation: Literal["gelu", "centred-gelu", "tat"] = "gelu"
    """Of the MLPs: gelu is the model's own; centred-gelu and tat keep tokens apart."""
    init: InitConfig = InitConfig()

    def __post_init__(self) -> None:
        check_at_least("model.image_size", self.image_size, 1, example=224)
        if self.patch_size is not None:
            check_at_least("model.patch_size", self.patch_size, 1, example=16)
            if self.graying.method != "none" and self.image_size % self.patch_size:
                whole = max(1, round(self.image_size / self.patch_size)) * self.patch_size
                raise ValueError(
                    f"model.image_size is {self.image_size}, which patches of {self.patch_size} do not divide, and the "
                    f"rest would not be grayed; choose a multiple, for example {whole}, or another model.patch_size"
                )
        check_at_least("model.num_classes", self.num_classes, 0, example=10)
        check_within("model.drop_path", self.drop_path, 0, 1, brackets="[)", example=0.1)
        check_within("model.anneal_skips", self.anneal_skips, 0, 1, example=0.5)
        if self.anneal_skips:
            self._check_annealing()
        check_one_of("model.attention", self.attention, ("softmax", "linear"))
        check_one_of("model.activation", self.activation, ("gelu", "centred-gelu", "tat"))
        if self.k is not None:
            check_positive("model.k", self.k, example=16)
            if self.attention != "linear":
                raise ValueError(f"model.k is {self.k}, which only linear attention has; say model.attention linear")
        names = [name for name, _ in self.options]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"model.options has {repeated[0]!r} twice; give it once")
        if (given := dict(self.options).get("num_classes", self.num_classes)) != self.num_classes:
            # it would win against the field, which is what the pictures are checked against
            raise ValueError(f"model.options has num_classes {given}; say it with model.num_classes")

    def _check_annealing(self) -> None:
        if self.cut == "no":
            raise ValueError(
                f"model.anneal_skips is {self.anneal_skips}, but no skips are cut; "
                "say model.cut_attention_skips, model.cut_mlp_skips or both"
            )
        if self.drop_path:
            raise ValueError(
                f"model.anneal_skips is {self.anneal_skips} with model.drop_path {self.drop_path}, which drops "
                "branches that soon have no skip beside them; say model.drop_path 0"
            )

    @property
    def cut(self) -> str:
        """Which skips it is trained without, in the words of `wellcond diagnose --cut`."""
        words = {(True, True): "both", (True, False): "attention", (False, True): "mlp"}
        return words.get((self.cut_attention_skips, self.cut_mlp_skips), "no")
