"""Gradients that every SOAP sees alike, and what a rank does that shares its weights.

Apart from the tests, for a process that is started reads this file again: it imports little.
"""

import faulthandler
import gc
import math
import time
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import nn

from wellcond.optim.soap import SOAP

# Sides are multiples of 4, so that every matrix of a stack begins at a multiple of 64 bytes, however many there are:
# by where it begins MKL rounds its products.
SHAPES = [(8, 4)] * 5 + [(4, 4), (4, 2, 2, 2)] + [(20, 16)] * 6 + [(8,), (8,)]
ODD = [(20, 15)] * 5 + [(17, 9)] * 3 + [(7,)]
LATE = [(4, 8), (8, 4), (4,)]
OPTIONS: dict[str, Any] = {"lr": 0.02, "betas": (0.9, 0.8), "precondition_frequency": 3}
NUM_STEPS, HALF = 11, 5


class Gradients:
    """Gradients with a spectrum that drifts, the same for every optimizer."""

    def __init__(self, shapes, dtype=torch.float64, seed=0):
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = [nn.Parameter(self.draw(shape).to(dtype)) for shape in shapes]
        self.scales = [self.draw(shape).exp() for shape in shapes]

    def draw(self, shape):
        return torch.randn(shape, dtype=torch.float64, generator=self.generator)

    def fill(self):
        for p, scale in zip(self.parameters, self.scales, strict=True):
            p.grad = (self.draw(p.shape) * scale).to(p.dtype)


def steps(problem: Gradients, optimizer: SOAP, numbers: range) -> None:
    """Among them one without some gradients, and one that is skipped."""
    for number in numbers:
        problem.fill()
        if number == 4:
            problem.parameters[0].grad = None
        if number == 6:
            for p in problem.parameters:
                p.grad = torch.full_like(p, math.nan)
        optimizer.update(torch.tensor(float(number == 6)))
        optimizer.refresh()


def bytes_alive() -> int:
    """Of all tensors of this process that have content, once the threads of gloo have let go of their messages."""
    return min(_bytes_now() for _ in range(10))


def _bytes_now() -> int:
    time.sleep(0.02)
    gc.collect()
    tensors = [x for x in gc.get_objects() if issubclass(type(x), torch.Tensor) and not x.is_meta]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def named(problem: Gradients, optimizer: SOAP) -> dict[str, torch.Tensor]:
    """Weights and state, without their storage."""
    found = {str(i): p.detach().clone() for i, p in enumerate(problem.parameters)}
    states = optimizer.state_dict()["state"].items()
    return found | {f"{i}/{key}": t.clone() for i, state in states for key, t in state.items()}


def share(rank: int, world_size: int, folder: str) -> None:
    """What one rank does and leaves behind, for each dtype."""
    torch.set_num_threads(1)
    faulthandler.enable()
    gc.freeze()  # what was imported is neither collected nor looked through for tensors again and again
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    gather, sent = dist.all_gather_into_tensor, []
    dist.all_gather_into_tensor = lambda out, own, **rest: sent.append(own.nbytes) or gather(out, own, **rest)
    group, told = dist.group.WORLD, {}
    for name in ("float64", "float32", "bfloat16"):
        problem = Gradients(SHAPES, getattr(torch, name))
        before = bytes_alive() if name == "float64" else 0
        optimizer = SOAP(problem.parameters, **OPTIONS, process_group=group)
        steps(problem, optimizer, range(HALF))
        if name == "float64":
            for p in problem.parameters:
                p.grad = None
            told = {"bytes": torch.tensor(bytes_alive() - before), "messages": torch.tensor(len(sent))}
        save_file(named(problem, optimizer), f"{folder}/{name}-half-{rank}.safetensors")
        torch.save(optimizer.state_dict(), f"{folder}/{name}-{rank}.pt")
        steps(problem, optimizer, range(HALF, NUM_STEPS))
        save_file(named(problem, optimizer), f"{folder}/{name}-{rank}.safetensors")
    # goes on with what one process has left behind
    problem = Gradients(SHAPES)
    optimizer = SOAP(problem.parameters, **OPTIONS, process_group=group)
    optimizer.load_state_dict(torch.load(f"{folder}/alone.pt"))
    for p, t in load_file(f"{folder}/alone.safetensors").items():
        problem.parameters[int(p)].data.copy_(t)
    problem.generator.set_state(torch.load(f"{folder}/generator.pt"))
    steps(problem, optimizer, range(HALF, NUM_STEPS))
    save_file(named(problem, optimizer), f"{folder}/continued-{rank}.safetensors")
    problem = Gradients(ODD)
    steps(problem, SOAP(problem.parameters, **OPTIONS, process_group=group), range(NUM_STEPS))
    save_file({str(i): p.detach() for i, p in enumerate(problem.parameters)}, f"{folder}/odd-{rank}.safetensors")
    problem = Gradients(LATE)
    optimizer = SOAP(problem.parameters[:1], **OPTIONS, process_group=group)  # some ranks have nothing to do
    steps(problem, optimizer, range(3))
    optimizer.add_param_group({"params": problem.parameters[1:], "lr": 0.1})
    steps(problem, optimizer, range(3, NUM_STEPS))
    save_file(named(problem, optimizer), f"{folder}/late-{rank}.safetensors")
    save_file(told, f"{folder}/told-{rank}.safetensors")
    dist.destroy_process_group()


def alone(dtype: torch.dtype) -> tuple[Gradients, SOAP]:
    problem = Gradients(SHAPES, dtype)
    return problem, SOAP(problem.parameters, **OPTIONS)
