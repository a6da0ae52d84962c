"""`wellcond evaluate RUN`: judges of a trained run → a table, and rows of its evaluation.json. Floor 8.

The model is that of the newest whole checkpoint, as it was trained (grayed, skipless, with linear attention, averaged
where the run keeps an average), in the precision of its training; so with the run's own data it gives the number that
training ended with. `wellcond.evaluation` judges; this room brings it the model and the pictures.

    options     the options            pictures    both halves of the data, as batches
"""

import shlex
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from .. import parsing
from .options import EvaluateCommand

if TYPE_CHECKING:
    from ..evaluation import Subject


def parse(arguments: list[str]) -> EvaluateCommand | None:
    return parsing.parse(EvaluateCommand, "evaluate", arguments)


def run(command: EvaluateCommand) -> None:
    """Judge the run, keep and print what was found."""
    import torch

    from .. import results
    from ..evaluation import JUDGES
    from ..runs import Run
    from ..training import checkpoints

    directory = Run(command.run)
    subject, data = _subject(command)
    step = checkpoints.steps(directory.checkpoints)[0]
    words = ["wellcond", "evaluate", str(command.run), "--with", *command.judges]
    words += ["--data", command.data] if command.data else []
    origin = results.origin(shlex.join(words), next(subject.model.parameters()).device.type)
    directory.evaluations()  # a damaged file is told before the work
    shown = Table("judge", "what", "value", title=f"{command.run}, step {step}, on {data}")
    for judge in dict.fromkeys(command.judges):
        try:
            values = dict(JUDGES[judge](subject))
        except torch.OutOfMemoryError:
            remedy = f"choose a --batch-size below {command.batch_size}"
            raise ValueError(f"the GPU has too little memory for {command.batch_size} images; {remedy}") from None
        directory.add_evaluation({"judge": judge, "data": data, "step": step, "values": values, **origin})
        for name, value in values.items():
            shown.add_row(judge, name, f"{value:.2f}" if isinstance(value, float) else str(value))
    Console(highlight=False).print(shown)
    print(f"→ {directory.path / 'evaluation.json'}")


def _subject(command: EvaluateCommand) -> "tuple[Subject, str]":
    """Everything that can be wrong is looked at here, before the work: the run, the device, the pictures."""
    import torch
    from torch import Tensor

    from ..evaluation import Subject
    from ..runs import Run
    from ..training import config_of, load
    from ..training.processes import choose_device
    from ..training.step import DTYPES
    from .pictures import Pictures

    config = config_of(Run(command.run))
    device = choose_device(command.device)
    pictures = Pictures(config, command.data, device, command.batch_size)
    pictures.check()
    model = load(command.run).to(device)

    def forward(images: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            return model(images.to(DTYPES[config.precision])).float()

    subject = Subject(model=model, forward=forward, batches=pictures.batches, num_classes=config.model.num_classes)
    return subject, command.data or config.data.val
