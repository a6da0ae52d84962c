"""Condition of the empirical neural tangent kernel of a sub-block ("Always Skip Attention", appendix C).

Θ = G Gᵀ, G (outputs × parameters) with the gradient of one scalar output of f on the batch in each row (Jacot et al.
2018). κ(Θ) = κ(G)², so the eigenvalues of Θ are squares of singular values of G: decomposing G instead of Θ keeps
eigenvalues down to the square of the floor of `wellcond.spectral`, where forming Θ would lose them at the floor itself.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vjp

from wellcond import spectral
from wellcond.jacobian.linearize import Map, plain_arithmetic, reading, tensors_of

_MAX_BYTES = 2 << 30  # of G


@dataclass(frozen=True, kw_only=True, eq=False)
class NTKCondition:
    """Eigenvalues of Θ, descending, float64, and κ(Θ) with its natural logarithm.

    κ is inf where an eigenvalue is at or under `floor`, in particular with more outputs than parameters, and nan where
    no parameter changes any output.
    """

    eigenvalues: Tensor
    floor: Tensor
    kappa: Tensor
    log_kappa: Tensor
    floor_count: int
    num_outputs: int
    num_parameters: int


def ntk_condition(
    module: nn.Module,
    f: Map,
    X: Tensor,
    outputs: int | Tensor = 64,
    *,
    dtype: torch.dtype | None = None,
    chunk_size: int = 16,
    generator: torch.Generator | None = None,
) -> NTKCondition:
    """κ of the Gram matrix of per-output parameter gradients of f at the batch X (…, n, d).

    Only the parameters of `module` that require gradients count; f reads them (a closure over `module`, or `module`).
    - `outputs`: how many scalar outputs are drawn from f(X) without repetition, or their indices in f(X).flatten().
      κ grows with their number: compare only equal numbers.
    - `dtype`: arithmetic of f, by default that of X; parameters are cast during the call.
    - `chunk_size`: gradients that are computed at once; 1 does without `torch.vmap`.
    - `generator`: draws the outputs; by default a fresh one with seed 0.

    >>> layer = nn.Linear(3, 2, bias=False)
    >>> X = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    >>> ntk_condition(layer, layer, X).kappa  # Θ = X Xᵀ ⊗ I
    tensor(4., dtype=torch.float64)
    """
    spectral.check_matrices(X)
    dtype = dtype or X.dtype
    tensors = tensors_of(module, dtype)
    wanted = {name: tensors[name] for name, p in module.named_parameters() if p.requires_grad}
    if not wanted:
        raise ValueError("module has no parameter that requires a gradient; the tangent kernel is empty")
    call = reading(f, module)
    X = X.detach().to(dtype)
    with plain_arithmetic(X.device):
        Y, pull = vjp(lambda parameters: call({**tensors, **parameters}, X).flatten(), wanted)[:2]
        if not Y.isfinite().all():
            raise ValueError("f(X) holds NaN or inf; there is no tangent kernel at this X")
        chosen = _chosen(outputs, len(Y), generator or torch.Generator().manual_seed(0)).to(X.device)
        num_parameters = sum(p.numel() for p in wanted.values())
        _check_size(len(chosen), num_parameters, Y.element_size())
        G = _gradients(pull, Y, chosen, chunk_size)
    return _condition(G)


def _gradients(pull, Y: Tensor, chosen: Tensor, chunk_size: int) -> Tensor:
    """G (outputs, parameters)."""
    rows = []
    for part in chosen.split(chunk_size):
        U = nn.functional.one_hot(part, len(Y)).to(Y.dtype)
        gradients = [pull(U[0])[0]] if chunk_size == 1 else [torch.vmap(lambda u: pull(u)[0])(U)]
        rows += [torch.cat([g.reshape(len(U), -1) for g in named.values()], dim=-1) for named in gradients]
    return torch.cat(rows)


def _condition(G: Tensor) -> NTKCondition:
    if not G.isfinite().all():
        raise ValueError("a gradient is NaN or inf; f is not differentiable in its parameters here")
    sigma, floor = spectral.spectrum(G)
    missing = max(0, G.shape[0] - G.shape[1])  # Θ has more rows than G has columns: exact zeros
    sigma = torch.cat([sigma, sigma.new_zeros(missing)])
    kappa = torch.where(sigma[-1] > floor, (sigma[0] / sigma[-1]).square(), torch.inf)
    kappa = torch.where(sigma[0] > 0, kappa, torch.nan)
    return NTKCondition(
        eigenvalues=sigma.square(),
        floor=floor.square(),
        kappa=kappa,
        log_kappa=kappa.log(),
        floor_count=int((sigma <= floor).sum()),
        num_outputs=G.shape[0],
        num_parameters=G.shape[1],
    )


def _chosen(outputs: int | Tensor, available: int, generator: torch.Generator) -> Tensor:
    if isinstance(outputs, Tensor):
        if outputs.dtype != torch.int64 or outputs.ndim != 1 or not ((outputs >= 0) & (outputs < available)).all():
            raise ValueError(f"outputs={outputs} must be a list of int64 indices into the {available} outputs of f")
        if len(outputs.unique()) < len(outputs):
            raise ValueError("outputs names an index twice, which makes the kernel singular; give each once")
        chosen = outputs
    else:
        if outputs < 1:
            raise ValueError(f"outputs={outputs!r} is too small; it must be at least 1")
        chosen = torch.randperm(available, generator=generator, device=generator.device)[:outputs]
    if len(chosen) == 0:
        raise ValueError("outputs is empty; name at least one output")
    return chosen


def _check_size(num_outputs: int, num_parameters: int, element_size: int) -> None:
    size = num_outputs * num_parameters * element_size
    if size > _MAX_BYTES:
        raise ValueError(
            f"{num_outputs} gradients of {num_parameters} parameters take {size / 2**30:.1f} GiB; pass fewer outputs, "
            "or the part of the module that f uses"
        )
