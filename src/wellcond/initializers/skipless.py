"""The initialization of "Cutting the Skip" (arXiv 2510.00345): attention near the identity, values and MLP orthogonal.

| weight    | beginning                                                                                    |
|-----------|----------------------------------------------------------------------------------------------|
| W_V, W_O  | c times orthogonal, over all heads together: W_V W_O is c² times an orthogonal matrix        |
| W_Q, W_K  | of each head: factors of the best approximation of αZ + βI of rank d_h                       |
| fc1, fc2  | orthogonal, times max(√(out/in), 1): `suo_`; of gated MLPs each matrix                       |
| the rest  | biases 0, norms 1 and 0, LayerScale 1; embedding, class token, positions and head stay        |

The paper takes W_V and W_O from the U and V of a Gaussian matrix; these are independent and uniform, and are drawn so.

What else a family does to its logits stays: position biases are added (they begin at or near zero), rotary positions
turn queries and keys (a token's product with itself is not changed by it), a softmax in windows is one over fewer
tokens. Swin v2, and models with normalised queries and keys, divide W_Q and W_K's products by their sizes: there the
ratio of α to β counts, their size does not, and there is no temperature to set. A norm between W_V and W_O (EVA-02),
or after the branch (Swin v2), divides c out again.
"""

import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from wellcond.blocks.depth import OverDepth, as_number, over_depth
from wellcond.blocks.matrices import Matrices, matrices_of
from wellcond.initializers.drawing import (
    LARGEST,
    Generator,
    check_generator,
    factors,
    near_identity,
    orthogonal,
    suo_,
)

Model = TypeVar("Model", bound=nn.Module)
Z = ("normal", "uniform")
POSITIONS = ("pos_embed", "position_embeddings")  # in timm, in transformers


def init_skipless_(
    model: Model,
    *,
    alpha: OverDepth = 2.0,
    beta: OverDepth = 0.6,
    c: OverDepth = 3.0,
    z: str = "normal",
    temperature: OverDepth | None = None,
    positions: float | None = None,
    generator: Generator = None,
) -> Model:
    """Give the blocks of a timm model weights with which it trains without skips; returns the same object.

    The defaults are the paper's for supervised training (for DINO it has alpha=1.8, beta=1). Each of them is a number,
    a sequence with one for every block, or a function of depth from 0 (first block) to 1 (last), as in `set_gains`.

    - `z`: entries of Z "normal" or "uniform", of the same variance 1/d.
    - `temperature` τ: attention becomes softmax(τ · logits); folded into W_Q, so the model computes nothing more.
    - `positions`: the standard deviation of the position embeddings, drawn anew; None leaves them. The small ones that
      timm draws hardly tell the tokens of a picture apart, and without skips nothing does so again later.
    - `generator`: of the CPU; by default torch's own. Block by block it draws W_V, W_O, then Z for every head, then
      the MLP from its input to its output; positions last.

    Skips are not cut here (`cut_skips`), and the state dict keeps its names. ValueError naming the block and the
    reason, before anything is changed, where a block has no such matrices (talking heads, class attention, attention
    over channels, pooled or shared keys, no attention).
    """
    if z not in Z:
        raise ValueError(f"z={z!r} is unknown; use 'normal' or 'uniform'")
    check_generator(generator)
    blocks = matrices_of(model, to_write=True)
    for block in blocks:
        check_square(block)
    alphas, betas = (_numbers(name, values, blocks) for name, values in (("alpha", alpha), ("beta", beta)))
    cs = _numbers("c", c, blocks, positive=True)
    taus = [1.0] * len(blocks) if temperature is None else _temperatures(temperature, blocks)
    for number, pair in enumerate(zip(alphas, betas, strict=True)):
        if max(map(abs, pair)) < 1 / LARGEST:
            near = "" if pair == (0.0, 0.0) else "nearly "
            raise ValueError(
                f"alpha and beta are both {near}0 in block {number}: W_Q and W_K would be zero and stay so; give others"
            )
    embedding = None if positions is None else _position_embedding(model, positions)
    for block, a, b, tau, scale in zip(blocks, alphas, betas, taus, cs, strict=True):
        for W in (block.value, block.output):
            fill(W, scale * orthogonal(block.width, block.width, generator))
        heads = [near_identity(block.width, a, b, z, generator) for _ in block.query]
        Q, K = factors(torch.stack(heads), block.query.shape[1])
        fill(block.query, tau * Q.mT)
        fill(block.key, K.mT)
        for W in block.mlp:
            suo_(W, generator)
        settle(block)
    if embedding is not None:
        drawn = torch.randn(embedding.shape, dtype=torch.float64, device="cpu", generator=generator)
        fill(embedding, as_number(positions) * drawn)
    return model


def _position_embedding(model: nn.Module, positions: float) -> Tensor:
    """What is to be drawn anew with that deviation; ValueError where it cannot be."""
    if not 0 < as_number(positions) <= LARGEST:
        raise ValueError(f"positions is {positions!r}; give a positive standard deviation, or None to leave them")
    named = ((name.rpartition(".")[2], p) for name, p in model.named_parameters())
    embedding = next((p for name, p in named if name in POSITIONS), None)
    if embedding is None:
        raise ValueError(f"{type(model).__name__} has no learned position embeddings to draw; leave positions out")
    return embedding.detach()


def _temperatures(temperature: Any, blocks: list[Matrices]) -> list[float]:
    """One for every block; ValueError where a block cannot have one."""
    taus = _numbers("temperature", temperature, blocks, positive=True)
    for block, tau in zip(blocks, taus, strict=True):
        if block.normalised and tau != 1.0:
            raise ValueError(
                f"temperature is {tau:g} in block {block.name!r}, whose queries and keys are normalised: "
                "a factor on W_Q changes nothing there; leave temperature out"
            )
    return taus


def check_square(block: Matrices) -> None:
    """ValueError unless W_V and W_O over all heads are square."""
    (H, d_h, d), rows = block.value.shape, len(block.output)
    if H * d_h != d or rows != d:
        raise ValueError(
            f"block {block.name!r}: its {H} heads of width {d_h} take tokens of width {d} to width {rows}, "
            "so W_V and W_O are not square; use a model whose heads together are as wide as its tokens"
        )


def settle(block: Matrices) -> None:
    """Biases 0, norms 1 and 0, LayerScale 1."""
    for zero in (*block.attention_biases, *block.mlp_biases, *block.norm_biases):
        zero.zero_()
    for one in (*block.scales, *block.norm_weights):
        one.fill_(1.0)


def fill(weight: Tensor, value: Tensor) -> None:
    """`weight` may be a view with heads in a dimension of their own; all are detached, so nothing is graded."""
    weight.copy_(value.reshape(weight.shape))


def _numbers(name: str, values: Any, blocks: list[Matrices], positive: bool = False) -> list[float]:
    found = over_depth(name, values, len(blocks))
    numbers = [as_number(value) for value in found]
    for number, value in zip(numbers, found, strict=True):
        if not math.isfinite(number) or (positive and number <= 0):
            kind = "positive" if positive else "finite"
            raise ValueError(f"{name} must be {kind} numbers, and one is {value!r}; a number, or one for each block")
        if abs(number) > LARGEST or (positive and number < 1 / LARGEST):
            between = f"from {1 / LARGEST if positive else -LARGEST:g} to {LARGEST:g}"
            raise ValueError(f"{name} is {number:g}, which makes weights that cannot be trained; choose it {between}")
    return numbers
