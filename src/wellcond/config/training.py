"""How it is trained. One TrainConfig is one experiment: with the step it decides every number of a run."""

from dataclasses import dataclass
from typing import Literal

from .checks import check_at_least, check_one_of, check_positive, check_within
from .data import DataConfig
from .model import ModelConfig

# Fields that do not say what is trained, only where, how fast and how it is kept: a run resumes with others.
MAY_CHANGE = frozenset(
    {
        "data.cache",
        "data.resident",
        "data.workers",
        "checkpoint_every",
        "compile",
        "device",
        "graph",
        "keep",
        "max_bad_steps",
        "parallel",
        "tensorboard",
    }
)


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

    def __post_init__(self) -> None:
        check_one_of("optim.name", self.name, ("adamw", "muon", "soap"))
        check_positive("optim.lr", self.lr, example=1e-3)
        check_within("optim.min_lr", self.min_lr, 0, self.lr)
        check_at_least("optim.weight_decay", self.weight_decay, 0, example=0.05)
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


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Train one model; a run directory that exists is resumed."""

    recipe: str = "custom"
    """Name of the recipe that this config came from."""
    model: ModelConfig
    data: DataConfig
    optim: OptimConfig = OptimConfig()
    objective: Literal["supervised"] = "supervised"
    """What is minimised."""
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
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated and loaded."""
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
        check_one_of("objective", self.objective, ("supervised",))
        check_one_of("precision", self.precision, ("bf16", "float32", "float64"))
        check_one_of("graph", self.graph, ("auto", "on", "off"))
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
