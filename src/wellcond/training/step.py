"""One training step as a function of its inputs: gather, augment, forward, backward, clip, update, average.

Nothing in it waits for the device. A loss or gradient that is not finite makes `bad` 1, on the device and on every rank
(the loss is summed over ranks, and so is the gradient): the optimizer, the average and the model's buffers then stay
what they were, and the host learns of it from the numbers that the step returns.

Run as it is, with the model and the augmentation compiled, or captured whole as a CUDA graph (capture.py).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from wellcond.config import TrainConfig
from wellcond.objectives import Objective
from wellcond.optim import ScheduledDecay, Updates, WeightAverage
from wellcond.training.dropping import Drops
from wellcond.training.processes import Processes, last_chunk_only
from wellcond.training.sharding import local, whole
from wellcond.training.supply import Inputs

Prepare = Callable[[Inputs], tuple[Tensor, Tensor]]
DTYPES = {"bf16": torch.float32, "float32": torch.float32, "float64": torch.float64}  # of the weights


class Step:
    """`step(inputs, lr=…, …)`, knobs as in `turn` → numbers (loss, gradient norm, bad, stop, metrics…), on the device.

    `objective` is the module itself, `forward` what is called in its place (DDP, compiled), `drops` what its dropped
    paths hang on.
    """

    reason = "step by step"

    def __init__(
        self,
        objective: Objective,
        forward: Callable[..., tuple[Tensor, dict[str, Tensor]]],
        prepare: Prepare,
        updates: Updates,
        average: WeightAverage | None,
        drops: Drops,
        config: TrainConfig,
        processes: Processes,
    ) -> None:
        self.objective, self.forward, self.prepare = objective, forward, prepare
        self.updates, self.average, self.drops = updates, average, drops
        self.config, self.processes = config, processes
        self.dtype = DTYPES[config.precision]
        self.decay = ScheduledDecay(objective, config.optim) if config.optim.weight_decay_end is not None else None
        self.metric_names: tuple[str, ...] = ()
        # of batch norms: each rank has seen other images, and all are to judge the model that is saved
        norms = (module for module in objective.modules() if isinstance(module, _BatchNorm))
        self.statistics = [buffer for norm in norms for buffer in norm.buffers()]
        knobs_dtype = torch.float32 if processes.device.type == "cuda" else torch.float64
        # learning rate, weight of the average, wish to stop, dry run (as if the step were bad), weight decay
        self.knobs = torch.zeros(5, dtype=knobs_dtype, device=processes.device)

    def __call__(self, inputs: Inputs, **knobs: float) -> Tensor:
        self.turn(**knobs)
        numbers = self.run(inputs)
        if not knobs.get("dry"):
            self.updates.refresh()
        return numbers

    def turn(
        self, *, lr: float, average_weight: float = 0.0, stop: float = 0, dry: float = 0, weight_decay: float = 0.0
    ) -> None:
        """Set the knobs by kernels that carry the number: no copy from the host's memory, so nothing to wait for."""
        values = lr, average_weight, stop, dry, weight_decay
        for knob, value in zip(self.knobs.unbind(), values, strict=True):
            knob.fill_(value)

    def run(self, inputs: Inputs) -> Tensor:
        lr, average_weight, stop, dry, weight_decay = self.knobs.unbind()
        self.updates.zero_grad()
        buffers = [(b, b.detach().clone()) for b in self.objective.buffers()]
        loss, metrics = self._backward(inputs)
        # one sum over ranks for all numbers; a NaN on one rank is then a NaN on all
        numbers = self.processes.sum_(torch.stack([loss, *metrics.values(), stop.to(loss.dtype)]))
        numbers = numbers / self.processes.world_size
        gradients = [p.grad for p in self.updates.parameters if p.grad is not None]
        norm = whole(get_total_norm(gradients))
        bad = ~(numbers[0].isfinite() & norm.isfinite()) | (dry > 0)
        if self.config.optim.clip is not None:
            clip_grads_with_norm_(self.updates.parameters, self.config.optim.clip, norm)
        frozen = [(local(p), local(p).detach().clone(), flag) for p, flag in self.objective.frozen()]
        self.updates.set_lr(lr)
        with torch.no_grad():
            if self.decay is not None:
                self.decay.step_(lr * weight_decay * ~bad)
            self.updates.step(bad.float())
            for parameter, before, flag in frozen:
                parameter.copy_(torch.where(flag > 0, before, parameter))
            for buffer, before in buffers:
                buffer.copy_(torch.where(bad, before, buffer))
            self.processes.copy_(self.statistics)
            settled = self.objective.settle_((~bad).to(lr.dtype), self._mean)
            if self.average is not None:
                self.average.update_(average_weight * ~bad)
        self.metric_names = (*metrics, *settled)
        found = [numbers[0], norm, bad, numbers[-1], *numbers[1:-1], *settled.values()]
        return torch.stack([number.to(loss.dtype) for number in found]).detach()

    def _mean(self, tensor: Tensor) -> Tensor:
        return self.processes.sum_(tensor) / self.processes.world_size

    def _backward(self, inputs: Inputs) -> tuple[Tensor, dict[str, Tensor]]:
        """Gradients of the mean loss over the chunks; the loss and metrics, averaged."""
        num_chunks = self.config.accumulate
        total: list[Tensor] = []
        names: list[str] = []
        for i in range(num_chunks):
            part = chunk(inputs, i, num_chunks)
            images, targets = self.prepare(part)
            with last_chunk_only(self.forward, i == num_chunks - 1), self.drops.of(part.get("keys")):  # type: ignore[arg-type]
                with self.autocast():
                    loss, metrics = self.forward(images.to(self.dtype), cast_floats(targets, self.dtype))
                (loss / num_chunks).backward()
            numbers = torch.stack([loss.detach(), *(m.detach().to(loss.dtype) for m in metrics.values())])
            total, names = [*total, numbers / num_chunks], list(metrics)
        mean = torch.stack(total).sum(0)
        return mean[0], dict(zip(names, mean[1:].unbind(), strict=True))

    def autocast(self) -> AbstractContextManager:
        """bfloat16 where the config says so. No cache of cast weights: it must not outlive a captured step."""
        device = self.processes.device.type
        return torch.autocast(device, torch.bfloat16, enabled=self.config.precision == "bf16", cache_enabled=False)


def chunk(inputs: Inputs, i: int, num_chunks: int) -> Inputs:
    """The i-th contiguous chunk of every (B, …) tensor; 0-d ones are for the whole batch."""
    if num_chunks == 1:
        return inputs
    return {
        name: t if t.ndim == 0 else t[i * (len(t) // num_chunks) : (i + 1) * (len(t) // num_chunks)]
        for name, t in inputs.items()
    }


def cast_floats(targets: Tensor, dtype: torch.dtype) -> Tensor:
    return targets.to(dtype) if targets.is_floating_point() else targets
