"""Parts a and b of the graying benchmark: a training step with and without graying, all in one run."""

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch._dynamo
from torch import nn

from ..graying import TokenGraying, gray
from . import oracle
from .accuracy import Accuracy
from .images import Pictures, normalise
from .placement import Ahead, Batches, Before, Direct
from .steps import CapturedStep, Step, num_bytes, peak_memory
from .timing import clock_for, interleave, ratio, timing_row
from .variants import PLAIN, UNGRAYED, Variant
from .workloads import Training


class Contest:
    """Builds one callable per variant and measures them against each other.

    Variants with graying inside own a model, compiled on its own; all others share the plain one. The plain
    step is built and weighed first, so that what a graying variant caches on the device counts for it, never
    for plain.
    """

    def __init__(self, work: Training, pictures: Pictures, *, device: str, seed: int):
        self.work, self.device = work, device
        batches = pictures.pixels.reshape(-1, work.batch, *pictures.pixels.shape[1:])
        self.images = [normalise(pixels, device) for pixels in batches]
        generator = torch.Generator().manual_seed(seed)
        self.labels = [
            torch.randint(work.num_classes, (work.batch,), generator=generator).to(device) for _ in self.images
        ]
        self.base = build_vit(work, seed)
        self.steps: dict[str, Step | CapturedStep] = {}
        self.runs: dict[str, Any] = {}
        self.peaks: dict[str, int] = {}
        self.compiled_errors: dict[str, float] = {}
        self.failures: dict[str, str] = {}

    def build(self, variant: Variant) -> None:
        """Compile, run twice and weigh a variant; one that cannot be built is a row that says why."""
        start = time.perf_counter()
        try:
            run = self._runner(variant)
            run()
            run()
            if variant.method and variant.placement == "inside" and self.work.compiled:
                self.compiled_errors[variant.name] = self._compiled_error(variant)
            if self.device == "cuda":
                self.peaks[variant.name] = self._peak(variant, run)
            self.runs[variant.name] = run
        except Exception as error:
            if variant == PLAIN:
                raise
            self.failures[variant.name] = f"{type(error).__name__}: {error}".splitlines()[0]
        outcome = self.failures.get(variant.name, "built")
        print(f"  {variant.name}: {outcome} ({time.perf_counter() - start:.1f} s)", flush=True)

    def _runner(self, variant: Variant) -> Any:
        batches = Batches(self.images, self.labels)
        if variant.method is None or variant.placement == "inside":
            return Direct(self._step(variant), batches)
        if variant.placement == "ahead" and self.device == "cpu":
            raise ValueError("a side stream needs a CUDA device")
        plain = self.steps[PLAIN.name]
        kind = Ahead if variant.placement == "ahead" else Before
        return kind(plain, batches, graying_module(variant, self.work.patch_size), self.autocast())

    def _step(self, variant: Variant) -> Step | CapturedStep:
        if variant.again:
            return self.steps[PLAIN.name]
        model = copy.deepcopy(self.base)
        if variant.product:
            model = gray(model, epsilon=1)
        if variant.method and variant.epsilon:
            model = gray(model, variant.method, variant.epsilon, precision=variant.precision)
        step = Step(model, device=self.device, compiled=self.work.compiled, capturable=self.work.captured)
        if self.work.captured:
            step = CapturedStep(step, self.images[0], self.labels[0])
        self.steps[variant.name] = step
        return step

    def _compiled_error(self, variant: Variant) -> float:
        """How far the compiled model's logits are from the same model's without compilation.

        Models of one class share compiled code as far as dynamo's guards tell them apart (they ignore hooks,
        for one): a grayed model that ran the plain one's code would be the fastest variant of all.
        """
        step = _inner(self.steps[variant.name])
        plain = copy.deepcopy(self.base).to(self.device).train()
        plain.load_state_dict(step.model.state_dict())
        images = self.images[0]
        with step.autocast():
            compiled = step.forward(images).detach().float()  # with gradients, or it would compile once more
            with torch.no_grad():
                grayed, ungrayed = step.model(images).float(), plain(images).float()
        error, distance = ((compiled - other).norm() / compiled.norm() for other in (grayed, ungrayed))
        if not error < distance:
            raise RuntimeError(f"the compiled model does not gray (off by {error:.1e}, plain by {distance:.1e})")
        return error.item()

    def autocast(self) -> Any:
        return _inner(self.steps[PLAIN.name]).autocast

    def _peak(self, variant: Variant, run: Any) -> int:
        """Peak bytes of a call, less what the other variants keep resident for themselves."""
        mine = self.steps.get(variant.name, self.steps[PLAIN.name])
        others = sum(s.num_bytes() for s in self.steps.values() if s is not mine)
        waiting = sum(num_bytes([r.grayed]) for r in self.runs.values() if isinstance(r, Ahead))
        return peak_memory(run) - others - waiting + mine.pool_bytes

    def rows(self, variants: Sequence[Variant]) -> list[dict[str, Any]]:
        """Time everything that was built; errors beside it."""
        timings = interleave(self.runs, rounds=self.work.rounds, clock=clock_for(self.device))
        accuracy = Accuracy(
            self.images[0],
            patch_size=self.work.patch_size,
            count=self.work.num_error_images,
            autocast=self.autocast(),
        )
        return [self._row(variant, timings, accuracy) for variant in variants]

    def _row(self, variant: Variant, timings: Any, accuracy: Accuracy) -> dict[str, Any]:
        name = variant.name
        row: dict[str, Any] = {"name": name, "method": variant.method, "epsilon": variant.epsilon}
        if variant.method:
            row |= {"precision": variant.precision, "placement": variant.placement}
        if name in self.failures:
            return row | {"failed": self.failures[name]}
        row |= timing_row(timings[name], timings[PLAIN.name])
        if UNGRAYED.name in timings:
            alone, interval = ratio(timings[name], timings[UNGRAYED.name])
            row |= {"ratio_to_ungrayed": alone, "ratio_to_ungrayed_ci": list(interval)}
        row["images_per_s"] = 1e3 * self.work.batch / row["median_ms"]
        if self.peaks:
            row["peak_memory_gib"] = self.peaks[name] / 2**30
            row["peak_memory_ratio"] = self.peaks[name] / self.peaks[PLAIN.name]
        if variant == PLAIN:
            row |= oracle.kappas(accuracy.tokens)
        if variant.method:
            errors = accuracy.of_tokens(variant, graying_module(variant, self.work.patch_size))
            row |= errors | {"meets_error": variant.meets_error(errors)}
            row |= self._extra_errors(variant, accuracy)
        return row

    def _extra_errors(self, variant: Variant, accuracy: Accuracy) -> dict[str, Any]:
        run, step = self.runs[variant.name], self.steps.get(variant.name)
        if isinstance(run, Ahead):
            return {"error_handover": run.handover_error()}
        if step is None:
            return {}
        errors = accuracy.of_embedding(variant, _inner(step).model)
        return errors | {"error_compiled": self.compiled_errors.get(variant.name)}


def _inner(step: Step | CapturedStep) -> Step:
    return step.step if isinstance(step, CapturedStep) else step


def graying_module(variant: Variant, patch_size: int) -> nn.Module:
    """``TokenGraying`` as this variant wants it."""
    assert variant.method is not None
    assert variant.epsilon is not None
    return TokenGraying(patch_size, variant.method, variant.epsilon, precision=variant.precision)


def build_vit(work: Training, seed: int) -> nn.Module:
    """A ViT with random weights that depend on ``seed`` only; the global generators are left as they were."""
    from timm.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return VisionTransformer(
            img_size=work.size,
            patch_size=work.patch_size,
            embed_dim=work.embed_dim,
            depth=work.depth,
            num_heads=work.num_heads,
            num_classes=work.num_classes,
        )


def measure(
    work: Training, variants: Sequence[Variant], pictures: Pictures, *, device: str, seed: int
) -> list[dict[str, Any]]:
    """Rows of one training workload."""
    torch.compiler.reset()  # else the models of an earlier workload would count as recompilations
    # Every variant recompiles the same code; past dynamo's limit of 8 it would silently run uncompiled.
    with torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
        contest = Contest(work, pictures, device=device, seed=seed)
        for variant in variants:
            contest.build(variant)
        print(f"  timing {len(contest.runs)} variants, {work.rounds} rounds", flush=True)
        return contest.rows(variants)
