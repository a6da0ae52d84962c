"""``wellcond bench diagnose`` → ``results/bench-diagnose.json``: what looking into every block costs.

    sites    all rows of all sites, once with attention maps and once without
    svdvals  the rows of the sites against the same rows through ``torch.linalg.svdvals``
    monitor  training with a `Monitor` at its defaults against the same without

On CUDA: ViT-B/16, 256 images of 224 px (64 for the comparison: svdvals takes tens of seconds); on the CPU: ViT-Tiny/16,
32 images (8). Random weights, real photographs, the model's forward pass included. The error is that of log κ against
float64 LAPACK on the same activations.
"""

import resource
import sys
from collections.abc import Callable
from typing import Any

from ..config import BenchConfig
from .bars import Bar
from .command import Part, check_device, chosen_parts, main, run_parts
from .images import load_pictures, normalise
from .timing import clock_for, interleave, timing_row

PARTS = ["sites", "svdvals", "monitor"]
SEED = 0
SEEDS = {"images": SEED, "weights": SEED, "bootstrap": SEED}
SIZES = {  # device → (model, images, images of the comparison, rounds)
    "cuda": ("vit_base_patch16_224", 256, 64, 7),
    "cpu": ("vit_tiny_patch16_224", 32, 8, 3),
}
QUICK = ("test_vit", 4, 2, 1)

OURS = {"ours": True}
BARS = (
    Bar("all sites of ViT-B/16, 256 images, seconds", "sites", "cuda", "seconds", 3.0, where={"attention": False}),
    Bar("all sites, times faster than through svdvals", "svdvals", "cuda", "speedup", 20, "at least", where=OURS),
    Bar("Monitor at its defaults, share of the training step", "monitor", "cuda", "share", 0.01),
    Bar("all sites of ViT-Tiny/16 on the CPU, 32 images, seconds", "sites", "cpu", "seconds", 30.0),
    Bar("the same, peak memory of the process, GiB", "sites", "cpu", "peak_memory_gib", 4.0),
    *(
        Bar(f"log κ of every site against float64, {d}", "svdvals", d, "error_log_kappa", 1e-3, where=OURS)
        for d in SIZES
    ),
)


def run(config: BenchConfig, *, parts: str | None = None, commit: str | None = None) -> dict[str, Any]:
    """Measure ``parts`` ("sites"; None: all) and merge them into the results file."""
    check_device(config.device)
    chosen = chosen_parts(parts, PARTS, PARTS if config.device == "cuda" or config.quick else PARTS[:2])
    return run_parts(config, chosen, lambda part: _measure(part, config), bars=BARS, commit=commit, parts=parts)


def _measure(part: str, config: BenchConfig) -> Part:
    import timm
    import torch

    if part == "monitor":
        return _monitor(config)
    name, count, fewer, rounds = QUICK if config.quick else SIZES[config.device]
    torch.manual_seed(SEED)
    model: Any = timm.create_model(name).to(config.device).eval()
    size = int(model.pretrained_cfg["input_size"][-1])
    number = count if part == "sites" else fewer
    pictures = load_pictures(config.data, count=number, size=size, seed=SEED)
    images = normalise(pictures.pixels, config.device)
    rows = _sites(model, images, rounds) if part == "sites" else _svdvals(model, images, rounds)
    settings = {"images": pictures.source, "seeds": SEEDS, "model": name, "num_images": number, "size": size}
    return rows, settings


def _monitor(config: BenchConfig) -> Part:
    from . import monitor, workloads

    work = workloads.training("b", device=config.device, quick=config.quick)
    pictures = load_pictures(config.data, count=work.batch, size=work.size, seed=SEED)
    images = normalise(pictures.pixels, config.device)
    rows = monitor.rows(images, device=config.device, quick=config.quick, rounds=2 if config.quick else 3)
    return rows, {"images": pictures.source, "seeds": SEEDS, "model": work.title, "num_images": len(images)}


def _sites(model: Any, images: Any, rounds: int) -> list[dict[str, Any]]:
    from ..probes import probe

    batches = images.split(256 if images.is_cuda else 32)
    calls: dict[str, Callable[[], Any]] = {
        "all sites": lambda: probe(model, batches, attention=False),
        "all sites and attention maps": lambda: probe(model, batches),
    }
    rows = _timed(calls, rounds, images.device.type)
    for row in rows:
        row |= {"attention": "attention" in row["name"], "seconds": row["median_ms"] / 1e3}
        row |= {"peak_memory_gib": _peak_memory(images.device.type)}
    return rows


def _svdvals(model: Any, images: Any, rounds: int) -> list[dict[str, Any]]:
    """The five quantities of every site: `probe`, and one call of ``torch.linalg.svdvals`` for each site."""
    from ..probes import probe
    from . import sites

    calls: dict[str, Callable[[], Any]] = {
        "torch.linalg.svdvals": lambda: sites.through_svdvals(model, images),
        "probe": lambda: probe(model, [images], attention=False),
    }

    def by_probe(image: Any) -> dict[sites.Place, float | None]:
        return {(r.layer, r.site): r.value for r in probe(model, [image], attention=False, quantities=["log_kappa"])}

    checked = {"torch.linalg.svdvals": lambda image: sites.through_svdvals(model, image), "probe": by_probe}
    rows = _timed(calls, rounds, images.device.type, every={"torch.linalg.svdvals": 4 if images.is_cuda else 1})
    for row in rows:
        row |= {"ours": row["name"] == "probe", "speedup": 1 / row["ratio"]}
        row |= sites.errors(model, images, checked[row["name"]])
    return rows


def _timed(
    calls: dict[str, Callable[[], Any]], rounds: int, device: str, every: dict[str, int] | None = None
) -> list[dict[str, Any]]:
    timings = interleave(calls, rounds=rounds, warmup=1, clock=clock_for(device), every=every)
    baseline = timings[next(iter(calls))]
    return [timing_row(timing, baseline) for timing in timings.values()]


def _peak_memory(device: str) -> float:
    """GiB: of the device, or of this process with everything that torch itself takes."""
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


if __name__ == "__main__":
    main(run, "diagnose", PARTS)
