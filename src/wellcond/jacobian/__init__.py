"""Spectra of Jacobians of sub-blocks: exact when small, Golub–Kahan–Lanczos with error bars when large.

The Jacobian of a sub-block is taken with respect to its *normalised* input ("Always Skip Attention", Figs. 7 and 8):
through LayerNorm it is singular by construction, two null directions per token. f maps (B, n, d) → (B, n', d'), one
Jacobian of n'·d' × n·d per image, or (n, d) → (n', d').

    linearize   J v and Jᵀ u of a function, their rounding, and checks of the function
    exact       all singular values, from the matrix
    lanczos     the ends of the spectrum, from products
    spectrum    jacobian_spectrum: which of the two, images in groups
    result      JacobianSpectrum: values, error bars, what is known of κ
    bound       attention_bound: κ of self-attention's Jacobian from its two parts ("Cutting the Skip", Prop. 2)
    ntk         ntk_condition: κ of the empirical neural tangent kernel

The smallest singular value is the hard end. Exact gives it down to the rounding of the arithmetic. Lanczos gives an
upper bound, with a residual that says whether it has settled on a singular value, and a lower bound that is more than
zero for κ up to about a seventh of its steps. A κ that is not resolved is nan, and `kappa_bounds` says what is known.
"""

from wellcond.jacobian.bound import AttentionBound, attention_bound
from wellcond.jacobian.ntk import NTKCondition, ntk_condition
from wellcond.jacobian.result import JacobianSpectrum
from wellcond.jacobian.spectrum import jacobian_spectrum

__all__ = [
    "AttentionBound",
    "JacobianSpectrum",
    "NTKCondition",
    "attention_bound",
    "jacobian_spectrum",
    "ntk_condition",
]
