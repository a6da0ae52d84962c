"""Whether a config may begin or go on in a run directory, and what every start writes there."""

import shlex
import sys
from pathlib import Path

from wellcond import results
from wellcond.config import MAY_CHANGE, TrainConfig, changed_fields, to_json
from wellcond.runs import Run
from wellcond.training.contents import PLACES, recorded
from wellcond.training.loading import config_of
from wellcond.training.processes import Processes
from wellcond.training.supply import Supply


def check_resume(run: Run, config: TrainConfig) -> None:
    """ValueError where `run` is one of another config, naming the first field that differs, or other files.

    Another place of the images is left to `check_moved`, if the run has recorded what they must hold.
    """
    if not run.exists():
        run.check_free()
        return
    changed = changed_fields(config_of(run), config)
    may_change = MAY_CHANGE | PLACES if recorded(run) else MAY_CHANGE
    told = sorted(changed.keys() - may_change, key=lambda name: (name.count("."), list(changed).index(name)))
    if told:  # epochs before the warm-up that follows them
        name, more = told[0], f" (and {len(told) - 1} more)" if len(told) > 1 else ""
        old, new = changed[name]
        raise ValueError(
            f"{str(run.path)!r} is a run with {name} {old!r}, not {new!r}{more}; "
            f"give {name} {old!r} to continue it, or another --out"
        )


def check_classes(config: TrainConfig, num_classes: int) -> None:
    if config.objective == "supervised" and num_classes == 1:
        raise ValueError(f"{config.data.train!r} has one class only; give a set of two or more, one folder for each")
    if config.objective == "supervised" and config.model.num_classes != num_classes:
        raise ValueError(
            f"model.num_classes is {config.model.num_classes}, but {config.data.train!r} has {num_classes} classes; "
            f"give other pictures, or use --model.num-classes {num_classes}"
        )


def begin(run: Run, config: TrainConfig, processes: Processes, supply: Supply) -> None:
    """Make the run if it is new, and write down what this start is."""
    if not run.exists():
        run.create(to_json(config))
    if config.objective == "supervised" and supply.classes:  # the same at every start: other pictures are refused
        run.write_classes(supply.classes)
    command = shlex.join([Path(sys.argv[0]).name.replace("__main__.py", "wellcond"), *sys.argv[1:]])
    start = results.origin(command, processes.device.type)
    changed = changed_fields(config_of(run), config)
    now = {name: new if isinstance(new, str | int | float | None) else str(new) for name, (_, new) in changed.items()}
    more = {"processes": processes.world_size, "changed": now, "contents": dict(supply.contents)}
    run.add_start({**start, **more})
