"""The sizes that are measured: the two training steps of the README, and small ones that show they run."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Training:
    """A plain ViT, its pictures, and how its step runs."""

    title: str
    size: int
    patch_size: int
    embed_dim: int
    depth: int
    num_heads: int
    num_classes: int
    batch: int
    num_batches: int = 4
    rounds: int = 25
    num_error_images: int = 32
    compiled: bool = True
    captured: bool = False


@dataclass(frozen=True, kw_only=True)
class Graying:
    """A batch of pictures to gray, without a model."""

    batch: int
    size: int
    patch_size: int
    rounds: int
    num_error_images: int = 32

    @property
    def shape(self) -> str:
        return f"{self.batch}×3×{self.size}×{self.size}/{self.patch_size}"


VIT_BASE = Training(
    title="ViT-B/16, 224 px, batch 512, bf16 autocast, compiled: forward, backward, fused AdamW",
    size=224, patch_size=16, embed_dim=768, depth=12, num_heads=12, num_classes=1000, batch=512, rounds=40,
)  # fmt: skip
VIT_TINY = Training(
    title="ViT-Tiny/8, 64 px, batch 1024, bf16 autocast, compiled, the whole step as one CUDA graph",
    size=64, patch_size=8, embed_dim=192, depth=12, num_heads=3, num_classes=200, batch=1024, rounds=60,
    captured=True,
)  # fmt: skip
SMALL = {"embed_dim": 48, "depth": 1, "num_heads": 3, "num_classes": 10, "batch": 4, "num_batches": 2}
SHORT = {"rounds": 3, "num_error_images": 4}


def training(part: str, *, device: str, quick: bool) -> Training:
    """Part a (ViT-B) or b (ViT-Tiny); neither compiled nor captured on the CPU."""
    full = {"a": VIT_BASE, "b": VIT_TINY}[part]
    if quick:
        title = f"a very small ViT in place of {full.title}"
        full = replace(full, title=title, size=64, compiled=False, **SMALL, **SHORT)
    if device == "cpu":
        full = replace(full, title=f"{full.title} (eager, float32, on the CPU)", compiled=False, captured=False)
    return full


def graying(part: str, *, device: str, quick: bool) -> list[Graying]:
    """The batches of part c, and for part d those with a long side, too: n = 3136, and d = 3072."""
    if quick:
        works = [Graying(batch=2, size=64, patch_size=16, **SHORT), Graying(batch=4, size=32, patch_size=8, **SHORT)]
        long = [Graying(batch=2, size=64, patch_size=4, **SHORT)]
    elif device == "cpu":
        works = [Graying(batch=16, size=224, patch_size=16, rounds=9, num_error_images=16),
                 Graying(batch=64, size=64, patch_size=8, rounds=15)]  # fmt: skip
        long = [replace(works[0], patch_size=4), replace(works[0], patch_size=32)]
    else:
        works = [Graying(batch=512, size=224, patch_size=16, rounds=40),
                 Graying(batch=1024, size=64, patch_size=8, rounds=60)]  # fmt: skip
        long = [replace(works[0], patch_size=4), replace(works[0], patch_size=32)]
    return works if part == "c" else works + long
