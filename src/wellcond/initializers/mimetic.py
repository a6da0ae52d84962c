"""Mimetic initialization (Trockman & Kolter, ICML 2023): attention begins as it is found in trained models.

In those W_Q W_Kᵀ of a head has a positive, and W_V W_O a negative diagonal. It is for models with skips: the MLP, the
norms and LayerScale keep what they have. The paper's sinusoidal position embedding is not set here.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from wellcond.blocks.depth import as_number
from wellcond.blocks.matrices import matrices_of
from wellcond.initializers.drawing import LARGEST, Generator, check_generator, factors, near_identity
from wellcond.initializers.skipless import check_square, fill

Model = TypeVar("Model", bound=nn.Module)


def mimetic_(
    model: Model,
    *,
    query_key: Sequence[float] = (0.7, 0.7),
    value_output: Sequence[float] = (0.4, -0.4),
    generator: Generator = None,
) -> Model:
    """W_Q W_Kᵀ of each head ≈ .7 Z + .7 I, W_V W_O = .4 Z − .4 I over all heads; returns the same object.

    Each pair is (α, β) of αZ + βI, Z with entries N(0, 1/d). Biases of the attention become 0. Refusals, and the order
    in which `generator` draws, are those of `init_skipless_`: for each block Z of W_V W_O, then of every head.
    """
    pairs = {"query_key": _pair("query_key", query_key), "value_output": _pair("value_output", value_output)}
    check_generator(generator)
    blocks = matrices_of(model, to_write=True)
    for block in blocks:
        check_square(block)
    for block in blocks:
        H, d_h, d = block.query.shape
        V, P = factors(near_identity(d, *pairs["value_output"], "normal", generator), d)
        fill(block.value, V.mT)
        fill(block.output, P)
        heads = [near_identity(d, *pairs["query_key"], "normal", generator) for _ in range(H)]
        Q, K = factors(torch.stack(heads), d_h)
        fill(block.query, Q.mT)
        fill(block.key, K.mT)
        for bias in block.attention_biases:
            bias.zero_()
    return model


def _pair(name: str, value: Any) -> tuple[float, float]:
    numbers = [as_number(v) for v in value] if isinstance(value, Sequence) and not isinstance(value, str) else []
    if len(numbers) != 2 or not all(abs(number) <= LARGEST for number in numbers):
        raise ValueError(f"{name} is {value!r}; give (α, β) of αZ + βI, for example (0.7, 0.7)")
    if max(map(abs, numbers)) < 1 / LARGEST:
        raise ValueError(f"{name} is {value!r}: both of its matrices would be zero and stay so; give one that is not 0")
    return numbers[0], numbers[1]
