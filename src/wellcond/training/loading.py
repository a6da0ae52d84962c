"""A run directory, or what was pushed of one → the model as it was trained: grayed, skipless, with its last weights."""

from pathlib import Path

from torch import nn

from wellcond.config import TrainConfig, from_json
from wellcond.runs import CONFIG, Run
from wellcond.skips import load_own
from wellcond.training import checkpoints
from wellcond.training.annealing import set_gain
from wellcond.training.exported import is_exported, load_exported
from wellcond.training.fetching import HUB, fetch
from wellcond.training.models import build_model
from wellcond.training.state import check_names
from wellcond.training.step import DTYPES

PREFIXES = {"supervised": "model.", "mae": "model.", "dino": "teacher.model."}  # of the timm model in its objective
STUDENT = "model."


def config_of(run: Run) -> TrainConfig:
    """The config of a run directory; ValueError where it has none, or one that cannot be read."""
    if is_exported(run.path):
        raise ValueError(f"{str(run.path)!r} is what wellcond push wrote, not a run; give the run it was pushed from")
    text = run.read_config()
    try:
        return from_json(text, TrainConfig)
    except ValueError as error:
        raise ValueError(f"{str(run.path / CONFIG)!r} cannot be read: {error}; restore it") from None


def load(run: Path | str, *, average: bool | None = None, student: bool = False) -> nn.Module:
    """The model as it was trained, grayed, without the skips that it was trained without, on the CPU, in eval mode.

    `run`: a run directory, of which the newest whole checkpoint is taken; a folder that `wellcond push` wrote; or such
    a one on the hub, "hf:OWNER/NAME", perhaps @REVISION.

    `average`: the moving average of the weights; None takes it where the run has one, as its evaluation did. Of a run
    without labels it is the backbone, without a head: images → features. DINO's is the teacher's, which is the better
    one; `student` takes the student's.
    """
    if str(run).startswith(HUB) or is_exported(Path(run)):
        if average is not None or student:
            raise ValueError(f"{str(run)!r} is an exported model, which has one set of weights; leave the choice out")
        return load_exported(fetch(str(run).removeprefix(HUB)) if str(run).startswith(HUB) else Path(run))
    directory = Run(run)
    config = config_of(directory)
    step = checkpoints.newest_whole(directory.checkpoints)
    if step is None:
        if not checkpoints.steps(directory.checkpoints) and directory.read_summary() is None:
            raise ValueError(f"{str(run)!r} has no whole checkpoint yet; train it first")
        raise ValueError(f"{str(run)!r} has no whole checkpoint left; restore one, or train it anew in another --out")
    if average and config.ema is None:
        raise ValueError(f"{str(run)!r} was trained without an average of its weights; use average=None")
    if student and config.objective != "dino":
        raise ValueError(
            f"{str(run)!r} was trained with objective {config.objective}, which has no student; leave it out"
        )
    file = "average" if (config.ema is not None if average is None else average) else "model"
    path = directory.checkpoints / checkpoints.name_of(step)
    saved = checkpoints.read_tensors(path, file)
    if file == "average":  # holds floating tensors only; counters come from the weights
        saved = checkpoints.read_tensors(path, "model") | saved
    prefix = STUDENT if student else PREFIXES[config.objective]
    weights = {name.removeprefix(prefix): t for name, t in saved.items() if name.startswith(prefix)}
    model = build_model(config.model, config.seed, initialized=False).to(DTYPES[config.precision])
    check_names(file, model.state_dict(), {name: t for name, t in weights.items() if name in model.state_dict()})
    if gain := checkpoints.read_state(path).get("skip_gain"):  # of a run that was stopped before it was 0
        set_gain(model, config.model, gain)
    load_own(model, weights, strict=False)
    return model.eval()
