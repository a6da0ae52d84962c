"""``wellcond bench train`` → ``results/bench-train.json``: what a training loop costs around its step.

    vit-tiny-32   ViT-Tiny/4 on CIFAR-10, batch 512: the loop against its bare step on a constant batch; and with our
                  own attention kernels (`short_attention`) against torch's
    vit-tiny-64   ViT-Tiny/8 on Tiny-ImageNet, batch 1024: the same; and with DCT and SVD graying against without
    vit-base-224  ViT-B/16 with DeiT's augmentation, batch 256: the same, also with streamed pictures
    dino-64       DINO of ViT-Tiny/8 on Tiny-ImageNet, batch 512: the loop with its ten crops against its bare step
    pipeline      images a second on CIFAR-10 against a timm pipeline (16 workers, AMP, compiled), whole epochs

``--data`` is Tiny-ImageNet, which also stands in for ImageNet (enlarged to 256 px when it is decoded); ``--cifar`` is
CIFAR-10: each a folder of parquet shards or of images. Configs are those of the recipes. Only one kind of machine
counts, so a full run needs a GPU; a quick one shows on any machine that it runs.
"""

import tempfile
from pathlib import Path
from typing import Any

from ..config import BenchConfig
from .bars import Bar
from .command import Part, check_device, chosen_parts, main, run_parts
from .variants import ERROR_BARS

PARTS = ["vit-tiny-32", "vit-tiny-64", "vit-base-224", "dino-64", "pipeline"]
ON_CIFAR = {"vit-tiny-32", "pipeline"}
SEED = 0


def _share(part: str, model: str, limit: float) -> Bar:
    name = f"{model}: training loop, share of the bare step's speed"
    return Bar(name, part, "cuda", "share", limit, "at least", where={"kind": "loop"})


def _grayed(part: str, model: str, **limits: float) -> list[Bar]:
    bars = []
    for method, limit in limits.items():
        name = f"{model}: training loop with {method.upper()} graying, over the loop without"
        bars.append(Bar(name, part, "cuda", "ratio", limit, where={"method": method}))
    frobenius, log_sigma = ERROR_BARS["fast"]
    fast = {"precision": "fast"}
    bars.append(Bar(f"{model}, fast: relative Frobenius error", part, "cuda", "error_fro", frobenius, where=fast))
    return [*bars, Bar(f"{model}, fast: |Δ log σ|", part, "cuda", "error_log_sigma", log_sigma, where=fast)]


BARS = (
    _share("vit-tiny-32", "ViT-Tiny/4, 32 px", 0.95),
    Bar(
        "ViT-Tiny/4, 32 px: training loop with attention kernels of our own, over torch's",
        "vit-tiny-32", "cuda", "ratio", 1.0, where={"kind": "attention"},
    ),
    _share("vit-tiny-64", "ViT-Tiny/8, 64 px", 0.95),
    _share("vit-base-224", "ViT-B/16, 224 px, from a uint8 cache, resident and streamed", 0.97),
    _share("dino-64", "DINO, ViT-Tiny/8, 64 px, multi-crop", 0.90),
    *_grayed("vit-tiny-64", "ViT-Tiny/8, 64 px", dct=1.03, svd=1.15),
    *_grayed("vit-base-224", "ViT-B/16, 224 px", dct=1.01, svd=1.10),
    Bar(
        "CIFAR-10, ViT-Tiny/4: images a second, times a timm pipeline's",
        "pipeline", "cuda", "speedup", 2.5, "at least",
    ),
)  # fmt: skip


def run(config: BenchConfig, *, parts: str | None = None, commit: str | None = None) -> dict[str, Any]:
    """Measure ``parts`` ("vit-tiny-64,pipeline"; None: all) and merge them into the results file."""
    check_device(config.device)
    chosen = chosen_parts(parts, PARTS, PARTS)
    if not config.quick:
        _check_full(config, chosen)
    with tempfile.TemporaryDirectory(prefix="wellcond-bench-") as folder:

        def measure(part: str) -> Part:
            return _measure(part, config, Path(folder))

        return run_parts(config, chosen, measure, bars=BARS, commit=commit, parts=parts)


def _check_full(config: BenchConfig, chosen: list[str]) -> None:
    if config.device == "cpu":
        raise ValueError("bench train needs a GPU: say --device cuda, or --quick to see that it runs")
    for part in chosen:
        if (config.cifar if part in ON_CIFAR else config.data) is None:
            what = "CIFAR-10: say --cifar FOLDER" if part in ON_CIFAR else "Tiny-ImageNet: say --data FOLDER"
            raise ValueError(f"part {part} needs {what}, or leave it out with --parts")


def _measure(part: str, config: BenchConfig, folder: Path) -> Part:
    from . import loops, pipeline

    options: dict[str, Any] = {"device": config.device, "quick": config.quick, "folder": folder}
    data = config.cifar if part in ON_CIFAR else config.data
    rows, settings = pipeline.measure(data, **options) if part == "pipeline" else loops.measure(part, data, **options)
    return rows, settings | {"seeds": {"weights": SEED, "order": SEED, "bootstrap": SEED}}


if __name__ == "__main__":
    main(run, "train", PARTS)
