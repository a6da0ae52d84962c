"""cts-fig1: training losses with and without skips ("Cutting the Skip", Fig. 1), of the runs of cts-table1.

Rule, written down before the runs, for each set and optimizer: reproduced if the last training loss of skipless,
initialized lies under that of skipless, not initialized by a whole 95 % interval; not reproduced if above it; else not
shown. Where it stands against the model with skips is said beside it.
"""

from collections.abc import Sequence

from .claim import Judgement, Run
from .comparing import against, difference_row, differences, mean_row, over_seeds
from .experiments import TrainingClaim
from .loss_claim import last_loss
from .skip_claim import sets_of
from .skipless_cells import CELLS, EPOCHS, NAMES, OPTIMIZERS, WORDS, cells, told
from .training_page import loss_sections


def judge_fig1(runs: Sequence[Run]) -> Judgement:
    rows, verdicts = [], []
    for data in sets_of(runs):
        for name in CELLS:
            if values := over_seeds(runs, f"{data}/{name}", last_loss):
                rows.append(mean_row(f"{NAMES[data]}, {told(name)}, last training loss", "–", values))
        for optimizer in OPTIMIZERS:
            ours = f"skipless-init/{optimizer}"
            for base in (f"skipless/{optimizer}", f"skip/{optimizer}"):
                if values := differences(runs, f"{data}/{ours}", f"{data}/{base}", last_loss):
                    rows.append(row := difference_row(f"{NAMES[data]}, {told(ours)}, less {told(base)}", None, values))
                    verdicts.append(f"{NAMES[data]}, {WORDS[optimizer]}: {_verdict(base, row.interval)}")
    return Judgement(rows=rows, verdict=("; ".join(verdicts) or "Not decided") + ".")


def _verdict(base: str, interval: tuple[float, float] | None) -> str:
    said = against(None, interval)
    if base.startswith("skipless/"):
        words = {"lower": "reproduced", "higher": "not reproduced", "one seed": "too few seeds"}
        return f"under the loss of the model that was not initialized: {words.get(said, 'not shown')}"
    words = {"lower": "lower than", "higher": "higher than", "one seed": "too few seeds to compare with"}
    return f"{words.get(said, 'no difference shown to')} with skips"


CLAIM = TrainingClaim(
    name="cts-fig1",
    says=(
        "Cutting the Skip, Fig. 1: training losses of ViT-B with AdamW and with SOAP, with skips, without, and without "
        "but initialized for it, which is what makes the skipless model train."
    ),
    measures=(
        "The training loss, mean of each epoch, of the runs of cts-table1. Reproduced if the last one lies under that "
        "of the model that was not initialized, by the whole 95 % interval over seeds."
    ),
    scaled_down="ViT-Tiny at 64 tokens for ViT-B on ImageNet-1K with 300 epochs.",
    experiments=cells(("cifar10", "tiny-imagenet")),
    quick=tuple(f"cifar10/{name}" for name in CELLS),
    judge=judge_fig1,
    sections=loss_sections,
    epochs=EPOCHS,
)
