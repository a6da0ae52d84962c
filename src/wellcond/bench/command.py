"""What the benchmarks share as commands: options, the device, the recorded command line, one part after another."""

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..atomic import check_writable
from ..config import BenchConfig
from .bars import Bar
from .images import load_pictures
from .record import Record

FIELDS = ("device", "data", "cifar", "out", "quick")  # of BenchConfig, as options
Part = tuple[list[dict[str, Any]], Mapping[str, Any]]  # rows, settings


def check_device(device: str) -> None:
    """ValueError where the device is missing."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no CUDA device here: say --device cpu.")


def check_paths(config: BenchConfig) -> None:
    """ValueError before anything is timed where the results could not be written or the data not be read."""
    for data in (config.data, config.cifar):
        if data is not None:
            load_pictures(data, count=1, size=16)
    check_writable(config.out / f"bench-{config.what}.json", "out")


def chosen_parts(asked: str | None, known: list[str], default: list[str]) -> list[str]:
    """The parts of "a,c", in the order of ``known``; ``default`` if nothing was asked."""
    if asked is None:
        return default
    names = [name.strip() for name in asked.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(f"There is no part {', '.join(unknown) or asked!r}: choose from {', '.join(known)}.")
    return [name for name in known if name in names]


def run_parts(
    config: BenchConfig,
    chosen: list[str],
    measure: Callable[[str], Part],
    *,
    bars: tuple[Bar, ...],
    commit: str | None,
    **said: str | None,
) -> dict[str, Any]:
    """Measure the parts; each is merged into the results file as soon as it is done. Returns the file's content.

    What was `said` beside the config stands in the recorded command.
    """
    record = Record(
        what=config.what,
        out=config.out,
        device=config.device,
        command=command_line(config, **said),
        quick=config.quick,
        bars=bars,
        commit=commit,
    )
    record.refuse_overwriting(chosen)
    check_paths(config)
    result: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for part in chosen:
        print(f"part {part} on {config.device}", flush=True)
        try:
            result = record.add(part, *measure(part))
        except Exception as error:  # the other parts may have taken an hour of a GPU
            traceback.print_exc()
            failures[part] = f"{type(error).__name__}: {error}".splitlines()[0]
    if result:
        print_summary(result)
        print(record.path)
    if failures:
        raise ValueError("; ".join(f"part {part} failed: {why}" for part, why in failures.items()))
    return result


def command_line(config: BenchConfig, **extra: str | None) -> str:
    """The command that repeats this run; of paths only the last name, results are published."""
    words = ["python -m", f"wellcond.bench.{config.what}", "--device", config.device]
    for option, path in (("--data", config.data), ("--cifar", config.cifar), ("--out", config.out)):
        words += [option, Path(path).resolve().name] if path else []
    words += ["--quick"] if config.quick else []
    for option, value in extra.items():
        words += [f"--{option}", f'"{value}"' if " " in value else value] if value else []
    return " ".join(words)


def parse(
    what: str, arguments: list[str] | None, known_parts: list[str], *options: str
) -> tuple[BenchConfig, dict[str, Any]]:
    """Options of ``python -m wellcond.bench.WHAT`` → the config, and further keywords of ``run``."""
    parser = argparse.ArgumentParser(prog=f"python -m wellcond.bench.{what}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--data", type=Path, help="parquet file or folder, or image folder (default: procedural)")
    if what == "train":
        parser.add_argument("--cifar", type=Path, help="CIFAR-10: a folder of parquet shards or of images")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder of the JSON file")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--parts", help=f"some of {','.join(known_parts)}")
    parser.add_argument("--commit", help="recorded where there is no git checkout")
    for option in options:
        parser.add_argument(f"--{option}", help='comma-separated, such as "svd, dct exact, svd ahead"')
    given = vars(parser.parse_args(arguments))
    config = BenchConfig(what=what, **{k: given.pop(k) for k in FIELDS if k in given})  # pyright: ignore[reportArgumentType]
    return config, given


def main(run: Any, what: str, known_parts: list[str], *options: str) -> None:
    """Parse and run; a mistake in the input is one line and exit status 2."""
    config, keywords = parse(what, None, known_parts, *options)
    try:
        run(config, **keywords)
    except ValueError as error:
        print(f"wellcond.bench.{what}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def print_summary(result: dict[str, Any]) -> None:
    """Rows and bars, the numbers that matter only; the file has the rest."""
    print(f"part {'row':49} {'median':>13} {'ratio':>8} 95 % interval, errors against float64")
    for row in result["rows"]:
        print(f"{row['part']} {row['device']:4} {row['name']:44} {row.get('failed') or _numbers(row)}")
    bars = [bar for bar in result["bars"] if bar["value"] is not None]
    for bar in bars:
        verdict = {True: "met", False: "MISSED", None: "not judged"}[bar["met"]]
        print(f"{bar['name']}: {bar['value']:.4g} ({bar['sense']} {bar['limit']:g}) {verdict}")
    for why in dict.fromkeys(bar["why"] for bar in bars if bar["met"] is None and bar.get("why")):
        print(f"not judged: {why}")


def _numbers(row: dict[str, Any]) -> str:
    low, high = row["ratio_ci"]
    shown = f"{row['median_ms']:10.3f} ms {row['ratio']:8.4f} [{low:.4f}, {high:.4f}]"
    if row.get("ratio_to_ungrayed"):
        shown += f" over ungrayed {row['ratio_to_ungrayed']:.4f}"
    if row.get("peak_memory_ratio"):
        shown += f" memory {row['peak_memory_ratio']:.3f}"
    errors = [row.get(f"error_{k}") for k in ("fro", "log_sigma", "log_kappa", "residual", "handover")]
    return shown + "".join(f" {e:.1e}" for e in errors if e is not None)
