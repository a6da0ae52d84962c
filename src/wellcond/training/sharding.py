"""Whole tensors in and out of sharded ones: a checkpoint knows nothing of how many processes wrote it."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor; of a sharded one every rank must ask (a collective)."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into `target`, sharded or not; the storage stays."""
    if isinstance(target, DTensor):
        value = distribute_tensor(value.to(target.device, target.dtype), target.device_mesh, target.placements)
    target.copy_(value)


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
