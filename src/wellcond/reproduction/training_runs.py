"""One run of a claim that trains: a config, trained in its run directory or found there finished → plain numbers.

The number of a run is the top-1 of its last epoch, not of its best one, which would be chosen on the validation set;
the best is recorded beside it. A run whose loss stays without finite values ends there and counts with its last
evaluation: that training fails is a result.
"""

import gc
import hashlib
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console

from ..config import ReproduceConfig, TrainConfig
from ..runs import ENV, SUMMARY, TIMINGS
from ..runs import Run as Directory
from ..training import Diverged, train
from ..training.feeding import Images, ImageSupply, open_images
from .claim import Run
from .experiments import identity

if TYPE_CHECKING:
    from .experiments import TrainingClaim


def resolve(device: str, quick: bool) -> str:
    """cuda or cpu; a quick version is small enough for a CPU."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() and not quick else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch sees no GPU here; use --device cpu, or look for its driver")
    return device


_NOT_JUDGED = {"kind", "step", "epoch", "judge", "data"}
RECORDED = ("config", "dataset", "data", "steps", "top1", "top5", "best_top1", "best_epoch")  # of every run
RECORDED += ("diverged", "loss", "accuracy", "kappa")
MANY = 5  # runs before compiled code is thrown away; torch's limit is 8


class Runner:
    """Runs of one claim in one process; the pictures of a set stay open between them."""

    def __init__(self, claim: "TrainingClaim", options: ReproduceConfig, sources: Mapping[str, str], device: str):
        self.claim, self.options, self.sources, self.device = claim, options, sources, device
        self.opened: dict[tuple[str, int], Images] = {}
        self.compiled = "", 0  # the identity of the last runs, and how many of them

    def config(self, variant: str, seed: int) -> TrainConfig:
        source = self.sources[self.claim.dataset(variant)]
        own = {"seed": seed, "device": self.device, "data.train": source, "data.val": source}
        return self.claim.config(variant, self.options, **own)

    def admit(self, variant: str, runs: Sequence[Run]) -> None:
        """ValueError where runs on this set saw other pictures than those that are given now."""
        name = self.claim.dataset(variant)
        found = pictures_of(self.images(self.config(variant, 0)))
        for run in runs:
            if run.get("dataset") == name and run["data"] != found:
                raise ValueError(
                    f"{name} has {found['train']} + {found['val']} pictures here, but {run['variant']}, seed "
                    f"{run['seed']} was trained on {run['data']['train']} + {run['data']['val']}, or others; "
                    "give the same set, or another --out"
                )

    def images(self, config: TrainConfig) -> Images:
        key = config.data.train, config.data.image_size
        if key not in self.opened:
            console = Console(stderr=True, highlight=False)
            say = partial(console.print, markup=False, soft_wrap=True)
            self.opened[key] = open_images(config, torch.device(self.device), say)
        return self.opened[key]

    def measure(self, variant: str, seed: int, quick: bool) -> dict[str, Any]:
        config = self.config(variant, seed)
        out = directory(self.options.runs, config, quick)
        if self.options.again and (out / SUMMARY).exists():
            raise ValueError(f"{str(out)!r} holds a finished run; to measure it anew give another --runs")
        images = self.images(config)
        self._keep_compiled(identity(config))
        console = Console(stderr=True, highlight=False)
        diverged = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # skipped steps and collapsed tokens are in the record
                train(
                    config,
                    out,
                    open_supply=lambda config, processes: ImageSupply(config, processes, images=images),
                    console=console if console.is_terminal else None,
                )
        except Diverged:
            diverged = max((row["step"] for row in Directory(out).rows()), default=0)
        finally:
            gc.collect()  # its CUDA graph
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        own = {"config": identity(config), "dataset": self.claim.dataset(variant), "data": pictures_of(images)}
        found = {**own, **record(Directory(out), diverged)}
        if self.claim.after is None or (diverged is not None and not self.claim.after_diverged):
            return found
        began = time.perf_counter()
        more = self.claim.after(out, config, images)
        took = more.pop("seconds", time.perf_counter() - began)
        return found | more | {"seconds": round(found["seconds"] + took, 1)}

    def _keep_compiled(self, own: str) -> None:
        """Seeds of a variant share compiled code; another variant begins anew.

        Compiled forwards are kept by function, not by model: without this the ninth variant of a claim would pass the
        limit of recompilations and run uncompiled, and so would many seeds if something in them were compiled again.
        """
        before, count = self.compiled
        if own != before or count >= MANY:
            torch._dynamo.reset()
            count = 0
        self.compiled = own, count + 1


def directory(runs: Path, config: TrainConfig, quick: bool) -> Path:
    """RUNS/recipe-DIGITS-seedN: claims that share a config share its runs."""
    start = "quick-" if quick else ""
    return runs / f"{start}{config.recipe}-{identity(config)}-seed{config.seed}"


def pictures_of(images: Images) -> dict[str, Any]:
    """How many, and which by their labels in order: alike on every machine, whatever decodes JPEG there."""
    labels = b"".join(cache.labels.tobytes() for cache in (images.train, images.val))
    return {
        "train": len(images.train),
        "val": len(images.val),
        "labels": hashlib.sha256(labels).hexdigest()[:12],
    }


def tell(run: Run) -> str:
    """The numbers of a finished run in a few words."""
    number, words = (run["val_loss"], "validation loss") if "val_loss" in run else (run["top1"], "top-1")
    reached = "–" if number is None else f"{number:.2f}"
    return f"{words} {reached}" + (f", no finite loss after step {run['diverged']}" if run["diverged"] else "")


def record(run: Directory, diverged: int | None) -> dict[str, Any]:
    """What a claim keeps of a run directory: last and best accuracy, curves, log κ by epoch, site and block.

    Of a run without labels the last validation loss in place of accuracies, which are None; `along`, where judges were
    asked along the way.
    """
    rows = list(run.rows())
    unlabelled = [row["val_loss"] for row in rows if row["kind"] == "eval" and "val_loss" in row]
    evaluations = [row for row in rows if row["kind"] == "eval" and "top1" in row]
    last = evaluations[-1] if evaluations else {"top1": None, "top5": None}
    best = max(evaluations, key=lambda row: row["top1"], default={"top1": None, "epoch": None})
    losses = _losses(rows)
    return {
        **_origin(run),
        "seconds": round(_seconds(run.rows(TIMINGS)), 1),
        "images_per_s": _speed(run.rows(TIMINGS)),
        "steps": max((row["step"] for row in rows), default=0),
        "top1": _round(last["top1"]),
        "top5": _round(last["top5"]),
        "best_top1": _round(best["top1"]),
        "best_epoch": best["epoch"],
        "diverged": diverged,
        "loss": {"epoch": list(losses), "value": [_round(v) for v in losses.values()]},
        "accuracy": {"epoch": [r["epoch"] for r in evaluations], "top1": [_round(r["top1"]) for r in evaluations]},
        "kappa": _kappa(row for row in rows if row["kind"] == "probe" and row["quantity"] == "log_kappa"),
        **({"val_loss": _round(unlabelled[-1])} if unlabelled else {}),
        **_along(row for row in rows if row["kind"] == "judge"),
    }


def _origin(run: Directory) -> dict[str, Any]:
    start = next(iter(run.starts()), {})
    try:
        return {name: start[name] for name in ("commit", "hardware", "date")}
    except KeyError as missing:
        raise ValueError(
            f"{str(run.path / ENV)!r} does not say the {missing.args[0]} of a finished run, which its results state; "
            "bring that file back, or train anew with another --runs"
        ) from None


def _along(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """{"along": {"epoch": […], "knn top1": […], …}}: what judges said at each of these epochs; {} without any.

    A judge is asked on one set: names of sources are places on a machine, and are not kept.
    """
    found: dict[int, dict[str, Any]] = {}
    sources: dict[str, str | None] = {}
    for row in rows:
        first, source = sources.setdefault(row["judge"], row.get("data")), row.get("data")
        if source != first:
            told = " and ".join("the run's own pictures" if of is None else repr(of) for of in (first, source))
            raise ValueError(f"{row['judge']} was asked on {told} along the way; a claim keeps one, so ask it once")
        numbers = {f"{row['judge']} {name}": value for name, value in row.items() if name not in _NOT_JUDGED}
        found.setdefault(row["epoch"], {}).update(numbers)
    names = dict.fromkeys(name for numbers in found.values() for name in numbers)
    curves = {name: [_round(numbers.get(name)) for numbers in found.values()] for name in names}
    return {"along": {"epoch": list(found), **curves}} if found else {}


def _losses(rows: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Epoch → mean training loss of its rows."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row["kind"] == "train" and row["loss"] is not None:
            found.setdefault(row["epoch"], []).append(row["loss"])
    return {epoch: sum(values) / len(values) for epoch, values in found.items()}


def _kappa(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Site → for each measured epoch the list by block; None where κ is infinite on every picture."""
    table: dict[str, dict[int, dict[int, float | None]]] = {}
    for row in rows:
        table.setdefault(row["site"], {}).setdefault(row["epoch"], {})[row["layer"]] = _round(row["value"], 3)
    epochs = sorted({epoch for of_site in table.values() for epoch in of_site})
    sites = {site: [list(of_site.get(epoch, {}).values()) for epoch in epochs] for site, of_site in table.items()}
    return {"epoch": epochs, **sites}


def _seconds(events: Iterable[dict[str, Any]]) -> float:
    """Training time over all starts: of each, the last moment that is known."""
    total = current = 0.0
    for event in events:
        if event["event"] == "start":
            total, current = total + current, 0.0
        current = max(current, event.get("seconds", 0.0))
    return total + current


def _speed(events: Iterable[dict[str, Any]]) -> float | None:
    """Images a second of the median epoch, training alone; of a run that was compiled the first epoch is slower."""
    known = [event["images_per_s"] for event in events if event["event"] == "epoch" and event["images_per_s"] > 0]
    return round(statistics.median(known), 1) if known else None


def _round(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)
