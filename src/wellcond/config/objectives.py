"""What is learned without labels: masked autoencoding and self-distillation."""

from dataclasses import dataclass

from .checks import check_at_least, check_positive, check_within


@dataclass(frozen=True, kw_only=True)
class MAEConfig:
    """Masked autoencoder (He et al., 2021): hide patches, and paint them from the others."""

    mask: float = 0.75
    """Share of the patches that is hidden."""
    decoder_depth: int = 8
    """Blocks of the decoder, which always has its skips."""
    decoder_width: int = 512
    """Width of the decoder; a multiple of 4."""
    decoder_heads: int = 16
    """Attention heads of the decoder."""
    normalise: bool = True
    """Paint every patch with mean 0 and deviation 1."""
    visible: bool = False
    """Gray the visible patches by themselves, in place of the whole image before masking."""
    long_skips: bool = False
    """Skips from blocks of the encoder to those of the decoder, for encoders without skips of their own."""

    def __post_init__(self) -> None:
        check_within("mae.mask", self.mask, 0, 1, brackets="()", example=0.75)
        for name in ("decoder_depth", "decoder_width", "decoder_heads"):
            check_at_least(f"mae.{name}", getattr(self, name), 1)
        if self.decoder_width % 4 or self.decoder_width % self.decoder_heads:
            raise ValueError(
                f"mae.decoder_width is {self.decoder_width}; choose a multiple of 4 (sine positions) and of the "
                f"{self.decoder_heads} heads"
            )


@dataclass(frozen=True, kw_only=True)
class DINOConfig:
    """Self-distillation without labels (Caron et al., 2021): agree with your own average on another crop."""

    out_dim: int = 65536
    """How many prototypes the head has."""
    hidden: int = 2048
    """Width of the head."""
    bottleneck: int = 256
    """Width of the head before its last layer."""
    student_temperature: float = 0.1
    """Temperature of the student's answers."""
    teacher_temperature: float = 0.07
    """Temperature of the teacher's answers after its warm-up; lower is sharper."""
    start_temperature: float = 0.04
    """Temperature of the teacher's answers at the beginning."""
    temperature_epochs: float = 30.0
    """Epochs from the one to the other."""
    momentum: float = 0.996
    """How much of itself the teacher keeps in a step, at the beginning; 1 at the end."""
    centre_momentum: float = 0.9
    """How much of itself the centre of the teacher's answers keeps in a step."""
    freeze_epochs: float = 1.0
    """Epochs in which the last layer stays as it is."""
    local_crops: int = 8
    """Small crops of each image, beside the two large ones."""
    local_size: int = 96
    """Side of a small crop in pixels."""
    global_scale: tuple[float, float] = (0.4, 1.0)
    """Range of the area of a large crop."""
    local_scale: tuple[float, float] = (0.05, 0.4)
    """Range of the area of a small crop."""

    def __post_init__(self) -> None:
        check_at_least("dino.out_dim", self.out_dim, 2, example=65536)
        for name in ("hidden", "bottleneck", "local_size"):
            check_at_least(f"dino.{name}", getattr(self, name), 1)
        for name in ("student_temperature", "teacher_temperature", "start_temperature"):
            check_positive(f"dino.{name}", getattr(self, name), example=0.07)
        for name in ("temperature_epochs", "freeze_epochs", "local_crops"):
            check_at_least(f"dino.{name}", getattr(self, name), 0)
        check_within("dino.momentum", self.momentum, 0, 1, example=0.996)
        check_within("dino.centre_momentum", self.centre_momentum, 0, 1, brackets="[)", example=0.9)
        for name in ("global_scale", "local_scale"):
            low, high = getattr(self, name)
            if not 0 < low <= high <= 1:
                raise ValueError(f"dino.{name} is ({low}, {high}); give a lower and an upper bound in 0 … 1")
