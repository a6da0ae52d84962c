"""Monitor: what a training loop calls once a step."""

import warnings
from collections import deque
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from wellcond.blocks import find_blocks
from wellcond.diagnosis.result import Finding
from wellcond.monitor import measuring
from wellcond.monitor.alarms import alarms, start_of
from wellcond.monitor.batch import FirstBatch, check, fitting
from wellcond.monitor.budget import Budget
from wellcond.monitor.journal import Journal, Measurement
from wellcond.probes import TOKEN_QUANTITIES, Row
from wellcond.probes.probing import chosen


class WellcondWarning(UserWarning):
    """Something about the conditioning of a model in training; said once for each kind and block."""


class Monitor:
    """Measures a model while it is trained: `monitor = Monitor(model)`, then `monitor.step()` after each step.

    After the first step and then every `every` steps the model, with the weights it has then, runs once more on a few
    images, in eval mode and without gradients, uncompiled, under the autocast in which `step()` is called (mostly none:
    float32, without the rounding of bfloat16). Training is the same, bit for bit, as without a monitor. Other steps
    cost nothing, and none waits for a GPU: numbers arrive some steps later, at the latest at `close()`. The pass is
    `model(images)`, without further arguments.

    - `model`: what the loop calls, bare or wrapped: the result of `torch.compile`, DistributedDataParallel. Under
      torch.distributed rank 0 alone measures. Blocks that are not timm's are proven anew each time, which is slow:
      `wellcond.blocks.adapt(model, images)` before proves them once.
    - `images`: how many of the first batch seen, or the images themselves (B, C, H, W). The same ones every time, so
      that what changes is the model. A model that was compiled in place, or whose compiled wrapper is not what you
      passed, hides its batches, and so does a loss inside a compiled function: pass images.
    - `quantities`: as in `probes.probe`; those of attention compute every map a second time, so they are left out.
    - `budget`: the share of time that measuring may take; measurements beyond it are left out. None: no limit, and
      the measured steps do not depend on the machine.
    - `path`: a file for one JSON line for each measurement (`monitor.read`).

    `rows`: the latest; `history`: the last `keep` measurements; `warnings`: all (step, finding) so far, each also a
    `WellcondWarning`; `share`: of the time since the first measurement, what was spent on later ones; `num_skipped`:
    those that were left out for the budget.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 200,
        *,
        images: Tensor | int = 8,
        quantities: Collection[str] = TOKEN_QUANTITIES,
        budget: float | None = 0.01,
        path: str | Path | None = None,
        keep: int = 100,
    ) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r}; give a whole number, 1 or more")
        if budget is not None and not (isinstance(budget, int | float) and 0 < budget <= 1):
            raise ValueError(f"budget={budget!r}; give a share of the time, more than 0 and at most 1, or None")
        if isinstance(images, int) and (isinstance(images, bool) or images < 1):
            raise ValueError(f"images={images!r}; give a number of images, 1 or more, or the images themselves")
        self._quantities = chosen("all", quantities, attention=True)
        find_blocks(model)
        measuring.check_whole(model)
        self._model, self._every = measuring.plain(model), every
        self._journal = None if path is None else Journal(Path(path))
        self._budget = Budget(budget)
        self._pending: deque[measuring.Pending] = deque()
        self._start: dict[tuple[int, str], float] = {}
        self._told: set[tuple[str, int | None]] = set()
        self._step = self._num_calls = 0
        self._begun = self._resumed = self._closed = False
        self.num_skipped = 0
        self.history: deque[Measurement] = deque(maxlen=keep)
        self.warnings: list[tuple[int, Finding]] = []
        self._images = None if isinstance(images, int) else check(images, self._model)
        self._first = FirstBatch(model, images) if isinstance(images, int) else None

    def step(self) -> None:
        """One step of training is over, the optimizer's included."""
        self._check_call()
        self._step += 1
        self._num_calls += 1
        if self._due() and self._is_writer() and self._has_images():
            if self._budget.allows():
                self._pending.append(self._measure())
            else:
                self.num_skipped += 1
        self._take_in()
        if self._num_calls == 2 and self._is_writer() and not self._has_images():
            warnings.warn(_NO_IMAGES, WellcondWarning, stacklevel=2)

    @property
    def rows(self) -> list[Row]:
        return self.history[-1].rows if self.history else []

    @property
    def share(self) -> float:
        return self._budget.share

    def close(self) -> None:
        """Wait for what is on its way and let go of the model. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._let_go()
            self._take_in(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except Exception:
            if error is None:  # else what went wrong before is what the user must see
                raise

    def state_dict(self) -> dict[str, Any]:
        """What decides the next measurement: belongs into the checkpoint of the model."""
        self._take_in(wait=True)
        return {
            "step": self._step,
            "images": self._images if self._first is None else self._first.images,
            "start": [[*place, value] for place, value in self._start.items()],
            "begun": self._begun,
            "told": sorted(self._told, key=str),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after a checkpoint, before the first `step()`; lines of later steps are cut off the file."""
        if self._num_calls:
            raise ValueError(f"load_state_dict() after {self._num_calls} steps; call it before the first step()")
        if "step" not in state:
            raise ValueError(f"the state has no 'step', only {sorted(state)}; pass what state_dict() gave")
        self._step, self._resumed = int(state["step"]), True
        self._start = {(layer, site): value for layer, site, value in state.get("start", [])}
        self._begun = bool(state.get("begun", False))
        self._told = {(kind, layer) for kind, layer in state.get("told", [])}
        if (images := state.get("images")) is not None:
            self._let_go()
            self._images = check(images, self._model)

    def _check_call(self) -> None:
        if self._closed:
            raise ValueError("step() on a monitor that is closed; make a new Monitor to go on measuring")
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise ValueError("step() while a CUDA graph is captured; call it outside, after each replay")
        if self._num_calls == 0 and self._journal is not None and self._is_writer():
            self._journal.resume(self._step if self._resumed else None)

    def _due(self) -> bool:
        return self._step == 1 or self._step % self._every == 0

    def _has_images(self) -> bool:
        if self._images is None and self._first is not None:
            self._images = self._first.images
        return self._images is not None

    def _measure(self) -> measuring.Pending:
        assert self._images is not None
        self._images = fitting(self._images, self._model)
        return measuring.start(self._model, self._images, self._quantities, self._step, self._budget.now)

    def _take_in(self, wait: bool = False) -> None:
        """Take in the measurements whose numbers are here, and say what has not been said before."""
        while self._pending and (wait or self._pending[0].span.over()):
            pending = self._pending.popleft()
            pending.span.wait()
            begin = self._budget.now()
            new = self._judge(pending)
            self._budget.add(pending.span.seconds + self._budget.now() - begin)
            for finding in new:
                message = f"step {pending.step}: {finding.text} {finding.evidence}; {finding.remedy}"
                warnings.warn(message, WellcondWarning, stacklevel=3)

    def _judge(self, pending: measuring.Pending) -> list[Finding]:
        """Keep and write a measurement; returns what is new in it."""
        measured = pending.measured()
        self._start = start_of(measured.rows, self._start)
        found = alarms(measured, self._start)
        measurement = Measurement(step=pending.step, rows=measured.rows, warnings=found)
        self.history.append(measurement)
        if self._journal is not None:
            self._journal.add(measurement)
        new = [finding for finding in found if (finding.kind, finding.layer) not in self._told]
        self._told |= {(finding.kind, finding.layer) for finding in new}
        if not self._begun:
            self._begun = True
            new = [finding for finding in new if finding.severity == "warning"]
        self.warnings += [(pending.step, finding) for finding in new]
        return new

    def _let_go(self) -> None:
        if self._first is not None:
            self._first.remove()

    @staticmethod
    def _is_writer() -> bool:
        distributed = torch.distributed
        return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


_NO_IMAGES = (
    "nothing is measured: no batch of images was seen. A compiled model hides them unless its wrapper is what "
    "Monitor was given; pass images=, a few of your own"
)
