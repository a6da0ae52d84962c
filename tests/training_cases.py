"""A small supply of tensors, a tiny ViT, and processes that can be killed: what the tests of training share.

The supply keeps the rules of the real one: indices are a function of (seed, step), ranks take contiguous chunks.
"""

import contextlib
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from wellcond.config import DataConfig, DINOConfig, MAEConfig, ModelConfig, OptimConfig, TrainConfig
from wellcond.data.masking import patch_order
from wellcond.data.randomness import keys
from wellcond.runs import Run
from wellcond.training import Stopped, checkpoints, train, trainer
from wellcond.training.processes import process_group
from wellcond.training.supply import Contents

NUM_CLASSES, NUM_TRAIN, NUM_VAL, SIZE = 4, 40, 11, 8
PATCH, NUM_PATCHES = 4, 4
NUM_NOISE = 4000


class TensorSupply:
    """40 random pictures of 4 classes; `poison` names samples that are NaN."""

    num_classes = NUM_CLASSES
    classes: Sequence[str] = ()
    fingerprint = val_fingerprint = "tensors"
    poison: frozenset[int] = frozenset()

    def __init__(self, config: TrainConfig, processes: Any) -> None:
        self.config, self.processes = config, processes
        self.contents: Contents = {}
        self.steps_per_epoch = NUM_TRAIN // config.batch_size
        rng = np.random.default_rng(7)
        self.labels = torch.from_numpy(rng.integers(NUM_CLASSES, size=NUM_TRAIN + NUM_VAL))
        means = rng.standard_normal((NUM_CLASSES, 3, SIZE, SIZE))
        noise = rng.standard_normal((NUM_TRAIN + NUM_VAL, 3, SIZE, SIZE))
        self.images = torch.from_numpy(means[self.labels] + 0.5 * noise)
        for index in self.poison:
            self.images[index] = float("nan")
        self.images, self.labels = self.images.to(processes.device), self.labels.to(processes.device)

    def indices(self, step: int) -> torch.Tensor:
        epoch, position = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self.config.seed, epoch]).permutation(NUM_TRAIN)
        B = self.config.batch_size
        return torch.from_numpy(order[position * B : (position + 1) * B])

    def inputs(self, step: int) -> dict[str, torch.Tensor]:
        indices = self.indices(step)
        known = {"indices": indices, "keys": keys(self.config.seed, step // self.steps_per_epoch, indices)}
        return {name: self.carried(self.processes.part(tensor)) for name, tensor in known.items()}

    def carried(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.processes.device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self.processes.device, non_blocking=True)

    def prepare(self, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.views(inputs["indices"])

    def views(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and labels, or an order of their patches that hangs on the sample alone, or crops."""
        if self.config.objective == "mae":
            return self.images[indices], patch_order(keys(0, 0, indices), NUM_PATCHES)
        if self.config.objective == "dino":
            x = self.images[indices]
            return torch.stack([x, 0.9 * x.flip(3)], 1), torch.stack([x[..., :4, :4], x[..., 4:, 4:].flip(3)], 1)
        return self.images[indices], self.labels[indices]

    def validation(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for i in range(self.processes.rank * 4, NUM_VAL, self.processes.world_size * 4):
            numbers = torch.arange(i, min(i + 4, NUM_VAL), device=self.images.device)
            yield self.views(NUM_TRAIN + numbers)

    def fixed_images(self, count: int) -> torch.Tensor:
        return self.images[NUM_TRAIN : NUM_TRAIN + count]

    def close(self) -> None:
        pass


class JudgedByTheLast(TensorSupply):
    """Pictures of noise to be judged on, all by the last rank; the others have padding."""

    @staticmethod
    def noise() -> torch.Tensor:
        return torch.randn(NUM_NOISE, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def validation(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        noise = self.noise()
        last = self.processes.rank == self.processes.world_size - 1
        yield noise, torch.arange(NUM_NOISE) % NUM_CLASSES if last else torch.full((NUM_NOISE,), -1)


class OnePoisoned(TensorSupply):
    poison = frozenset({3})


class AllPoisoned(TensorSupply):
    poison = frozenset(range(NUM_TRAIN))


def tiny(**changes: Any) -> TrainConfig:
    """A ViT of 2 blocks, 16 wide, on 8 px; 3 epochs of 5 steps."""
    config = TrainConfig(
        model=ModelConfig(
            name="vit_tiny_patch16_224",
            image_size=SIZE,
            patch_size=PATCH,
            num_classes=NUM_CLASSES,
            drop_path=0.2,
            options=(("embed_dim", 16), ("depth", 2), ("num_heads", 2)),
        ),
        data=DataConfig(train="tensors", val="tensors", image_size=SIZE),
        optim=OptimConfig(lr=3e-3, clip=1.0, warmup_epochs=1.0),
        epochs=3,
        batch_size=8,
        precision="float32",
        log_every=2,
        checkpoint_every=3,
        device="cpu",
        graph="off",
    )
    return replace(config, **changes)


def with_dropout(config: TrainConfig) -> TrainConfig:
    """The same, but so that torch's own generators decide something: dropped paths ask none."""
    options = (*config.model.options, ("proj_drop_rate", 0.1))
    return replace(config, model=replace(config.model, options=options))


def without_labels(name: str, **changes: Any) -> TrainConfig:
    """The same for an objective that has none."""
    model = replace(tiny().model, num_classes=0)
    mae = MAEConfig(decoder_depth=1, decoder_width=8, decoder_heads=2, mask=0.5)
    dino = DINOConfig(
        out_dim=12, hidden=16, bottleneck=8, local_crops=2, local_size=PATCH, temperature_epochs=2.0, momentum=0.9
    )
    return tiny(**{"objective": name, "model": model, name: {"mae": mae, "dino": dino}[name], **changes})


def run(config: TrainConfig, out: Path, supply: Any = TensorSupply) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return train(config, out, open_supply=supply)


def final(out: Path) -> dict[str, bytes]:
    """Every byte that a run leaves which has no clock: the newest checkpoint's files and metrics.jsonl."""
    path = out / "checkpoints" / checkpoints.name_of(checkpoints.steps(out / "checkpoints")[0])
    files = {p.name: p.read_bytes() for p in path.iterdir()}
    return files | {"metrics.jsonl": (out / "metrics.jsonl").read_bytes()}


def same_bits(one: Path, two: Path) -> None:
    """Two runs left the same files with the same bytes."""
    ours, theirs = final(one), final(two)
    differ = [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]
    assert not differ, differ


def resumes_to_the_bit(config: TrainConfig, folder: Path, monkeypatch: Any, *, at: int) -> None:
    """A run that breaks off before step `at` and goes on is the run that never stopped."""
    run(config, folder / "straight")
    with power_cut(monkeypatch, at=at):
        run(config, folder / "run")
    run(config, folder / "run")
    same_bits(folder / "run", folder / "straight")


def graph_equals_eager(config: TrainConfig, folder: Path) -> None:
    """As one CUDA graph and step by step, to the bit."""
    run(replace(config, graph="on"), folder / "graph")
    run(replace(config, graph="off"), folder / "eager")
    same_bits(folder / "graph", folder / "eager")


def gpu_agrees_with_cpu(config: TrainConfig, folder: Path, *, rel: float) -> None:
    """The losses, with dropped paths. The learning rate is float32 on the GPU."""
    assert config.model.drop_path
    run(config, folder / "gpu")
    run(replace(config, device="cpu", graph="off"), folder / "cpu")
    one, two = ([row["loss"] for row in Run(folder / where).rows() if "loss" in row] for where in ("gpu", "cpu"))
    assert len(one) == len(two) > 0
    np.testing.assert_allclose(one, two, rtol=rel)


def does_not_wait(config: TrainConfig, out: Path, *, warm_up: int = 6) -> None:
    """After `warm_up` steps on a GPU, 20 more in which a wait for it is an error."""
    out.mkdir()
    with process_group("cuda", config.batch_size, 1) as processes:
        work = trainer.Trainer(config, Run(out), TensorSupply(config, processes), processes)
        work.restore()
        for _ in range(warm_up):
            work.advance(stop=False)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(20):
                work.advance(stop=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        work.close()


# faults: each replaces a function by one that kills its process at the n-th call, before or in the middle of its work


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _nth(function: Callable[..., Any], n: int, then: Callable[..., Any]) -> Callable[..., Any]:
    calls = iter(range(1, 1_000_000))

    def counted(*args: Any, **kwargs: Any) -> Any:
        return then(function, *args, **kwargs) if next(calls) == n else function(*args, **kwargs)

    return counted


def _before(_function: Any, *_args: Any, **_kwargs: Any) -> None:
    _die()


def _after(function: Any, *args: Any, **kwargs: Any) -> None:
    function(*args, **kwargs)
    _die()


def _torn_write(function: Any, tensors: Any, path: Path, **options: Any) -> None:
    function(tensors, path, **options)
    os.truncate(path, path.stat().st_size // 2)
    _die()


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "before a step": (trainer.Trainer, "advance", _before),
    "after a step": (trainer.Trainer, "advance", _after),
    "after an evaluation": (trainer.Trainer, "evaluate", _after),
    "inside a file of a save": (checkpoints, "save_file", _torn_write),
    "before the manifest is synced": (checkpoints, "sync_file", _before),
    "before the rename": (checkpoints.os, "rename", _before),
    "after the rename": (checkpoints.os, "rename", _after),
    "while old ones are removed": (checkpoints, "_remove", _before),
}


def child(
    config: TrainConfig, out: str, supply: Any, fault: tuple[str, int] | None, rank: int, world_size: int, port: int
) -> None:
    """One process of a run; `fault` kills it."""
    if world_size > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        torch.set_num_threads(1)  # one alone has as many as the test: LAPACK's QR has other bits with another number
    faulthandler.enable()
    if fault is not None:
        owner, name, then = FAULTS[fault[0]]
        setattr(owner, name, _nth(getattr(owner, name), fault[1], then))
    try:
        run(config, Path(out), supply)
    except Stopped as stopped:
        os._exit(int(stopped.code or 0))


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


CONTEXT = multiprocessing.get_context("forkserver")
# Before 3.12.3 the server has not pytest's sys.path and passes over what it cannot find, such as this file: without the
# others by their names every process would import torch and timm again, which takes seconds.
CONTEXT.set_forkserver_preload(["torch", "timm", "wellcond.training", "training_cases"])


def start(
    config: TrainConfig, out: Path, supply: Any = TensorSupply, *, fault: Any = None, world_size: int = 1, rank: int = 0
) -> list[Any]:
    """Processes of a run; `fault` is for `rank`."""
    port = free_port()
    processes = [
        CONTEXT.Process(
            target=child, args=(config, str(out), supply, fault if r == rank else None, r, world_size, port)
        )
        for r in range(world_size)
    ]
    for process in processes:
        process.start()
    return processes


def finish(processes: list[Any], timeout: float = 40) -> list[int]:
    """Exit codes; like torchrun, the first failure ends the others."""
    waiting = {p.sentinel: p for p in processes}
    while waiting:
        ended = multiprocessing.connection.wait(list(waiting), timeout)
        if not ended:  # hangs: say where, then end it
            for process in waiting.values():
                os.kill(process.pid, signal.SIGABRT)
                process.join(5)
                process.kill()
            break
        for sentinel in ended:
            process = waiting.pop(sentinel)  # type: ignore[arg-type]
            process.join()
            if process.exitcode:
                for other in waiting.values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(other.pid, signal.SIGKILL)
    for process in processes:
        process.join(5)
    return [p.exitcode for p in processes]


def passing_fault(monkeypatch: Any, calls: range) -> None:
    """These batches, counted over the whole process, are NaN; drawn again after a rollback they are whole."""
    prepare, counted = TensorSupply.prepare, iter(range(1000))

    def faulty(self, inputs):
        images, targets = prepare(self, inputs)
        return (images * float("nan") if next(counted) in calls else images), targets

    monkeypatch.setattr(TensorSupply, "prepare", faulty)


@contextlib.contextmanager
def power_cut(monkeypatch: Any, at: int) -> Iterator[None]:
    """The training inside breaks off, as it must, before step `at`."""
    import pytest

    advance = trainer.Trainer.advance

    def cut(self, stop):
        if self.tally.step == at:
            raise RuntimeError("power cut")
        return advance(self, stop)

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "advance", cut)
        with pytest.raises(RuntimeError, match="power cut"):
            yield
