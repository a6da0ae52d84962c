"""Everything that decides the next step, as tensors by file and one small JSON: out of a run, and back into it.

Tensors are whole (not sharded) and named as in the module, so a checkpoint of many processes loads into one, and into
another number of them. The random state of every rank is kept; a rank that had none starts from (seed, rank, step).
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from wellcond.optim import Updates, WeightAverage
from wellcond.training.processes import Processes
from wellcond.training.sharding import fill, whole


class NotFinite(Exception):
    """A tensor that must not be saved; the message names it."""


class Parts:
    """The tensors of a run: objective, optimizer, average."""

    def __init__(self, objective: nn.Module, updates: Updates, average: WeightAverage | None) -> None:
        self.objective, self.updates, self.average = objective, updates, average

    def live(self) -> dict[str, dict[str, Tensor]]:
        named = {**dict(self.objective.named_parameters()), **_persistent_buffers(self.objective)}
        found = {"model": named, "optimizer": self.updates.state()}
        return found | ({"average": dict(self.average.tensors)} if self.average is not None else {})

    def collect(self, processes: Processes) -> dict[str, dict[str, Tensor]]:
        """Whole CPU copies on rank 0 (the others take part and keep nothing); NotFinite on all ranks alike."""
        found: dict[str, dict[str, Tensor]] = {}
        finite: list[tuple[str, Tensor]] = []
        for file, tensors in self.live().items():
            found[file] = {}
            for name, tensor in self.updates.whole_state() if file == "optimizer" else tensors.items():
                value = whole(tensor)
                if value.is_floating_point():
                    finite.append((f"{file} {name}", value.isfinite().all()))
                if processes.is_main:
                    found[file][name] = value.cpu() if value.device.type != "cpu" else value.clone()
        good = torch.stack([ok for _, ok in finite]).tolist()
        if not all(good):
            raise NotFinite(finite[good.index(False)][0])
        return found

    def restore(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Fill everything in place; ValueError where names or shapes are not those of this config."""
        for file, live in self.live().items():
            check_names(file, live, tensors.get(file, {}))
            for name, tensor in live.items():
                fill(tensor, tensors[file][name])


def check_names(file: str, live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    for name in [*live, *saved]:
        if name not in saved or name not in live or saved[name].shape != live[name].shape:
            raise ValueError(
                f"the checkpoint's {file} does not fit this model at {name!r}: "
                "it was written by another version; start anew in another --out"
            )


def _persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: buffer for name, buffer in module.named_buffers() if name in module.state_dict(keep_vars=True)}


def collect_random(processes: Processes) -> dict[str, Tensor]:
    """The state of torch's generators of every rank."""
    found = {f"cpu/{rank}": t for rank, t in enumerate(processes.gather(torch.get_rng_state()))}
    if processes.device.type == "cuda":
        states = processes.gather(torch.cuda.get_rng_state(processes.device))
        found |= {f"cuda/{rank}": t for rank, t in enumerate(states)}
    return found


def restore_random(tensors: Mapping[str, Tensor], processes: Processes, *, seed: int, step: int) -> None:
    """This rank's generators; those that the checkpoint does not know are seeded."""
    seed_random(processes, seed=seed, step=step)
    if (cpu := tensors.get(f"cpu/{processes.rank}")) is not None:
        torch.set_rng_state(cpu)
    if processes.device.type == "cuda" and (cuda := tensors.get(f"cuda/{processes.rank}")) is not None:
        torch.cuda.set_rng_state(cuda, processes.device)


def seed_random(processes: Processes, *, seed: int, step: int) -> None:
    """torch's own generators decide only dropout; order, augmentation and dropped paths have keys."""
    number = (seed * 1_000_003 + processes.rank * 7919 + step * 104_729) % 2**63
    torch.default_generator.manual_seed(number)
    if processes.device.type == "cuda":
        torch.cuda.manual_seed(number)
