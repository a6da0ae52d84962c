"""cts-init-depth: attention and tokens by depth without skips, at the start and after training.

"Cutting the Skip" wants attention near the identity at the start (Proposition 1) and blocks that are well conditioned
(Proposition 2). Measured after every block, in float64, on validation pictures: the mass that a token gives to itself,
the cosine between tokens, log κ of the tokens.

Rule, written down before the runs, for the paper's initialization, the calibrated one and ours against timm's, all
without skips and with SOAP: at the start the mean over blocks of the diagonal mass is higher, of the cosine lower, of
log κ lower, each with the whole 95 % interval over seeds. Each is said by itself, and so is the same after training.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from .claim import Judgement, Run
from .comparing import Number, against, difference_row, differences, mean_row, over_seeds
from .depth_page import sections
from .experiments import TrainingClaim
from .skipless_cells import EPOCHS, MODELS, cell
from .statistics import known_mean

NUM_IMAGES = 16
MEASURED = {  # quantity → site, words, and where the initialization should take it
    "attention_diagonal": ("attention", "diagonal mass", "higher"),
    "token_cosine": ("ffn_sum", "token cosine", "lower"),
    "log_kappa": ("ffn_sum", "log κ", "lower"),
}
WHEN = {"start": "at the start", "end": "after training"}
VARIANTS = {
    "skip": MODELS["skip"],
    "default": MODELS["skipless"],
    "paper": MODELS["skipless-init"],
    "calibrated": f"{MODELS['skipless-init']}, calibrated",
    "ours": MODELS["skipless-ours"],  # the best that we know (cts-beyond)
}


def measure(out: Path, config: TrainConfig, images: Any) -> dict[str, Any]:
    """When → quantity → its mean over pictures by block; None where κ is infinite on every picture."""
    import torch
    from torch import nn

    from ..data.augment import evaluation
    from ..probes import probe
    from ..training import load
    from ..training.feeding import spread
    from ..training.models import initial_model

    def pictures(count: int) -> torch.Tensor:
        raw = torch.from_numpy(images.val.images[spread(len(images.val), count).numpy()].copy())
        return evaluation(raw, config.data.image_size, config.data.mean, config.data.std)

    def by_block(model: nn.Module) -> dict[str, list[float | None]]:
        rows = probe(model.double().cpu(), [pictures(NUM_IMAGES).double()], quantities=tuple(MEASURED))
        return {
            quantity: [_round(row.value) for row in rows if (row.quantity, row.site) == (quantity, site)]
            for quantity, (site, *_) in MEASURED.items()
        }

    return {"depth": {"start": by_block(initial_model(config, pictures)), "end": by_block(load(out))}}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def mean_over_blocks(when: str, quantity: str) -> Number:
    return lambda run: known_mean(run["depth"][when][quantity])


def judge_depth(runs: Sequence[Run]) -> Judgement:
    rows = []
    told: dict[str, list[str]] = {}
    for when, words in WHEN.items():
        for quantity, (_, name, wanted) in MEASURED.items():
            number = mean_over_blocks(when, quantity)
            for variant in VARIANTS:
                if values := over_seeds(runs, variant, number):
                    rows.append(mean_row(f"{VARIANTS[variant]}, {name} {words}", "–", values))
            for variant in ("paper", "calibrated", "ours"):
                if values := differences(runs, variant, "default", number):
                    label = f"{VARIANTS[variant]}, less {VARIANTS['default']}, {name} {words}"
                    rows.append(row := difference_row(label, None, values))
                    said = against(None, row.interval)
                    verdict = f"{name} {wanted}: {'yes' if said == wanted else said}"
                    told.setdefault(f"{VARIANTS[variant]}, {words}", []).append(verdict)
    verdicts = [f"{start}: {', '.join(parts)}" for start, parts in told.items()]
    return Judgement(rows=rows, verdict=("; ".join(verdicts) or "Not decided") + ".")


def _experiments() -> dict[str, Any]:
    data, paper = "cifar10", "skipless-init/soap"
    return {
        "skip": cell(data, "skip/soap"),
        "default": cell(data, "skipless/soap"),
        "paper": cell(data, paper),
        "calibrated": cell(data, paper, **{"model.init.calibrate": True}),
        "ours": cell(data, "skipless-ours/soap"),
    }


CLAIM = TrainingClaim(
    name="cts-init-depth",
    says=(
        "Cutting the Skip, Propositions 1 and 2: attention near the identity and orthogonal values keep a skipless "
        "transformer well conditioned at the start, where the usual initialization lets its tokens collapse."
    ),
    measures=(
        f"After every block, on {NUM_IMAGES} validation pictures in float64, at the start and after training: the mass "
        "a token gives to itself, mean cosine of tokens, log κ of the tokens; means over blocks. The initialization "
        "should raise the first and lower the others against timm's; yes where the whole 95 % interval of the "
        "difference, seed by seed, says so."
    ),
    scaled_down="ViT-Tiny at 64 tokens on CIFAR-10, SOAP.",
    experiments=_experiments(),
    quick=tuple(VARIANTS),
    judge=judge_depth,
    sections=sections,
    epochs=EPOCHS,
    after=measure,
    needs=("depth",),
)
