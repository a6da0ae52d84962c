"""How it is trained. One TrainConfig is one experiment: with the step it decides every number of a run."""

from dataclasses import dataclass
from typing import Literal

from .along import AlongConfig
from .checks import check_at_least, check_one_of, check_positive, check_within
from .data import AugmentConfig, DataConfig
from .model import ModelConfig
from .objectives import DINOConfig, MAEConfig

# Fields that do not say what is trained, only where, how fast and how it is kept: a run resumes with others.
MAY_CHANGE = frozenset(
    {
        "along.batch_size",
        "data.cache",
        "data.resident",
        "data.workers",
        "checkpoint_every",
        "compile",
        "device",
        "graph",
        "keep",
        "max_bad_steps",
        "optim.shard",
        "parallel",
        "short_attention",
        "tensorboard",
    }
)

_MAE, _DINO, _ALONG = MAEConfig(), DINOConfig(), AlongConfig()


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer and its schedule."""

    name: Literal["adamw", "muon", "soap"] = "adamw"
    """adamw; muon for the matrices of the blocks and adamw for the rest; soap: Adam in Shampoo's eigenbasis
    (its authors use betas 0.95 0.95)."""
    lr: float = 1e-3
    """Learning rate at the end of the warm-up."""
    min_lr: float = 1e-6
    """Learning rate at the end."""
    weight_decay: float = 0.05
    """Decoupled weight decay of matrices; norms, biases, tokens and positions have none."""
    weight_decay_end: float | None = None
    """Weight decay at the end, reached by a cosine; none: it stays."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the two moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    clip: float | None = None
    """Largest norm of the whole gradient; none: no clipping."""
    warmup_epochs: float = 0.0
    """Epochs of linear warm-up."""
    layer_decay: float = 1.0
    """The learning rate of each block is this times that of the next."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """After the warm-up: cosine to min-lr, or constant."""
    precondition_frequency: int = 10
    """soap: steps between refreshes of an eigenbasis; the bases take turns."""
    max_precondition_dim: int = 10_000
    """soap: sides of a matrix longer than this are not rotated."""
    refresh: Literal["qr", "eigh"] = "qr"
    """soap: a power step and QR, or a full eigendecomposition (slower: every 100 steps)."""
    shard: bool = True
    """soap, several processes: each keeps the state of a share of the weights, and sends them round; false: of all."""

    def __post_init__(self) -> None:
        check_one_of("optim.name", self.name, ("adamw", "muon", "soap"))
        check_positive("optim.lr", self.lr, example=1e-3)
        check_within("optim.min_lr", self.min_lr, 0, self.lr)
        check_at_least("optim.weight_decay", self.weight_decay, 0, example=0.05)
        if self.weight_decay_end is not None:
            check_at_least("optim.weight_decay_end", self.weight_decay_end, 0, example=0.4)
        for beta in self.betas:
            check_within("optim.betas", beta, 0, 1, brackets="[)", example=0.9)
        check_positive("optim.eps", self.eps, example=1e-8)
        if self.clip is not None:
            check_positive("optim.clip", self.clip, example=1.0)
        check_at_least("optim.warmup_epochs", self.warmup_epochs, 0)
        check_within("optim.layer_decay", self.layer_decay, 0, 1, brackets="(]", example=0.65)
        check_one_of("optim.schedule", self.schedule, ("cosine", "constant"))
        check_at_least("optim.precondition_frequency", self.precondition_frequency, 1, example=10)
        check_at_least("optim.max_precondition_dim", self.max_precondition_dim, 0, example=10_000)
        check_one_of("optim.refresh", self.refresh, ("qr", "eigh"))
        if self.name != "soap" and (changed := next((name for name in _OF_SOAP if _changed(self, name)), "")):
            raise ValueError(f"optim.{changed} is {getattr(self, changed)}, which only soap has; say optim.name soap")


_OF_SOAP = ("precondition_frequency", "max_precondition_dim", "refresh")


def _changed(config: OptimConfig, name: str) -> bool:
    return getattr(config, name) != getattr(OptimConfig, name)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Train one model; a run directory that exists is resumed."""

    recipe: str = "custom"
    """Name of the recipe that this config came from."""
    model: ModelConfig
    data: DataConfig
    optim: OptimConfig = OptimConfig()
    objective: Literal["supervised", "mae", "dino"] = "supervised"
    """What is minimised: supervised, or without labels mae or dino."""
    mae: MAEConfig = _MAE
    dino: DINOConfig = _DINO
    pretrained: str | None = None
    """A run whose backbone this one starts from, e.g. of mae or dino; none: fresh weights."""
    epochs: int
    """How often every sample is seen."""
    batch_size: int
    """Images in a step, over all processes and accumulated chunks."""
    accumulate: int = 1
    """Chunks of a process's batch whose gradients are added up, where it does not fit at once."""
    seed: int = 0
    """Seed of weights, order and augmentation."""
    precision: Literal["bf16", "float32", "float64"] = "bf16"
    """bf16: float32 weights, autocast to bfloat16."""
    compile: bool = False
    """Compile the model and the augmentation, where there is a GPU."""
    graph: Literal["auto", "on", "off"] = "auto"
    """The whole step as one CUDA graph: auto where it can be captured."""
    short_attention: Literal["auto", "on", "off"] = "auto"
    """Kernels of our own for attention of up to 96 tokens in half precision: auto on Hopper GPUs, where they are timed;
    on: on every GPU from Ampere on."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated and loaded."""
    along: AlongConfig = _ALONG
    evaluate_every: int = 1
    """Epochs between evaluations; 0: only at the end."""
    log_every: int = 50
    """Steps between rows of metrics.jsonl."""
    monitor_every: int = 0
    """Epochs between measurements of the conditioning of every block; 0: none."""
    monitor_images: int = 16
    """Images that the conditioning is measured on."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; there is one at the end and when asked to stop, too."""
    keep: int = 2
    """How many checkpoints are kept."""
    deterministic: bool = False
    """Only kernels that give the same bits again (on a GPU slower; on a CPU they always do)."""
    max_bad_steps: int = 10
    """So many steps in a row without finite loss and gradient: back to the last checkpoint once, then stop."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where there is one."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: ddp copies the model to every process, fsdp shards it."""
    tensorboard: bool = False
    """Also write TensorBoard's event files (needs the extra tensorboard)."""

    def __post_init__(self) -> None:
        if not self.recipe:
            raise ValueError("recipe is empty; name it, for example custom")
        if self.model.image_size != self.data.image_size:
            raise ValueError(
                f"model.image_size is {self.model.image_size} and data.image_size is {self.data.image_size}; "
                "give both the same"
            )
        check_one_of("objective", self.objective, ("supervised", "mae", "dino"))
        check_one_of("precision", self.precision, ("bf16", "float32", "float64"))
        check_one_of("graph", self.graph, ("auto", "on", "off"))
        check_one_of("short_attention", self.short_attention, ("auto", "on", "off"))
        check_one_of("device", self.device, ("auto", "cpu", "cuda"))
        check_one_of("parallel", self.parallel, ("ddp", "fsdp"))
        for name in ("epochs", "batch_size", "accumulate", "log_every", "checkpoint_every", "keep", "max_bad_steps"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("seed", "evaluate_every", "monitor_every"):
            check_at_least(name, getattr(self, name), 0)
        check_at_least("monitor_images", self.monitor_images, 1, example=16)
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size is {self.batch_size}, which accumulate {self.accumulate} does not divide; "
                f"the nearest batch_size is {max(1, round(self.batch_size / self.accumulate)) * self.accumulate}"
            )
        if self.ema is not None:
            check_within("ema", self.ema, 0, 1, brackets="()", example=0.9999)
        if self.optim.warmup_epochs > self.epochs:
            raise ValueError(
                f"optim.warmup_epochs is {self.optim.warmup_epochs} of {self.epochs} epochs; warm up for fewer"
            )
        self._check_objective()

    def _check_objective(self) -> None:
        """What an objective asks of the rest, and that no option is given that does nothing."""
        model, augment, objective = self.model, self.data.augment, self.objective
        for name, default in (("mae", _MAE), ("dino", _DINO)):
            if objective != name and getattr(self, name) != default:
                raise ValueError(f"{name} has options, but the objective is {objective}; say objective {name}")
        if objective == "supervised":
            check_at_least("model.num_classes", model.num_classes, 1, example=10)
            return
        if model.num_classes:
            raise ValueError(
                f"objective {objective} has no classes, but model.num_classes is {model.num_classes}; use 0"
            )
        if model.patch_size is None or model.image_size % model.patch_size:
            side = model.image_size
            fitting = max((p for p in range(1, min(16, side // 2) + 1) if side % p == 0), default=1)
            raise ValueError(
                f"objective {objective} needs model.patch_size, a divisor of {side} pixels, and it is "
                f"{model.patch_size}; say it, for example {fitting}"
            )
        if objective == "mae" and (augment.mixup or augment.cutmix or augment.smoothing):
            raise ValueError(
                "data.augment has mixup, cutmix or smoothing, which are for labels; objective mae has none"
            )
        if objective == "mae" and self.mae.visible and model.graying.method == "none":
            raise ValueError("mae.visible says what is grayed, but model.graying.method is 'none'; say dct or svd")
        if objective == "dino":
            self._check_dino()

    def _check_dino(self) -> None:
        size, patch = self.dino.local_size, self.model.patch_size
        if self.dino.local_crops and size % (patch or 1):
            raise ValueError(f"dino.local_size is {size}, which patches of {patch} do not divide; choose a multiple")
        if self.data.augment != AugmentConfig():
            raise ValueError("objective dino has crops and colours of its own (dino.*); leave data.augment out")
        if self.ema is not None:
            raise ValueError(f"ema is {self.ema}, but dino's teacher is the average already; use dino.momentum")
