"""The whole step as one CUDA graph: a small model's step is bound by its launches, a replay has one.

Inputs are copied into buffers that the graph reads; learning rate, average weight and the wish to stop are knobs on the
device (step.py). Capture wants compilation and lazy initialisation done before, on another stream: these first steps
are dry, so they leave weights, optimizer and average as they were, and the random state is put back.
"""

import warnings

import torch
from torch import Tensor

from wellcond.training.processes import Processes
from wellcond.training.step import Step
from wellcond.training.supply import Inputs

WARMUP = 3


class CapturedStep:
    """Looks like a Step, and replays."""

    reason = "CUDA graph"

    def __init__(self, step: Step, inputs: Inputs) -> None:
        self.step = step
        self.inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        random = torch.cuda.get_rng_state(), torch.get_rng_state()
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        untouched = generator.clone_state()
        try:
            self._warm_up()
            self.graph = torch.cuda.CUDAGraph()
            # thread_local: the thread that carries streamed images goes on calling CUDA
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.numbers = step.run(self.inputs)
        except RuntimeError:
            generator.graphsafe_set_state(untouched)  # the other one still believes that it is being captured
            raise
        finally:
            torch.cuda.synchronize()
            torch.cuda.set_rng_state(random[0])
            torch.set_rng_state(random[1])

    def _warm_up(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUP):
                self.step(self.inputs, lr=0.0, dry=True)
        torch.cuda.current_stream().wait_stream(side)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return self.step.metric_names

    def __call__(self, inputs: Inputs, **knobs: float) -> Tensor:
        self.step.turn(**knobs)
        for name, tensor in inputs.items():
            self.inputs[name].copy_(tensor, non_blocking=True)
        self.graph.replay()
        if not knobs.get("dry"):
            self.step.updates.refresh()  # which bases, and how many, differs from step to step: not in the graph
        return self.numbers


def check_graph(graph: str, processes: Processes) -> None:
    """ValueError, before anything is made, where a graph is asked for and no step here can be one."""
    reason = _why_not_here(processes)
    if graph == "on" and reason is not None:
        raise ValueError(f"graph is 'on', but the step cannot be a CUDA graph: {reason}; use graph auto or off")


def _why_not_here(processes: Processes) -> str | None:
    if processes.device.type != "cuda":
        return "there is no GPU"
    return "there are several processes" if processes.world_size > 1 else None


def why_not(step: Step) -> str | None:
    """Why this step cannot be captured, in words; None where it can."""
    if (reason := _why_not_here(step.processes)) is not None:
        return reason
    if not step.updates.capturable:
        return "the optimizer reads its learning rate on the host"
    return None


def capture(step: Step, inputs: Inputs, graph: str) -> tuple[Step | CapturedStep, str | None]:
    """The captured step where `graph` ("auto", "on", "off") and the machine allow it, else the step and why."""
    if graph == "off":
        return step, None
    reason = why_not(step)
    if reason is None:
        try:
            return CapturedStep(step, inputs), None
        except RuntimeError as error:
            reason = f"capture failed: {str(error).splitlines()[0]}"
            step.updates.zero_grad()  # gradients of the failed capture lie in its memory
    if graph == "on":
        raise ValueError(f"graph is 'on', but the step cannot be a CUDA graph: {reason}; use graph auto or off")
    if step.processes.device.type == "cuda":
        warnings.warn(f"no CUDA graph: {reason}", stacklevel=2)
    return step, reason
