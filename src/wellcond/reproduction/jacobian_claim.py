"""asa-fig7-8: spectra of the Jacobian of one SAB by ε ("Always Skip Attention", Figs. 7 and 8).

One trained ViT-Tiny, whose weights stay as they are; its input is grayed more and more, and all singular values of the
Jacobian of the attention of its middle block are taken, with respect to the normalised input, in float64, on one
validation picture (the matrix has (65 · 192)² entries).

Rule, written down before the runs: reproduced for a method if log κ of the Jacobian at its smallest ε lies
under that without graying, by an interval over seeds; not reproduced if it lies above; else not shown.
Written down after the first run, whose Jacobian without graying is singular in float64 (log κ beyond 26): the same is
said of log σ_max / σ at 99 % of the singular values, from the largest.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..config import TrainConfig
from ..report import BEFORE, DCT, SVD, Figure, Section
from .claim import Judgement, Run
from .comparing import difference_row, mean_row, over_seeds
from .experiments import Experiment, TrainingClaim
from .graying_claim import EPOCHS, VIT, fall

SWEEP = {"none": ("none", 1.0), "svd/0.7": ("svd", 0.7), "svd/0.5": ("svd", 0.5)}
SWEEP |= {"dct/0.95": ("dct", 0.95), "dct/0.85": ("dct", 0.85)}
SMALLEST = {"svd": "svd/0.5", "dct": "dct/0.85"}
NUM_QUANTILES, MOST = 101, 99
VARIANT = "softmax/none"


def spectra(out: Path, config: TrainConfig, images: Any) -> dict[str, Any]:
    """Name of a graying → log κ and quantiles of log σ/σ_max, of the middle block."""
    import torch

    from ..blocks import adapt, normalise, record, sub_block
    from ..data.augment import evaluation
    from ..graying import gray, ungray
    from ..jacobian import jacobian_spectrum
    from ..training import load

    device = torch.device(config.device)
    model = load(out).double().to(device)
    data = config.data
    raw = torch.from_numpy(images.val.images[:1].copy()).to(device)
    picture = evaluation(raw, data.image_size, data.mean, data.std).double()
    found = {}
    for name, (method, epsilon) in SWEEP.items():
        if method != "none":
            gray(model, method, epsilon, precision="exact")
        blocks: list[Any] = adapt(model)
        layer = len(blocks) // 2
        with record(model) as sites, torch.no_grad():
            model(picture)
            X = normalise(blocks[layer], "attention", sites[layer, "sab_in"])
            spectrum = jacobian_spectrum(sub_block(blocks[layer], "attention"), X, method="exact")
        sigma = spectrum.sigma[0].cpu().numpy()
        with np.errstate(divide="ignore"):
            logs = np.log(np.quantile(sigma / sigma[0], np.linspace(1, 0, NUM_QUANTILES)))
        found[name] = {"log_kappa": round(float(spectrum.log_kappa[0]), 4), "log_sigma": logs.round(3).tolist()}
        ungray(model)
    return {"jacobian": {"layer": layer, "n": X.shape[1], "d": X.shape[2], "spectra": found}}


def log_kappa(run: Run, name: str) -> float | None:
    return run["jacobian"]["spectra"][name]["log_kappa"]


def log_most(run: Run, name: str) -> float | None:
    """log σ_max / σ of all but the smallest 1 %; None where that is 0."""
    value = run["jacobian"]["spectra"][name]["log_sigma"][MOST]
    return None if value is None else -value


NUMBERS = {"log κ of the Jacobian": log_kappa, f"log κ of {MOST} % of it": log_most}


def judge(runs: Sequence[Run]) -> Judgement:
    rows, told = [], []
    for words, number in NUMBERS.items():
        for name in SWEEP:
            values = over_seeds(runs, VARIANT, lambda run, name=name, number=number: number(run, name))
            infinite = len(runs) - len(values)
            verdict = f"infinite in {infinite} of {len(runs)}" if infinite else ""
            rows.append(mean_row(f"{name}, {words}", "falls with ε", values, verdict))
        verdicts = []
        for method, name in SMALLEST.items():
            values = [
                below - above
                for run in runs
                if (below := number(run, name)) is not None and (above := number(run, "none")) is not None
            ]
            row = difference_row(f"{name} less none, {words}", None, values)
            rows.append(row if values else dataclasses.replace(row, verdict="infinite without graying"))
            verdicts.append(f"{method} {fall(row.interval) if values else 'not decided, infinite without graying'}")
        told.append(f"{words}: {', '.join(verdicts)}")
    return Judgement(rows=rows, verdict=f"The Jacobian is better conditioned — {'; '.join(told)}.")


def sections(content: dict[str, Any]) -> list[Section]:
    run = content["runs"][0]["jacobian"]
    colours = {"none": BEFORE, "svd": SVD, "dct": DCT}
    x = np.linspace(0, 100, NUM_QUANTILES).tolist()
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": x,
            "y": [None if v is None else float(np.exp(v)) for v in run["spectra"][name]["log_sigma"]],
            "line": {"color": colours[method], "width": 2, "dash": "solid" if name in ("none", "svd/0.7") else "dot"},
            "hovertemplate": "%{y:.2e}",
        }
        for name, (method, _) in SWEEP.items()
    ]
    layout = {
        "xaxis": {"title": {"text": "percent of the singular values, from the largest"}},
        "yaxis": {"title": {"text": "σ / σ_max"}, "type": "log", "exponentformat": "power"},
        "hovermode": "x unified",
    }
    caption = f"Attention of block {run['layer']}, {run['n']} × {run['d']} tokens, seed 0, one picture."
    return [Section(title="Spectra of the Jacobian", items=[Figure(data=data, layout=layout, caption=caption)])]


CLAIM = TrainingClaim(
    name="asa-fig7-8",
    says="Always Skip Attention, Figs. 7 and 8: the more the input is grayed, the better the Jacobian of a SAB.",
    measures=(
        "All singular values of the Jacobian of the attention of the middle block of a trained ViT-Tiny, with respect "
        "to its normalised input, in float64, one validation picture, grayed with ε. Reproduced for a method if log κ "
        "at its smallest ε lies under that without graying with the whole 95 % interval over seeds, not reproduced if "
        f"above, else not shown; the same of σ_max / σ at {MOST} % of the singular values."
    ),
    scaled_down="ViT-Tiny on Tiny-ImageNet, patch 8; its weights were trained without graying.",
    experiments={VARIANT: Experiment(recipe=VIT)},
    quick=(VARIANT,),
    judge=judge,
    sections=sections,
    epochs=EPOCHS,
    after=spectra,
    needs=("jacobian",),
)
