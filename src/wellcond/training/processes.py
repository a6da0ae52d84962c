"""One process or many: torchrun's environment, the process group, and the few words that ranks exchange.

Ranks take contiguous chunks of the global batch; only rank 0 writes. The run directory must be on a file system that
all nodes see. A restarted group (`torchrun --max-restarts`) finds the last checkpoint like any other start.
"""

import datetime
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

Item = TypeVar("Item")
CPU = torch.device("cpu")
TIMEOUT = datetime.timedelta(minutes=30)  # rank 0 may evaluate, write and verify while the others wait
JUDGING = datetime.timedelta(hours=12)  # or judge: probes on large sets take hours


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process among all of them."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = CPU

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def part(self, tensor: Tensor) -> Tensor:
        """This rank's contiguous chunk of a global batch."""
        size = len(tensor) // self.world_size
        return tensor[self.rank * size : (self.rank + 1) * size]

    def sum_(self, tensor: Tensor) -> Tensor:
        """Add up over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def agree(self, number: int) -> int:
        """Rank 0's number, on every rank."""
        if self.world_size == 1:
            return number
        told = torch.tensor([number], dtype=torch.int64, device=self.device)
        dist.broadcast(told, 0)
        return int(told.item())

    def copy_(self, tensors: Iterable[Tensor]) -> None:
        """Rank 0's numbers into all of them, on every rank."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, of one shape and dtype, on every rank and on the CPU."""
        if self.world_size == 1:
            return [tensor.cpu()]
        tensor = tensor.to(self.device)
        found = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(found, tensor)
        return [t.cpu() for t in found]

    def wait(self) -> None:
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def process_group(device: str, batch_size: int, accumulate: int, *, judging: bool = False) -> Iterator[Processes]:
    """The processes that torchrun started, or this one alone; the group is closed at the end.

    `judging`: ranks wait for JUDGING, not TIMEOUT, before they give the others up.
    """
    world_size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    local = int(os.environ.get("LOCAL_RANK", 0))
    found = choose_device(device, local)
    if batch_size % (world_size * accumulate):
        raise ValueError(
            f"batch_size is {batch_size}, which {world_size} processes × accumulate {accumulate} do not divide; "
            f"choose a multiple of {world_size * accumulate}"
        )
    if found.type == "cuda":
        torch.cuda.set_device(found)
    mine = False
    if world_size > 1 and not dist.is_initialized():
        _join(found, JUDGING if judging else TIMEOUT)
        mine = True
    try:
        yield Processes(rank=rank, world_size=world_size, device=found)
    finally:
        if mine:
            dist.destroy_process_group()


def _join(device: torch.device, timeout: datetime.timedelta) -> None:
    """Meet the other ranks. torchrun's store lives through its restarts: without a prefix for each attempt a rank can
    find there the address that a dead one left, and wait at it."""
    store, rank, world_size = next(iter(rendezvous("env://", timeout=TIMEOUT)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    options: dict[str, Any] = {"device_id": device} if device.type == "cuda" else {}
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(f"attempt-{attempt}", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        **options,
    )


def choose_device(device: str, local_rank: int = 0) -> torch.device:
    """The device of a config; ValueError where a GPU was asked for and there is none."""
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ValueError("device is 'cuda', but torch sees no GPU; use device cpu, or a torch that knows this GPU")
    if local_rank >= count:
        raise ValueError(f"process {local_rank} of this node has no GPU: it has {count}; use --nproc-per-node {count}")
    return torch.device("cuda", local_rank)


def distribute(objective: nn.Module, processes: Processes, parallel: str) -> nn.Module:
    """What to call in place of the objective: itself, DDP around it, or itself sharded in place (FSDP2)."""
    if processes.world_size == 1:
        return objective
    if parallel == "fsdp":
        return _shard(objective, processes)
    from torch.nn.parallel import DistributedDataParallel

    on_cuda = processes.device.type == "cuda"
    return DistributedDataParallel(objective, device_ids=[processes.device] if on_cuda else None)


def _shard(objective: nn.Module, processes: Processes) -> nn.Module:
    """fully_shard every block, then the rest; parameters become DTensors under the same names."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(processes.device.type, (processes.world_size,))
    for module in list(objective.modules()):
        if _is_list_of_blocks(module):
            for block in module.children():
                # not a stage, which has blocks itself: what is sharded must not be sharded again
                if any(True for _ in block.parameters()) and not any(map(_is_list_of_blocks, block.modules())):
                    fully_shard(block, mesh=mesh)
    # True also for the root: weights gathered by an evaluation (of the average) must not serve the next step
    fully_shard(objective, mesh=mesh, reshard_after_forward=True)
    return objective


def _is_list_of_blocks(module: nn.Module) -> bool:
    """Some of one kind that have layers of their own; the layers of one block are of several kinds, or bare."""
    if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
        return False
    return len({type(block) for block in module}) == 1 and any(True for _ in module[0].children())


def last_chunk_only(forward: nn.Module, is_last: bool) -> Any:
    """DDP adds gradients up over ranks only with the last chunk of an accumulated batch."""
    return forward.no_sync() if hasattr(forward, "no_sync") and not is_last else nullcontext()  # type: ignore[operator]


def in_step(batches: Iterable[Item], processes: Processes, filler: Item) -> Iterator[Item]:
    """As many items on every rank as the longest has: a sharded model runs on all ranks or on none."""
    own = iter(batches)
    while True:
        item = next(own, None)
        any_left = torch.tensor([item is not None], dtype=torch.int64, device=processes.device)
        if not processes.sum_(any_left).item():
            return
        yield filler if item is None else item
