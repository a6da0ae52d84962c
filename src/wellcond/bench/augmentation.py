"""What augmentation costs on the device: eager, compiled, and as a CUDA graph. `python -m wellcond.bench.augmentation`.

Three workloads: CIFAR with pad-crop and RandAugment, Tiny-ImageNet the same at 64 px, and DeiT's recipe at 224 px
from a cache of 256. It prints medians in milliseconds; the bar is 3 % of a ViT-B step at batch 512,
about 140 ms (`results/bench-graying.json`).
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import AugmentConfig
from ..data import randomness
from ..data.augment import Augment, build
from .timing import clock_for, interleave

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
POLICY = "rand-m9-mstd0.5-inc1"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A batch and what is done to it."""

    batch_size: int
    raw_size: int
    image_size: int
    config: AugmentConfig


WORKLOADS = {
    "cifar-32": Workload(
        batch_size=512, raw_size=32, image_size=32, config=AugmentConfig(crop="pad", randaugment=POLICY)
    ),
    "tiny-imagenet-64": Workload(
        batch_size=1024, raw_size=64, image_size=64, config=AugmentConfig(crop="pad", randaugment=POLICY)
    ),
    "deit-224": Workload(
        batch_size=512,
        raw_size=256,
        image_size=224,
        config=AugmentConfig(
            crop="resized", randaugment=POLICY, mixup=0.8, cutmix=1.0, erase=0.25, smoothing=0.1, repeats=3
        ),
    ),
}


def inputs(workload: Workload, device: str) -> tuple[Tensor, ...]:
    """raw, labels, keys, step_key: noise, whose pixels cost what a photograph's do."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (workload.batch_size, 3, workload.raw_size, workload.raw_size)
    raw = torch.randint(0, 256, shape, dtype=torch.uint8, device=device, generator=generator)
    labels = torch.arange(workload.batch_size, device=device) % 1000
    keys = randomness.keys(0, 0, torch.arange(workload.batch_size, device=device))
    return raw, labels, keys, torch.tensor(randomness.step_key(0, 0), device=device)


def graphed(augment: Augment, given: tuple[Tensor, ...]) -> Callable[[], None]:
    """`augment` captured on these inputs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            augment(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        augment(*given)
    return graph.replay


def measure(name: str, device: str, *, rounds: int = 20, compiled: bool = True) -> dict[str, float]:
    """Median milliseconds of each way to run workload `name`."""
    workload = WORKLOADS[name]
    given = inputs(workload, device)
    augment = build(workload.config, workload.image_size, 1000, MEAN, STD)
    calls: dict[str, Callable[[], object]] = {"eager": lambda: augment(*given)}
    fast = torch.compile(augment, fullgraph=True) if compiled else augment
    if compiled:
        calls["compiled"] = lambda: fast(*given)
    if device.startswith("cuda"):
        calls["graph"] = graphed(fast, given)
    timings = interleave(calls, rounds=rounds, clock=clock_for(device))
    return {variant: timing.median for variant, timing in timings.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="wellcond.bench.augmentation")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("names", nargs="*", default=list(WORKLOADS))
    arguments = parser.parse_args()
    for name in arguments.names:
        found = measure(name, arguments.device, rounds=arguments.rounds, compiled=not arguments.eager)
        print(name, "  ".join(f"{variant} {value:.3f} ms" for variant, value in found.items()), flush=True)


if __name__ == "__main__":
    main()
