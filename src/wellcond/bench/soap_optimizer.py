"""SOAP's step alone, on the parameters of a model, against that of ``pytorch-optimizer``.

Both have the same shapes: a patch embedding is given as the matrix that it is, positions as a table. Gradients are four
random sets in turn, which fill every direction of the longest side. `worst_step_ms` is the slowest single step of ten.

Do they agree? `error_loss`: the largest difference of the losses of a small network over so many steps, over the first
loss. `error_update`: one step from the state that theirs has after the timing, difference of the updates over theirs.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..optim.soap import SOAP
from ..optim.soap.stacks import matrix_shape
from .timing import clock_for, interleave, timing_row

FREQUENCY = 10
THEIRS = "pytorch-optimizer"
OURS: dict[str, dict[str, Any]] = {
    "SOAP": {},
    "SOAP, float32 products": {"products": "float32"},
    "SOAP, all bases in one step": {"stagger": False},
    "SOAP, sides up to 1024": {"max_precondition_dim": 1024},
}


def rows(shapes: list[tuple[int, ...]], device: str, *, rounds: int, num_losses: int) -> list[dict[str, Any]]:
    """One row for each variant; theirs first, or a row that says that it is not installed."""
    makers = variants()
    runners: dict[str, Runner] = {}
    for name, make in makers.items():
        alike = "max_precondition_dim" not in OURS.get(name, {"max_precondition_dim": None})
        runners[name] = Runner(shapes, make, device, begun=runners.get("SOAP") if alike else None)
    timings = interleave(
        {name: runner.cycle for name, runner in runners.items()}, rounds=rounds, warmup=2, clock=clock_for(device)
    )
    baseline = timings[next(iter(makers))]
    worst = {name: runner.worst_step() for name, runner in runners.items()}
    losses = {name: regression(make, device, num_losses) for name, make in makers.items()}
    found = []
    for name, timing in timings.items():
        row = timing_row(timing, baseline) | {"default": name == "SOAP", "alike": "stagger" in OURS.get(name, {})}
        row |= {"step_ms": timing.median / FREQUENCY, "worst_step_ms": worst[name]}
        if THEIRS in makers:
            row["speedup"] = 1 / row["ratio"]
            difference = max(abs(a - b) for a, b in zip(losses[name], losses[THEIRS], strict=True))
            row["error_loss"] = difference / losses[THEIRS][0]
        if THEIRS in makers and name in ("SOAP", "SOAP, float32 products"):
            row["error_update"] = update_error(runners[THEIRS], OURS[name])
        found.append(row)
    if THEIRS not in makers:
        found.append({"name": THEIRS, "failed": "not installed: pip install pytorch-optimizer"})
    return found


Maker = Callable[[list[nn.Parameter]], Any]


def variants() -> dict[str, Maker]:
    """Optimizers by name; the reference first where it is installed."""
    found: dict[str, Maker] = {}
    try:
        import pytorch_optimizer

        found[THEIRS] = lambda parameters: pytorch_optimizer.SOAP(parameters, precondition_frequency=FREQUENCY)
    except ImportError:
        pass
    for name, options in OURS.items():
        found[name] = lambda parameters, options=options: SOAP(parameters, precondition_frequency=FREQUENCY, **options)
    return found


def shapes_of(model: str) -> list[tuple[int, ...]]:
    """Of all parameters of a timm model, as SOAP sees them."""
    import timm

    with torch.device("meta"):
        return [matrix_shape(p.shape) for p in timm.create_model(model).parameters()]


class Runner:
    """An optimizer with its own weights; gradients are exchanged, not computed."""

    def __init__(self, shapes: list[tuple[int, ...]], make: Maker, device: str, begun: "Runner | None" = None) -> None:
        generator = torch.Generator(device).manual_seed(0)

        def draw(shape: tuple[int, ...]) -> Tensor:
            return 0.02 * torch.randn(shape, generator=generator, device=device)

        self.device, self.parameters = device, [nn.Parameter(draw(shape)) for shape in shapes]
        self.sets = _gradients(tuple(shapes), device)
        self.turns: Iterator[list[Tensor]] = itertools.cycle(self.sets)
        self.optimizer = make(self.parameters)
        if begun is not None:
            self.optimizer.load_state_dict(begun.optimizer.state_dict())
        self.step()  # builds all bases, seconds on a large model

    def step(self) -> None:
        for p, gradient in zip(self.parameters, next(self.turns), strict=True):
            p.grad = gradient
        self.optimizer.step()

    def cycle(self) -> None:
        for _ in range(FREQUENCY):
            self.step()

    def worst_step(self) -> float:
        """Milliseconds of the slowest step of a cycle."""
        clock = clock_for(self.device)
        clock.begin_round()
        return max(clock.end_round([clock.measure(self.step) for _ in range(FREQUENCY)]))


_held: dict[tuple, list[list[Tensor]]] = {}


def _gradients(shapes: tuple[tuple[int, ...], ...], device: str) -> list[list[Tensor]]:
    """Four sets, shared by all optimizers (none changes a gradient); the columns of a matrix differ in size."""
    if (shapes, device) not in _held:
        _held.clear()
        generator = torch.Generator(device).manual_seed(1)
        _held[shapes, device] = [
            [
                torch.randn(s, generator=generator, device=device) * torch.logspace(-3, -5, s[-1], device=device)
                for s in shapes
            ]
            for _ in range(4)
        ]
    return _held[shapes, device]


def regression(make: Maker, device: str, num_steps: int) -> list[float]:
    """Losses of a small network of square matrices, whose first bases leave no choice."""
    generator = torch.Generator().manual_seed(2)
    X = torch.randn(512, 32, generator=generator).to(device)
    Y = torch.sin(X @ torch.randn(32, 32, generator=generator).to(device))
    weights = [nn.Parameter((torch.randn(32, 32, generator=generator) / 32**0.5).to(device)) for _ in range(3)]
    optimizer, losses = make(weights), []
    for step in range(num_steps):
        batch = slice(128 * (step % 4), 128 * (step % 4) + 128)
        H = X[batch]
        for W in weights:
            H = torch.tanh(H @ W)
        loss = (H - Y[batch]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


@torch.no_grad()
def update_error(theirs: Runner, options: dict[str, Any]) -> float:
    """Both take the same step from the same state, theirs; it is left as it was."""
    before = [p.detach().clone() for p in theirs.parameters]
    copies = [nn.Parameter(p.clone()) for p in before]
    ours = SOAP(copies, precondition_frequency=FREQUENCY, **options)
    for p, copy in zip(theirs.parameters, copies, strict=True):
        given, own = theirs.optimizer.state[p], ours.state[copy]
        own["step"].fill_(theirs.optimizer.param_groups[0]["step"])
        own["turn"].fill_(1)
        for key in ("exp_avg", "exp_avg_sq"):
            own[key].copy_(given[key])
        for side, A, Q in zip(("left", "right"), given["GG"], given["Q"], strict=False):
            if f"gram_{side}" in own:
                own[f"gram_{side}"].copy_(A)
                own[f"basis_{side}"].copy_(Q)
    theirs.step()
    for p, copy in zip(theirs.parameters, copies, strict=True):
        copy.grad = p.grad
    ours.update()
    moved = [(p - b, c - b) for p, c, b in zip(theirs.parameters, copies, before, strict=True)]
    difference = torch.stack([(a - b).square().sum() for a, b in moved]).sum()
    return float((difference / torch.stack([a.square().sum() for a, _ in moved]).sum()).sqrt())
