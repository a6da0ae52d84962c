"""Every config dataclass, and each one ⇄ JSON. Floor 0: plain data, no torch.

A config is complete and frozen: what is written to `config.json` is all that a verb needs to run again.
The docstring under a field is its help text on the command line.

>>> config = GrayConfig(source=Path("cat.jpg"), method="svd", epsilon=0.6)
>>> from_json(to_json(config), GrayConfig) == config
True
"""

import dataclasses
import difflib
import json
import math
import shlex
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

Config = TypeVar("Config")


@dataclass(frozen=True, kw_only=True)
class GrayConfig:
    """Gray a photo, or a folder of photos: pictures, before/after strips, κ before and after.

    κ is that of the ImageNet-normalised, unclipped tokens; the saved picture is clipped to 0 … 255.
    """

    source: Path
    """The photo, or a folder of photos."""
    out: Path | None = None
    """The grayed picture, or the output folder; none: beside the source."""
    method: Literal["svd", "dct"] = "dct"
    """svd raises small singular values, dct small cosine coefficients, relative to the largest."""
    epsilon: float = 0.95
    """Exponent in (0, 1]: 1 changes nothing, smaller is grayer."""
    patch_size: int = 16
    """Side of a patch in pixels; a patch is a token."""
    order: Literal["rows", "channels"] = "rows"
    """Order inside a patch: (row, column, channel) or (channel, row, column)."""
    rescale: bool | Literal["contrast"] = True
    """True keeps the largest value, False is the paper's literal algorithm, contrast keeps the norm."""
    precision: Literal["exact", "fast"] = "exact"
    """exact: error up to 1e-5; fast: up to 1e-3, as in training."""
    crop: bool = False
    """Cut the sides to the nearest multiple of the patch, from the centre."""
    resize: int | None = None
    """Bring the shorter side to this many pixels and cut the centre square."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"epsilon is {self.epsilon}; choose it in (0, 1], for example 0.95")
        if self.patch_size < 1:
            raise ValueError(f"patch size is {self.patch_size}; choose 1 or more, for example 16")
        if self.resize is not None and self.resize < 1:
            example = max(1, round(224 / self.patch_size)) * self.patch_size
            raise ValueError(
                f"resize is {self.resize}; choose a positive multiple of the patch size {self.patch_size}, "
                f"for example {example}"
            )
        if self.resize is not None and self.resize % self.patch_size:
            near = max(1, round(self.resize / self.patch_size)) * self.patch_size
            raise ValueError(
                f"resize is {self.resize}, not a multiple of the patch size {self.patch_size}; "
                f"the nearest one is {near}"
            )


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Gray a few generated pictures and show κ before and after in one HTML page."""

    out: Path = Path("demo")
    """Folder of report.html."""
    count: int = 6
    """How many pictures."""
    size: int = 224
    """Side of a picture in pixels."""
    seed: int = 0
    """Seed of the pictures."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}; choose 1 or more")
        if self.size < 32 or self.size % 16:
            raise ValueError(f"size is {self.size}; choose a multiple of 16 from 32 on, for example 224")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; choose 0 or more")


@dataclass(frozen=True, kw_only=True)
class DiagnoseConfig:
    """Measure every block of a timm model: κ by layer, with and without skips.

    wellcond diagnose vit_tiny_patch16_224 --data photos/ --weights model.safetensors
    """

    model: str
    """A vision transformer of timm: vit_tiny_patch16_224."""
    data: str = "procedural"
    """Parquet file, folder of them or of images."""
    images: int = 64
    """How many images, spread over the data."""
    weights: Path | None = None
    """A .safetensors or .pth file; none: random."""
    pretrained: bool = False
    """timm's own weights."""
    out: Path = Path("diagnosis")
    """Folder of report.html, diagnosis.json."""
    html: Path | None = None
    """The page alone, here."""
    json: Path | None = None
    """The numbers alone, here."""
    compare: Path | None = None
    """JSON of another diagnosis, to set beside."""
    fail_above: float | None = None
    """Exit 1 if log κ of any site is above."""
    tokens: Literal["all", "patch"] = "all"
    """patch: without class and register tokens."""
    no_jacobian: bool = False
    """Leave the Jacobians out."""
    target: float | None = None
    """log κ that the advised ε should reach."""
    gray: Literal["no", "svd", "dct"] = "no"
    """Gray the model's input."""
    epsilon: float = 0.95
    """Exponent of --gray."""
    cut: Literal["no", "attention", "mlp", "both"] = "no"
    """Cut these skips."""
    image_size: int | None = None
    """Side in pixels; none: the model's own."""
    num_classes: int | None = None
    """None: those of the weights, or timm's."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: CUDA where there is one."""
    batch_size: int = 16
    """Images in memory at once."""
    double: bool = False
    """Run the model in float64."""
    seed: int = 0
    """Of random weights and choice of images."""

    def __post_init__(self) -> None:
        for name in ("images", "batch_size", "image_size", "num_classes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name.replace('_', ' ')} is {value}; choose 1 or more")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; choose 0 or more")
        for name, example in (("fail_above", 12), ("target", 6)):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name.replace('_', ' ')} is {value}; choose a log κ, for example {example}")
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"epsilon is {self.epsilon}; choose it in (0, 1], for example 0.95")
        if self.gray == "no" and self.epsilon != 0.95:
            raise ValueError(f"epsilon is {self.epsilon}, but nothing is grayed; add --gray svd or --gray dct")
        if self.weights is not None and self.pretrained:
            raise ValueError(f"weights is {str(self.weights)!r}, and pretrained asks for timm's; choose one of them")


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Time graying or spectra against what a user would pick otherwise; writes bench-*.json."""

    what: Literal["graying", "spectral"]
    """What to time: graying or spectral."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to time it."""
    data: Path | None = None
    """Real images: a parquet file, a folder of them, or an image folder; none: procedural ones."""
    out: Path = Path("results")
    """Folder of the JSON files."""
    quick: bool = False
    """Few repeats and small batches: does it run? Not for publishing."""


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Augmentation of a batch on the device, keyed by (seed, epoch, sample)."""

    crop: Literal["none", "pad", "resized"] = "none"
    """none; pad: shift by up to `padding`; resized: random area and aspect."""
    padding: int = 4
    """Pixels of crop pad."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Range of the area of crop resized."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Range of the aspect of crop resized."""
    flip: bool = True
    """Mirror half of the images."""
    jitter: float = 0.0
    """Strength of brightness, contrast and saturation jitter."""
    randaugment: str | None = None
    """RandAugment in timm's words, e.g. rand-m9-mstd0.5-inc1."""
    mixup: float = 0.0
    """Mixup's alpha; 0 is off."""
    cutmix: float = 0.0
    """CutMix's alpha; 0 is off."""
    mix_probability: float = 1.0
    """How often mixup or CutMix is applied."""
    erase: float = 0.0
    """Probability of erasing a rectangle."""
    repeats: int = 1
    """Repeated augmentation: how often each sample comes in a batch."""
    smoothing: float = 0.0
    """Label smoothing."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where images come from, and how they reach the device."""

    train: str
    """Source of the training images: procedural, a parquet file or folder, an image folder, cifar10, …"""
    val: str
    """Source of the validation images."""
    image_size: int
    """Side of the images in pixels."""
    cache: Path | None = None
    """Folder of the decoded uint8 cache; none: the user's cache folder."""
    resident: Literal["auto", "yes", "no"] = "auto"
    """Keep all images on the device: auto where they fit."""
    workers: int = 4
    """Threads that read images which are not resident."""
    augment: AugmentConfig = AugmentConfig()
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Mean of each channel, of pixels in 0 … 1."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Standard deviation of each channel."""


def to_json(config: Any) -> str:
    """One config as JSON text: sorted as declared, paths as text."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise ValueError(f"to_json takes a config, not {config!r}")
    return json.dumps(dataclasses.asdict(config), indent=2, default=_encode, allow_nan=False) + "\n"


def to_command(verb: str, config: Any) -> str:
    """The command line that gives this config again; defaults are left out.

    >>> to_command("gray", GrayConfig(source=Path("a b.jpg"), epsilon=0.6))
    "wellcond gray 'a b.jpg' --epsilon 0.6"
    """
    words = ["wellcond", verb]
    for entry in dataclasses.fields(config):
        value, option = getattr(config, entry.name), entry.name.replace("_", "-")
        if entry.default is dataclasses.MISSING:
            words.append(str(value))
        elif value == entry.default:
            continue
        elif entry.type is bool:  # a switch; none is on by default
            words.append(f"--{option}")
        else:
            words += [f"--{option}", str(value)]
    return shlex.join(words)


def from_json(text: str, kind: type[Config]) -> Config:
    """The config of class `kind` that `to_json` wrote; missing fields take their defaults."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    return decode(value, kind, kind.__name__)


def _encode(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise ValueError(f"a config cannot hold {value!r}")


def decode(value: Any, kind: Any, where: str) -> Any:
    """`value` from JSON as the type `kind`, a dataclass or what one is made of; `where` names the field in errors."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for option in arguments:
            try:
                return decode(value, option, where)
            except ValueError:
                continue
    elif origin is Literal:
        if any(value == option and type(value) is type(option) for option in arguments):
            return value
        raise ValueError(f"{where} is {value!r}; choose one of {', '.join(map(repr, arguments))}")
    elif origin in (tuple, list) and isinstance(value, list):
        if origin is list or Ellipsis in arguments or len(value) == len(arguments):
            return origin(decode(item, arguments[0], f"{where}[{i}]") for i, item in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return {name: decode(item, arguments[1], f"{where}[{name!r}]") for name, item in value.items()}
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _decode_dataclass(value, typing.cast(type, kind), where)
    elif kind is Path and isinstance(value, str):
        return Path(value)
    elif kind is float and type(value) in (int, float):
        return float(value)
    elif isinstance(kind, type) and type(value) is kind:  # type(), not isinstance: True is no int here
        return value
    expected = kind if origin else getattr(kind, "__name__", kind)
    raise ValueError(f"{where} is {_brief(value)}; expected {expected}")


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]} …"


def _decode_dataclass(value: dict[str, Any], kind: type, where: str) -> Any:
    hints = typing.get_type_hints(kind)
    for name in value:
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(hints)}"
            raise ValueError(f"{where} has no field {name!r}{hint}")
    required = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - set(value)):
        raise ValueError(f"{where} needs {', '.join(missing)}")
    return kind(**{name: decode(item, hints[name], f"{where}.{name}") for name, item in value.items()})
