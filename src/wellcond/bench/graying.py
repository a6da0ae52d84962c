"""``wellcond bench graying`` → ``results/bench-graying.json``: what graying costs, in a step and by itself.

    a  ViT-B/16 at 224 px, batch 512, compiled: each variant's step against the plain one
    b  ViT-Tiny/8 at 64 px, batch 1024, the step as a CUDA graph
    c  graying alone
    d  DCT graying against the same through ``torch-dct``

On the CPU a full run measures c and d; a quick run shows all four, at sizes that mean nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from ..config import BenchConfig
from .bars import Bar
from .command import Part, check_device, check_paths, chosen_parts, main, run_parts
from .images import load_pictures
from .variants import DEFAULTS, EPSILON, ERROR_BARS, parse_variants

PARTS = ["a", "b", "c", "d"]
SEED = 0


def _step_bars(part: str, model: str, svd: tuple[float, float | None], dct: tuple[float, float | None]) -> list[Bar]:
    bars = []
    for method, (limit, aim) in {"svd": svd, "dct": dct}.items():
        name = f"{model} step with {method.upper()} graying, over the plain step"
        # either precision: what counts is a row that keeps the error its precision promises
        bars.append(Bar(name, part, "cuda", "ratio", limit, aim=aim, best=True, where={"method": method}))
    memory = {"method": ("svd", "dct"), "precision": "fast", "placement": "inside"}
    name = f"{model} step with graying inside the model, peak memory over the plain step's"
    return [*bars, Bar(name, part, "cuda", "peak_memory_ratio", 1.05, where=memory)]


def _error_bars(part: str, device: str) -> list[Bar]:
    bars = []
    for precision, (frobenius, log_sigma) in ERROR_BARS.items():
        kind, where = f"part {part}, {device}, {precision}", {"precision": precision}
        bars.append(Bar(f"{kind}: relative Frobenius error", part, device, "error_fro", frobenius, where=where))
        bars.append(Bar(f"{kind}: |Δ log σ|", part, device, "error_log_sigma", log_sigma, where=where))
    return bars


def _fft_bar(device: str) -> Bar:
    return Bar(f"DCT graying on {device}, over torch-dct's", "d", device, "ratio", 1.0, where={"ours": True})


BARS = (
    *_step_bars("a", "ViT-B/16", svd=(1.10, 1.05), dct=(1.01, 1.005)),
    *_step_bars("b", "ViT-Tiny/8", svd=(1.15, None), dct=(1.03, None)),
    *(bar for part in ("a", "b", "c") for bar in _error_bars(part, "cuda")),
    *_error_bars("c", "cpu"),
    _fft_bar("cuda"),
    _fft_bar("cpu"),
)


def run(
    config: BenchConfig, *, parts: str | None = None, variants: str | None = None, commit: str | None = None
) -> dict[str, Any]:
    """Measure ``parts`` ("a,c"; None: all that the device can) and merge them into the results file.

    ``variants`` replaces the variants of parts a and b (see :mod:`wellcond.bench.variants`).
    """
    check_device(config.device)
    default = PARTS if config.device == "cuda" or config.quick else ["c", "d"]
    chosen = chosen_parts(parts, PARTS, default)

    def measure(part: str) -> Part:
        return _training(part, config, variants) if part in "ab" else _graying(part, config)

    if config.device == "cpu" and {"a", "b"} & set(chosen):
        check_paths(config)  # what is wrong is said before anything else
        print("side-stream variants need CUDA: left out")
    with _tensor_float32():
        return run_parts(config, chosen, measure, bars=BARS, commit=commit, parts=parts, variants=variants)


@contextmanager
def _tensor_float32() -> Iterator[None]:
    """float32 products as training scripts run them ("high"); the plain step has none, fast DCT graying follows it."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _training(part: str, config: BenchConfig, variants: str | None) -> Part:
    from . import training, workloads

    work = workloads.training(part, device=config.device, quick=config.quick)
    asked = parse_variants(variants or DEFAULTS[part])
    listed = [v for v in asked if v.placement != "ahead" or config.device == "cuda"]
    pictures = load_pictures(config.data, count=work.batch * work.num_batches, size=work.size, seed=SEED)
    rows = training.measure(work, listed, pictures, device=config.device, seed=SEED)
    return rows, _settings(pictures, [asdict(work)])


def _graying(part: str, config: BenchConfig) -> Part:
    from . import fft, standalone, workloads

    room = {"c": standalone, "d": fft}[part]
    works = workloads.graying(part, device=config.device, quick=config.quick)
    rows, pictures = [], None
    for work in works:
        print(f"  {work.shape}", flush=True)
        pictures = load_pictures(config.data, count=work.batch, size=work.size, seed=SEED)
        rows += room.measure(work, pictures, device=config.device)
    return rows, _settings(pictures, [asdict(work) for work in works])


def _settings(pictures: Any, works: list[dict[str, Any]]) -> dict[str, Any]:
    import torch

    return {
        "images": pictures.source,
        "num_distinct_images": pictures.num_distinct,
        "seeds": {"images": SEED, "weights": SEED, "labels": SEED, "bootstrap": SEED},
        "epsilon": EPSILON,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "workloads": works,
    }


if __name__ == "__main__":
    main(run, "graying", PARTS, "variants")
