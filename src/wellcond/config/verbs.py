"""Configs of the verbs that look and measure: gray, diagnose, report, demo, bench, recipes, reproduce."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# a typing error must not take all the memory
LARGEST = 10_000  # side of a picture in pixels
MOST_SEEDS = 1000


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
    json: bool = False
    """Print JSON instead of the table."""

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
        if self.resize is not None and self.resize > LARGEST:
            raise ValueError(f"resize is {self.resize}; choose at most {LARGEST} pixels, for example 224")


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The whole story in minutes, on a CPU, without data: gray pictures, train small ViTs with and without skips.

    The same command again continues, or shows what is there.
    """

    out: Path = Path("demo")
    """Folder of report.html and of the runs."""
    count: int = 4
    """How many pictures are grayed and shown."""
    size: int = 224
    """Side of those pictures in pixels."""
    seed: int = 0
    """Seed of the pictures and of training."""
    quick: bool = False
    """Tiny models, a few steps: does it run?"""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count is {self.count}; choose 1 or more")
        if self.size < 32 or self.size % 16:
            raise ValueError(f"size is {self.size}; choose a multiple of 16 from 32 on, for example 224")
        if self.size > LARGEST:
            raise ValueError(f"size is {self.size}; choose at most {LARGEST} pixels, for example 224")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; choose 0 or more")


@dataclass(frozen=True, kw_only=True)
class DiagnoseConfig:
    """Measure every block of a model: κ by layer, with and without skips."""

    model: str
    """Of timm, a run, or hf:NAME, hf:FOLDER."""
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
    """The numbers alone, here; no file: to stdout."""
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
    initialize: Literal["default", "skipless", "mimetic"] = "default"
    """Begin with these weights; default: timm's."""
    init: bool = False
    """Verify how it begins, instead."""
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
        if self.initialize != "default" and (self.weights is not None or self.pretrained):
            raise ValueError(
                f"initialize is {self.initialize!r}, which would replace the weights; leave one of them out"
            )
        for name, own in (("compare", None), ("target", None), ("tokens", "all")):
            if self.init and getattr(self, name) != own:
                raise ValueError(
                    f"{name} is of a whole diagnosis, and init verifies how it begins; leave one of them out"
                )


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """One offline HTML page of training runs: curves, tables, κ by epoch and block.

    Runs of one config but for the seed are averaged.
    """

    runs: tuple[Path, ...]
    """Run directories, or folders of them."""
    out: Path | None = None
    """The page; none: report.html, in the run's own directory where there is one run only."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("report needs run directories: wellcond report runs/*")


@dataclass(frozen=True, kw_only=True)
class AppConfig:
    """Try it in the browser: gray a photo, diagnose a model, watch a run train.

    Open the address that it prints; Ctrl-C ends it.
    """

    runs: Path = Path("runs")
    """The runs under this folder can be watched; no other file is served."""
    host: str = "127.0.0.1"
    """Where to listen; 0.0.0.0: for everyone on the network, and there is no password."""
    port: int = 7860
    """Port; the next free one where it is taken."""
    max_upload: int = 512
    """Largest photo or file of weights that is taken, in MB."""

    def __post_init__(self) -> None:
        if not self.host.strip():
            raise ValueError(f"host is {self.host!r}; give an address, for example 127.0.0.1")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; choose 1 to 65535, for example 7860")
        if self.max_upload < 1:
            raise ValueError(f"max upload is {self.max_upload}; choose 1 MB or more, for example 512")


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Time one of our parts against what a user would pick otherwise; writes bench-*.json."""

    what: Literal["graying", "spectral", "diagnose", "train", "soap", "tokencut", "knn"]
    """What to time: graying, spectral, diagnose, train, soap, tokencut or knn."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to time it."""
    data: Path | None = None
    """Real images: a parquet file, a folder of them, or an image folder; none: procedural ones."""
    cifar: Path | None = None
    """CIFAR-10 for train, whose other pictures (--data) are Tiny-ImageNet: a folder of parquet shards or of images."""
    out: Path = Path("results")
    """Folder of the JSON files."""
    quick: bool = False
    """Few repeats and small batches: does it run? Not for publishing."""

    def __post_init__(self) -> None:
        if self.cifar is not None and self.what != "train":
            raise ValueError(f"cifar is for bench train, and this is bench {self.what}; leave it out")


@dataclass(frozen=True, kw_only=True)
class RecipesConfig:
    """List the recipes, or show one: wellcond recipes NAME."""

    name: str | None = None
    """The recipe to show: its card and its whole config; none: a table of all."""
    json: bool = False
    """The table as JSON; with a name only its config, as a file that wellcond train takes."""


@dataclass(frozen=True, kw_only=True)
class ReproduceConfig:
    """Measure a claim of the papers over seeds; writes CLAIM.json with every run, an interval and a verdict.

    Claims that train need pictures (--data) and a GPU. Their runs are kept in --runs and go on where they were
    stopped; finished ones are in the file and are not trained again, so a claim can be gathered in portions.
    """

    claim: Literal[
        "asa-proxy",
        "asa-kappa",
        "asa-fig1b",
        "asa-fig1c",
        "asa-fig2",
        "asa-fig3-5",
        "asa-fig6",
        "asa-fig7-8",
        "asa-table1",
        "asa-table2",
        "asa-table3",
        "asa-table4",
        "asa-table5",
        "cts-rates",
        "cts-table1",
        "cts-fig1",
        "cts-fig2",
        "cts-fig3",
        "cts-dense",
        "cts-depth",
        "cts-pca",
        "cts-init-depth",
        "cts-beyond",
        "cts-gap",
    ]
    """asa-…: of Always Skip Attention; cts-…: of Cutting the Skip. A name that is none of them lists all."""
    seeds: int = 3
    """How many seeds: 0, 1, …; runs that the file holds already are kept."""
    out: Path = Path("results")
    """Folder of the JSON file."""
    html: Path | None = None
    """Also write a page with the figures."""
    again: bool = False
    """Measure all runs anew."""
    quick: bool = False
    """A small version: does it run? Not for publishing."""
    data: tuple[str, ...] = ()
    """Pictures to train on, and to look at: a folder that holds cifar10/, tiny-imagenet/, …, or NAME=PATH for each."""
    runs: Path = Path("runs")
    """Folder of the run directories of claims that train."""
    epochs: int | None = None
    """Train for so many epochs instead of the recipe's: the short version."""
    only: tuple[str, ...] = ()
    """Measure only these variants now, by name or by a part of it: cifar10, skip/soap."""
    jobs: int = 1
    """Runs at once, in processes of their own; GPUs take turns."""
    max_minutes: float | None = None
    """Begin no run that would end later than this, judged by the runs so far."""
    collect: tuple[Path, ...] = ()
    """Take finished runs of the same settings over from the results folders of other machines; measure nothing."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where claims train; auto: a GPU where there is one."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds is {self.seeds}; choose 1 or more, and 2 or more for an interval")
        if self.seeds > MOST_SEEDS:
            raise ValueError(f"seeds is {self.seeds}; choose {MOST_SEEDS} or fewer, for example 3")
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"epochs is {self.epochs}; choose 1 or more")
        if self.max_minutes is not None and not self.max_minutes > 0:
            raise ValueError(f"max minutes is {self.max_minutes}; choose more than 0, for example 25")
        if self.jobs < 1:
            raise ValueError(f"jobs is {self.jobs}; choose 1 or more")
        if self.collect and self.again:
            raise ValueError("collect takes runs over, and again measures all anew; choose one of them")
