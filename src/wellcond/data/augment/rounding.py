"""A product that is rounded by itself, whatever the compiler does with the sum around it. Floor 6.

CPUs and compiled GPU kernels may fuse a·b + c into one rounding. Where an integer hangs on the last bit (255.0 or
254.99…, then truncated) the two disagree. Splitting b into two halves whose products with a short `a` are exact leaves
one addition as the only rounding, fused or not.
"""

from torch import Tensor


def product(a: Tensor, b: Tensor) -> Tensor:
    """a·b correctly rounded, float64; `a` has at most 24 significant bits (an integer or half of one)."""
    upper = b.float().double()
    return a * upper + a * (b - upper)
