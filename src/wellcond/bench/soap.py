"""``wellcond bench soap`` → ``results/bench-soap.json``: what SOAP costs.

    optimizer  its step on the parameters of a ViT, alone, against that of ``pytorch-optimizer``; do they agree?
    training   whole training steps with SOAP against the same with AdamW
    refresh    one new eigenbasis by several ways

On CUDA: ViT-B/16 (86 M parameters), whole steps with 512 images of 224 px, bf16, compiled, a CUDA graph where possible;
on the CPU: ViT-Tiny's parameters. Bases are refreshed every 10 steps, so times are those of 10 steps in a row: some
refresh nothing with ``pytorch-optimizer``, and one everything. What was predicted is in `wellcond.optim.soap`.
"""

from typing import Any

from ..config import BenchConfig
from .bars import Bar
from .command import Part, check_device, chosen_parts, main, run_parts
from .images import load_pictures, normalise

PARTS = ["optimizer", "training", "refresh"]
SEED = 0
SEEDS = {"images": SEED, "weights": SEED, "gradients": SEED, "bootstrap": SEED}
MODELS = {"cuda": "vit_base_patch16_224", "cpu": "vit_tiny_patch16_224"}
ROUNDS = {"cuda": 5, "cpu": 3}

BARS = (
    Bar(
        "SOAP's step on ViT-B's parameters, times faster than pytorch-optimizer's",
        "optimizer", "cuda", "speedup", 3, "at least", where={"default": True},
    ),
    Bar(
        "its losses against pytorch-optimizer's, 200 steps, refreshed at the same steps",
        "optimizer", "cuda", "error_loss", 1e-2, where={"alike": True},
    ),
    Bar(
        "ViT-B/16 training step with SOAP, batch 512, over AdamW's",
        "training", "cuda", "ratio", 1.3, where={"optimizer": "soap", "default": True},
    ),
)  # fmt: skip


def run(config: BenchConfig, *, parts: str | None = None, commit: str | None = None) -> dict[str, Any]:
    """Measure ``parts`` ("optimizer"; None: all) and merge them into the results file."""
    check_device(config.device)
    chosen = chosen_parts(parts, PARTS, PARTS if config.device == "cuda" or config.quick else ["optimizer", "refresh"])
    return run_parts(config, chosen, lambda part: _measure(part, config), bars=BARS, commit=commit, parts=parts)


def _measure(part: str, config: BenchConfig) -> Part:
    model = "test_vit" if config.quick else MODELS[config.device]
    rounds = 2 if config.quick else ROUNDS[config.device]
    settings = {"images": "none", "seeds": SEEDS, "model": model}
    if part == "optimizer":
        from . import soap_optimizer

        shapes, num_losses = soap_optimizer.shapes_of(model), 200
        if config.quick:
            shapes, num_losses = shapes[:9], 20
        return soap_optimizer.rows(shapes, config.device, rounds=rounds, num_losses=num_losses), settings
    if part == "refresh":
        from . import soap_refresh

        return soap_refresh.rows(config.device, rounds=rounds, quick=config.quick), settings
    from . import soap_training

    work = soap_training.workload(config.device, quick=config.quick)
    pictures = load_pictures(config.data, count=work.batch_size, size=work.data.image_size, seed=SEED)
    images = normalise(pictures.pixels, config.device)
    found = soap_training.rows(work, images, rounds=rounds)
    return found, settings | {"images": pictures.source, "model": work.model.name, "num_images": len(images)}


if __name__ == "__main__":
    main(run, "soap", PARTS)
