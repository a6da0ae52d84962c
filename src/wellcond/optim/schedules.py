"""Learning rate, averaging weight and skip gain as pure functions of the step: nothing to save, nothing to restore."""

import math

from wellcond.config import OptimConfig


def cosine(step: int, *, num_steps: int, warmup: float, lr: float, min_lr: float) -> float:
    """Linear warm-up to `lr` over `warmup` steps, then half a cosine that would reach `min_lr` at `num_steps`.

    Loshchilov & Hutter, "SGDR" (arXiv 1608.03983), eq. 5, without restarts; the warm-up is that of Goyal et al.
    (arXiv 1706.02677), §2.2. The first step already learns: (step + 1)/warmup.

    >>> [round(cosine(t, num_steps=8, warmup=2, lr=1.0, min_lr=0.0), 3) for t in (0, 1, 2, 5, 8)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    if step < warmup:
        return lr * min(1.0, (step + 1) / warmup)
    progress = min(1.0, (step - warmup) / max(1.0, num_steps - warmup))
    return min_lr + (lr - min_lr) * (1 + math.cos(math.pi * progress)) / 2


def learning_rate(step: int, config: OptimConfig, *, steps_per_epoch: int, epochs: int) -> float:
    """The learning rate of a step, before layer-wise decay."""
    min_lr = config.lr if config.schedule == "constant" else config.min_lr
    return cosine(
        step,
        num_steps=epochs * steps_per_epoch,
        warmup=config.warmup_epochs * steps_per_epoch,
        lr=config.lr,
        min_lr=min_lr,
    )


def average_weight(step: int, decay: float) -> float:
    """How much of the new weights enters the average: 1 − min(decay, (1 + t)/(10 + t)).

    The early steps forget faster, so that a short run's average is not its initialization.

    >>> average_weight(0, 0.999), round(average_weight(10**6, 0.999), 6)
    (0.9, 0.001)
    """
    return 1 - min(decay, (1 + step) / (10 + step))


def skip_gain(step: int, *, num_steps: int, share: float) -> float:
    """Gain of skips that are annealed, after `step` steps: half a cosine from 1 to 0 over that share of the run.

    >>> [round(skip_gain(t, num_steps=8, share=0.5), 3) for t in (0, 1, 2, 4, 8)]
    [1.0, 0.854, 0.5, 0.0, 0.0]
    """
    progress = step / (share * num_steps)
    return (1 + math.cos(math.pi * progress)) / 2 if progress < 1 else 0.0


def weight_decay(step: int, config: OptimConfig, *, num_steps: int) -> float:
    """The weight decay of a step: constant, or half a cosine to `weight_decay_end` (DINO: .04 → .4).

    >>> config = OptimConfig(weight_decay=0.04, weight_decay_end=0.4)
    >>> [round(weight_decay(t, config, num_steps=8), 3) for t in (0, 4, 8)]
    [0.04, 0.22, 0.4]
    """
    if config.weight_decay_end is None:
        return config.weight_decay
    start, end = config.weight_decay, config.weight_decay_end
    return end + (start - end) * (1 + math.cos(math.pi * step / num_steps)) / 2
