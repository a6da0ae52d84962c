"""DINO's head: features → answers over K prototypes (Caron et al., arXiv 2104.14294, §3.1 and appendix C).

Three linear layers with GELU, a bottleneck of length 1, and a last layer whose rows have length 1: an answer is the
cosine between the bottleneck and a prototype. The paper's weight normalisation with its gain fixed at 1 is the same.
The last product is done in float32 also under autocast: divided by a temperature of .04 its error would be 25 times as
large.

Legend: D width of the features, K prototypes.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from wellcond.config import DINOConfig


class Head(nn.Module):
    """(…, D) → (…, K), float32 or better."""

    def __init__(self, width: int, config: DINOConfig) -> None:
        super().__init__()
        widths = (width, config.hidden, config.hidden, config.bottleneck)
        linears = [nn.Linear(a, b) for a, b in pairwise(widths)]
        self.mlp = nn.Sequential(linears[0], nn.GELU(), linears[1], nn.GELU(), linears[2])
        self.last = nn.Parameter(torch.empty(config.out_dim, config.bottleneck))
        bound = config.bottleneck**-0.5  # as nn.Linear; longer rows would turn more slowly
        nn.init.uniform_(self.last, -bound, bound)
        for linear in linears:
            nn.init.trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        z = self.mlp(x)
        with torch.autocast(z.device.type, enabled=False):
            z = z.float() if z.dtype.itemsize < 4 else z
            return functional.linear(functional.normalize(z, dim=-1), functional.normalize(self.last, dim=-1))
