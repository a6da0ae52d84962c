"""Weights of one shape as one tensor: their statistics, and the ordinary step, all of them at once.

Legend: K weights, each an (m, n) matrix W or an n-vector; G gradients, M and V their moments, (K, m, n) or (K, n).

Nothing here asks the host for a number, so a CUDA graph can hold it: counts, learning rates and the wish to skip are
tensors. A weight whose step is skipped, or that has no gradient, keeps every bit of its state. The first step of a
weight only gathers statistics, for there is no basis yet to take it in.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SIDES = ("left", "right")


@dataclass(frozen=True, eq=False)
class Side:
    """One side of K matrices: `gram` is E[G Gᵀ] or E[Gᵀ G], `basis` its eigenvectors; both (K, n, n)."""

    gram: Tensor
    basis: Tensor


def matrix_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in which a weight is treated: (out, everything else), without sides of 1; vectors are left alone.

    A convolution is the matrix that its patches are multiplied with, a table of positions a matrix of them.

    >>> matrix_shape((64, 3, 4, 4)), matrix_shape((1, 197, 768)), matrix_shape((1, 1, 768)), matrix_shape(())
    ((64, 48), (197, 768), (768,), (1,))
    """
    sides = [n for n in shape if n != 1]
    return (sides[0], math.prod(sides[1:])) if len(sides) > 1 else (math.prod(sides),)


def rotated_sides(shape: Sequence[int], max_precondition_dim: int) -> dict[str, int]:
    """Lengths of those sides of a weight that have a basis.

    >>> rotated_sides((64, 3, 4, 4), 100), rotated_sides((64, 3, 4, 4), 50), rotated_sides((64,), 100)
    ({'left': 64, 'right': 48}, {'right': 48}, {})
    """
    lengths = matrix_shape(shape)
    sides = dict(zip(SIDES, lengths, strict=True)) if len(lengths) == 2 else {}
    return {name: n for name, n in sides.items() if n <= max_precondition_dim}


class Stack:
    """K weights of one shape, dtype, device and parameter group.

    `owner` is the rank that keeps their state; on the others (`kept` False) it is shapes without content, on torch's
    device "meta".
    """

    def __init__(
        self, parameters: list[nn.Parameter], max_precondition_dim: int, *, owner: int = 0, kept: bool = True
    ) -> None:
        first = parameters[0]
        self.parameters, self.shape = parameters, matrix_shape(first.shape)
        self.max_precondition_dim, self.owner, self.kept = max_precondition_dim, owner, kept
        self.dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self.device, K = first.device, len(parameters)
        self._place = first.device if kept else torch.device("meta")
        self.count = self._zeros(K, dtype=torch.float32)  # steps taken, the first one included
        self.exp_avg = self._zeros(K, *self.shape)
        self.exp_avg_sq = self._zeros(K, *self.shape)  # of the rotated gradient
        # on the host: calls of refresh since there is a basis
        self.turn = torch.zeros(K, dtype=torch.int64, device="cpu" if kept else "meta")
        self.seen = [False] * K  # has there ever been a gradient?
        self.sides: dict[str, Side] = {}
        for name, n in rotated_sides(first.shape, max_precondition_dim).items():
            eye = torch.eye(n, dtype=self.dtype, device=self._place).repeat(K, 1, 1)
            self.sides[name] = Side(self._zeros(K, n, n), eye)
        self._masks: dict[tuple[bool, ...], Tensor] = {}

    def _zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.zeros(shape, dtype=dtype or self.dtype, device=self._place)

    def tensors(self) -> list[Tensor]:
        """All that is kept, of all weights at once."""
        bases = [tensor for side in self.sides.values() for tensor in (side.gram, side.basis)]
        return [self.count, self.turn, self.exp_avg, self.exp_avg_sq, *bases]

    def state(self, i: int) -> dict[str, Tensor]:
        """The state of one weight; views, so what is written there is written here."""
        shape = self.parameters[i].shape
        found = {"step": self.count[i], "turn": self.turn[i]}
        found |= {"exp_avg": self.exp_avg[i].view(shape), "exp_avg_sq": self.exp_avg_sq[i].view(shape)}
        for name, side in self.sides.items():
            found |= {f"gram_{name}": side.gram[i], f"basis_{name}": side.basis[i]}
        return found

    # the ordinary step

    def update_(self, group: Mapping[str, Any], skip: Tensor | None) -> None:
        """One step of every weight that has a gradient, or none at all where `skip` (0-d) is not 0."""
        given = tuple(p.grad is not None for p in self.parameters)
        if not any(given):
            return
        if (where := self.parameters[0].device) != self.device:
            raise ValueError(
                f"the weights are on {where}, and SOAP's state on {self.device}, where they were; build the optimizer "
                "after model.to(device)"
            )
        if any(p.grad is not None and p.grad.is_sparse for p in self.parameters):
            raise ValueError(
                "a gradient is sparse, and SOAP takes dense ones only; build the embedding with sparse=False"
            )
        self.seen = [a or b for a, b in zip(self.seen, given, strict=True)]
        G = self._gradients()
        good = self._mask(given) if skip is None else self._mask(given) * (skip == 0)
        if skip is not None:
            G.masked_fill_(self._wide(good) == 0, 0.0)  # what is not finite would stay so times 0
        live = good * (self.count > 0)
        self._move(G, live, group)
        beta = group["betas"][1]
        for name, side in self.sides.items():
            fresh = G @ G.mT if name == "left" else G.mT @ G
            side.gram.lerp_(fresh, self._wide(good * (1 - beta), ndim=3))
        self.count.add_(good)

    def _move(self, G: Tensor, live: Tensor, group: Mapping[str, Any]) -> None:
        """Adam in the eigenbasis where `live` (K,) is 1; decoupled decay, after it as in the reference."""
        beta1, beta2 = group["betas"]
        self.exp_avg.lerp_(G, self._wide(live * (1 - beta1)))
        self.exp_avg_sq.lerp_(self._rotate(G).square_(), self._wide(live * (1 - beta2)))
        direction = self._rotate(self.exp_avg) / self.exp_avg_sq.sqrt().add_(group["eps"])
        t = self.count.double().clamp_min(1)
        size = group["lr"] * (1 - beta2**t).sqrt() / (1 - beta1**t) * live
        W = torch.stack([p.detach().reshape(self.shape) for p in self.parameters]).to(self.dtype)
        W.sub_(self._rotate_back(direction).mul_(self._wide(size)))
        if group["weight_decay"]:
            W.mul_(self._wide(1 - group["lr"] * group["weight_decay"] * live))
        foreach: Any = torch  # its fused list operations have no public names
        moved = [w.view(p.shape) for w, p in zip(W, self.parameters, strict=True)]
        foreach._foreach_copy_([p.detach() for p in self.parameters], moved)

    def _gradients(self) -> Tensor:
        """(K, m, n), a copy; zeros where there is none."""
        shape = self.shape
        found = [p.new_zeros(shape) if p.grad is None else p.grad.reshape(shape) for p in self.parameters]
        return torch.stack(found).to(self.dtype)

    def _rotate(self, X: Tensor) -> Tensor:
        """Q_Lᵀ X Q_R, always a new tensor."""
        rotated = X
        if (left := self.sides.get("left")) is not None:
            rotated = left.basis.mT @ rotated
        if (right := self.sides.get("right")) is not None:
            rotated = rotated @ right.basis
        return rotated.clone() if rotated is X else rotated

    def _rotate_back(self, X: Tensor) -> Tensor:
        """Q_L X Q_Rᵀ."""
        if (left := self.sides.get("left")) is not None:
            X = left.basis @ X
        if (right := self.sides.get("right")) is not None:
            X = X @ right.basis.mT
        return X

    def _mask(self, given: tuple[bool, ...]) -> Tensor:
        """1 where there is a gradient (K,). Kept: a capture cannot copy it from the host."""
        if given not in self._masks:
            self._masks[given] = torch.tensor(given, dtype=self.dtype, device=self.device)
        return self._masks[given]

    def _wide(self, values: Tensor, ndim: int = 0) -> Tensor:
        """(K,) → (K, 1, …), in the dtype of the state."""
        return values.to(self.dtype).view(-1, *[1] * ((ndim or 1 + len(self.shape)) - 1))

    # after a new basis

    def sort_(self, side: str, i: int, order: Tensor) -> None:
        """The second moments of weight i follow their directions, which `order` has sorted."""
        V = self.exp_avg_sq[i]
        V.copy_(V.index_select(SIDES.index(side), order))


def alike(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Which weights of a parameter group can be one stack, in the order of their first."""
    found: dict[tuple, list[nn.Parameter]] = {}
    for p in parameters:
        if p.numel():
            found.setdefault((matrix_shape(p.shape), p.dtype, p.device), []).append(p)
    return list(found.values())


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """float32 products on CUDA in "tf32" or "ieee"; a flag of the process, put back at the end."""
    flags = torch.backends.cuda.matmul
    before = flags.fp32_precision
    flags.fp32_precision = precision
    try:
        yield
    finally:
        flags.fp32_precision = before
