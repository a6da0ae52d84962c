"""Run directories written by hand: what the tests of the runs' page share. No training, no torch."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from wellcond.config import DataConfig, GrayingConfig, ModelConfig, OptimConfig, TrainConfig, to_json

EPOCHS, STEPS, BLOCKS = 4, 10, 3
SITES = ("sab_in", "sab_out", "sab_sum", "ffn_out", "ffn_sum")
QUANTITIES = {"log_kappa": 5.0, "effective_rank": 9.0, "token_cosine": 0.3}


def config(**changes: Any) -> TrainConfig:
    base = TrainConfig(
        recipe="procedural-vit",
        model=ModelConfig(name="vit_tiny_patch16_224", image_size=32, patch_size=4, num_classes=10),
        data=DataConfig(train="procedural:40", val="procedural:20", image_size=32),
        optim=OptimConfig(lr=1e-3),
        epochs=EPOCHS,
        batch_size=8,
    )
    return replace(base, **changes)


def grayed(base: TrainConfig, method: Any, epsilon: float) -> TrainConfig:
    return replace(base, model=replace(base.model, graying=GrayingConfig(method=method, epsilon=epsilon)))


def without_attention_skip(base: TrainConfig) -> TrainConfig:
    return replace(base, model=replace(base.model, cut_attention_skips=True))


def write_run(
    path: Path, what: TrainConfig, *, epochs: int = EPOCHS, top1: float = 60.0, probes: bool = True,
    collapsed: bool = False, finished: bool | None = None, typed: str = "",
) -> Path:  # fmt: skip
    """A run of `epochs` epochs that ends with `top1`; `collapsed`: tokens all alike and κ = ∞ from block 1 on.

    `typed` are the options of its command, which config.json does not tell from those of the recipe."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(to_json(what))
    rows: list[dict[str, Any]] = []
    timings: list[dict[str, Any]] = [{"event": "start", "step": 0, "time": 1.0, "resumed": False}]
    for epoch in range(1, epochs + 1):
        end = epoch * STEPS
        for step in (end - STEPS // 2, end):
            loss = 2.3 - 1.5 * step / (STEPS * EPOCHS)
            rows.append({"kind": "train", "step": step, "epoch": epoch, "lr": 1e-3, "loss": loss, "grad_norm": 1.0,
                         "skipped": 0})  # fmt: skip
        value = top1 * epoch / epochs
        rows.append({"kind": "eval", "step": end, "epoch": epoch, "top1": value, "top5": 90.0, "images": 20})
        rows += _probe_rows(epoch, collapsed) if probes else []
        clock = {"images_per_s": 100.0 * epoch, "seconds": 30.0 * epoch}
        timings.append({"event": "epoch", "step": end, "epoch": epoch, **clock})
    _write_lines(path / "metrics.jsonl", rows)
    _write_lines(path / "timings.jsonl", timings)
    command = f"wellcond train {what.recipe} {typed} --out {path.name}"
    start = {"command": command, "commit": "abcdef0123456789",
             "date": "today", "hardware": {"cpu": "a CPU"}, "versions": {"python": "3.12"}}  # fmt: skip
    (path / "env.json").write_text(json.dumps({"starts": [start]}))
    if epochs == EPOCHS if finished is None else finished:
        numbers = {"skipped": 0, "loss": 0.8, "top1": top1, "top5": 90.0}
        summary = {"out": str(path), "steps": epochs * STEPS, "epochs": epochs, **numbers}
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def _probe_rows(epoch: int, collapsed: bool) -> list[dict[str, Any]]:
    rows = []
    for layer in range(BLOCKS):
        for site in SITES:
            for quantity, value in QUANTITIES.items():
                dead = collapsed and layer > 0
                number: float | None = value + layer + 0.1 * epoch if quantity == "log_kappa" else value
                if dead:
                    number = {"log_kappa": None, "effective_rank": 1.0, "token_cosine": 1.0}[quantity]
                infinite = 4 if dead and quantity == "log_kappa" else 0
                rows.append({"kind": "probe", "step": epoch * STEPS, "epoch": epoch, "layer": layer, "site": site,
                             "quantity": quantity, "value": number, "std": None if number is None else 0.2,
                             "floor_count": 3.0 if infinite else 0.0, "num_infinite": infinite, "num_images": 4,
                             "n": 64, "d": 64})  # fmt: skip
    return rows


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
