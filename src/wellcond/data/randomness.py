"""Random numbers without state: a hash of (seed, epoch, sample, repeat) and a stream number. Floor 6.

Augmentation must not depend on how samples are spread over batches, workers or processes, so a number is a pure
function of its key (a counter-based generator: Salmon et al., SC 2011). The hash is the finaliser of splitmix64
(Steele, Lea and Flood, OOPSLA 2014) in int64 tensor operations: products wrap, and a logical shift is an arithmetic
one with the copies of the sign masked away. That gives the same bits on CPU and CUDA, eager or compiled, and can be
captured in a CUDA graph, which torch's own generators cannot without giving up the first property.

A key is (B,) or () int64. A stream is a small number that names what is drawn; use one only once per key.

>>> k = keys(seed=0, epoch=3, indices=torch.tensor([7, 8]), repeat=0)
>>> bool(uniform(k, 1)[1] == uniform(keys(seed=0, epoch=3, indices=torch.tensor([8]), repeat=0), 1)[0])
True
"""

import math

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2⁶⁴ divided by the golden ratio: the step of splitmix64's counter
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def keys(seed: int, epoch: int, indices: Tensor, repeat: int | Tensor = 0) -> Tensor:
    """(B,) keys, one for each view of a sample; `repeat` numbers the views of one sample within an epoch."""
    return mix(mix(indices.long() ^ scalar_key(seed, epoch)) ^ repeat)


def step_key(seed: int, step: int) -> int:
    """The key of what a whole batch shares, an int; a word that no epoch reaches sets it apart from samples."""
    return scalar_key(seed, _GOLDEN, step)


def scalar_key(*words: int) -> int:
    """The same hash over Python ints, as a signed 64-bit number.

    >>> scalar_key(0, 1) == scalar_key(1, 0)
    False
    """
    state = 0
    for word in words:
        state = _mix(state ^ (word & _MASK))
    return _signed(state)


def bits(keys: Tensor, stream: int | Tensor) -> Tensor:
    """64 random bits, int64, of the broadcast shape of `keys` and `stream`: hash of key + (stream + 1)·golden.

    For a tensor stream + 1 is written −(~stream), for inductor does sums and products of an `arange` in unbounded
    integers, which do not wrap; what went through a bit operation is a plain int64 to it.
    """
    if isinstance(stream, int):
        return mix(keys + _signed((stream + 1) * _GOLDEN))
    return mix(keys - (~stream) * _signed(_GOLDEN))


def uniform(keys: Tensor, stream: int | Tensor) -> Tensor:
    """float32 in [0, 1): the upper 24 bits, so that every value is exact."""
    return _shifted(bits(keys, stream), 40).float() * 2.0**-24


def integers(keys: Tensor, stream: int | Tensor, high: int | Tensor) -> Tensor:
    """int64 in [0, high), high below 2³¹: the upper 32 bits times high over 2³², whose bias is below high/2³²."""
    return _shifted(bits(keys, stream), 32) * high >> 32


def normal(keys: Tensor, stream: int | Tensor) -> Tensor:
    """float32 standard normal, by Box and Muller (1958) from the two halves of the bits.

    In float64 until the end, so that devices, whose log and cos differ in the last place, agree in float32.
    """
    random = bits(keys, stream)
    first = (_shifted(random, 32) + 1).double() * 2.0**-32  # (0, 1]: its logarithm is finite
    second = (random & 0xFFFFFFFF).double() * 2.0**-32
    return (torch.sqrt(-2 * torch.log(first)) * torch.cos(2 * math.pi * second)).float()


def normal_field(keys: Tensor, stream: int, shape: tuple[int, ...]) -> Tensor:
    """float32 (B, *shape) of standard normals, in float32 throughout: for pixels, where there are many."""
    count = math.prod(shape)
    counter = torch.arange(count, device=keys.device)
    random = bits(bits(keys, stream)[:, None], counter)
    first = (_shifted(random, 40) + 1).float() * 2.0**-24
    second = (random & 0xFFFFFF).float() * 2.0**-24
    return (torch.sqrt(-2 * torch.log(first)) * torch.cos(2 * math.pi * second)).reshape(-1, *shape)


def mix(z: Tensor) -> Tensor:
    """splitmix64's finaliser, after one step of its counter; a bijection of 64-bit words."""
    z = z + _signed(_GOLDEN)
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, count: int) -> Tensor:
    """Logical shift to the right; torch's keeps the sign."""
    return (z >> count) & ((1 << (64 - count)) - 1)


def _mix(z: int) -> int:
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def _signed(z: int) -> int:
    """The int64 with the same 64 bits."""
    z &= _MASK
    return z - (1 << 64) if z >> 63 else z
