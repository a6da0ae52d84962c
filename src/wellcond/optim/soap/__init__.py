"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024, arXiv 2409.11321, Algorithm 3).

A weight W (m, n) with gradient G keeps L = E[G Gᵀ] and R = E[Gᵀ G], slow eigenbases Q_L and Q_R of them, and Adam's
moments, the second one of the rotated gradient Q_Lᵀ G Q_R. The step is Adam's, rotated back.

optimizer   SOAP: what torch calls, whose turn it is, state
layout      which weights are one stack, whose they are, when their bases have their turn
stacks      weights of one shape as one tensor: the ordinary step, which a CUDA graph can hold
bases       the first eigenbasis, and one from the last by a power step and QR or by an eigendecomposition
renewing    the bases whose turn it is, of one size at once
beside      on another stream, while the next step begins
turns       work spread evenly over steps, and over ranks
sharing     the weights shared out to ranks, which send them round after each step

What it costs, counted for ViT-B (86 M parameters; S₂ = Σ mn(m+n) = 2.96e11, S₃ = Σ (m³+n³) = 8.78e11), and the
precision each part needs:

| part                        | FLOP of a step       | in      | why                                                   |
|-----------------------------|----------------------|---------|-------------------------------------------------------|
| rotate G and M, rotate back | 6 S₂ = 1.8 T         | TF32    | rounds at 2⁻¹¹; autocast has rounded G at 2⁻⁹         |
| G Gᵀ and Gᵀ G               | 2 S₂ = 0.6 T         | TF32    | as if G had that noise: the sum stays positive        |
| power step, every 10th      | 2 S₃ / 10 = 0.18 T   | float64 | float32 drowns eigenvalues under 1e-7 of the largest  |
| QR by Cholesky, as often    | 10/3 S₃ / 10 = 0.3 T | float64 | squares a condition number of 4e3 and more            |

So the first two rows want tensor cores and the last two want to be rare. What it takes in time is in
`results/bench-soap.json`, also where it misses its bar.
"""

from wellcond.optim.soap.optimizer import SOAP

__all__ = ["SOAP"]
