"""asa-table1: what graying costs ("Always Skip Attention", Table 1), from the medians of bench-graying.json.

Rule: DCT is reproduced if the whole 95 % interval of the ratio of step times lies under 1.05 ("almost no cost"; the
paper has 1.012); of SVD, which costs the paper 6.3 times the time, it is said whether ours costs less, as much or more.
(The benchmark had been run before this rule was written.)

The ratio is to timm's plain step. Our grayed step also computes the patch embedding as a matrix product, which by
itself is faster; the ratio to that step without graying is what graying alone costs, and stands beside it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import results
from ..config import ReproduceConfig
from .claim import Claim, Judgement, Row, Run

SEEDS = 1  # the benchmark has its own repeats and intervals
SOURCE = "bench-graying.json"
PARTS = {"ViT-B/16": "a-cuda", "ViT-Tiny/8": "b-cuda"}
NAMES = {"svd": "svd fast inside", "dct": "dct fast inside"}
PAPER = {"svd": 6.3, "dct": 1.012}
CHEAP = 1.05


def read(out: Path) -> dict[str, Any]:
    path = out / SOURCE
    bench = results.read(path, {"parts", "rows"}, "benchmark")
    if bench is None or not set(PARTS.values()) & set(bench["parts"]):
        raise ValueError(f"asa-table1 is read from {str(path)!r}; run wellcond bench graying --device cuda first")
    return bench


def measured(bench: dict[str, Any], variant: str) -> dict[str, Any]:
    part = bench["parts"][PARTS[variant]]
    of_part = [row for row in bench["rows"] if (row["part"], row["device"]) == (part["part"], part["device"])]
    found = {}
    for method, name in NAMES.items():
        row = next(row for row in of_part if row["name"] == name)
        found[method] = {"ratio": row["ratio"], "interval": row["ratio_ci"]}
        found[method] |= {"alone": row.get("ratio_to_ungrayed"), "alone_interval": row.get("ratio_to_ungrayed_ci")}
    origin = {name: part[name] for name in ("commit", "hardware", "date")}
    seconds = round(sum(sum(row["samples_ms"]) for row in of_part) / 1e3, 1)
    return {**origin, "seconds": seconds, "ratios": found}


def judge(runs: Sequence[Run]) -> Judgement:
    rows, told = [], []
    for run in runs:
        for method, found in run["ratios"].items():
            low, high = found["interval"]
            if method == "dct":
                verdict = "reproduced" if high < CHEAP else "not reproduced" if low > CHEAP else "not shown"
            else:
                verdict = (
                    "costs less" if high < PAPER["svd"] else "costs more" if low > PAPER["svd"] else "as in the paper"
                )
            name = f"{run['variant']}, {method.upper()}, step time over "
            rows.append(_row(f"{name}the plain step", f"{PAPER[method]:g}", found["ratio"], (low, high), verdict))
            if found["alone"] is not None:
                rows.append(_row(f"{name}ours without graying", "–", found["alone"], found["alone_interval"], "–"))
            told.append(f"{run['variant']}, {method.upper()}: {verdict}")
    return Judgement(rows=rows, verdict="; ".join(told) + ".")


def _row(name: str, paper: str, ratio: float, interval: tuple[float, float] | None, verdict: str) -> Row:
    value = float(f"{ratio:.5g}")
    return Row(name=name, paper=paper, value=value, interval=interval, values=[value], verdict=verdict)


def claim(options: ReproduceConfig) -> Claim:
    if options.data or options.epochs:
        raise ValueError("asa-table1 trains nothing, so --data and --epochs mean nothing to it; leave them out")
    bench = read(options.out)
    parts = {variant: bench["parts"][part] for variant, part in PARTS.items() if part in bench["parts"]}
    variants = tuple(variant for variant, part in parts.items() if options.quick or not part["quick"])
    if not variants:
        raise ValueError(f"{SOURCE} holds quick timings only; run wellcond bench graying --device cuda first")
    first = parts[variants[0]]
    return Claim(
        name="asa-table1",
        says="Always Skip Attention, Table 1: SVD graying costs 6.3 times the training time of ViT-B, DCT 1.012 times.",
        measures=(
            "Step times of compiled training steps on one GPU, interleaved, medians with 95 % intervals, from "
            f"`wellcond bench graying`. DCT: reproduced if the interval lies under {CHEAP:g}. SVD: does it cost less "
            "than in the paper, as much, or more? The plain step is timm's; ours computes the patch embedding another "
            "way, which is faster by itself, so the ratio to ours without graying is given, too. The GPU-minutes are "
            "those of the timed steps; what came before them, such as compiling, the benchmark does not keep."
        ),
        scaled_down="A step instead of 300 epochs.",
        variants=variants,
        quick_variants=variants,
        settings=lambda quick: {"timed": {variant: parts[variant]["date"] for variant in variants}},
        measure=lambda variant, seed, quick: measured(bench, variant),
        judge=judge,
        images=first["images"],
        origin={name: first[name] for name in ("commit", "hardware", "versions", "date", "device")},
    )
