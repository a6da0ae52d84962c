"""Which way a device takes through this package, and why: for people to read. The arithmetic does not look here."""

from typing import NamedTuple

import torch

from wellcond.spectral import eigen, products


class Choice(NamedTuple):
    """The solver of a device and whether it has the float64 kernels of the fast path, each with its reason."""

    solver: str  # as `eigen.solver_name` has it
    why: str
    kernels: bool
    why_kernels: str
    error: float  # of one small batch, solved just now


def explain(device: torch.device | str) -> Choice:
    """What `device` gets, tried once.

    >>> explain("cpu").solver, explain("cpu").kernels, explain("cpu").error < 1e-12
    ('lapack', False, True)
    """
    device = torch.device(device)
    error = tried(device)  # first: a solver that fails is replaced
    solver = eigen.solver_name(device)
    return Choice(solver, _SOLVER[solver], products.has_kernels(device), _why_kernels(device), error)


_SOLVER = {
    "lapack": "LAPACK through torch, matrices of a batch side by side; through numpy where they are small",
    "cusolver-XsyevBatched": "cuSOLVER solves a whole batch at once",
    "torch": "torch.linalg.eigh, correct but slow: the cuSOLVER that torch has loaded has no XsyevBatched, or failed",
}


def tried(device: torch.device) -> float:
    """The largest |V diag(λ) Vᵀ − A| of a few matrices that `eigen.eigh` solves, over the largest |A|."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(4, 48, 48, dtype=torch.float64, device="cpu", generator=generator).to(device)
    A = X @ X.mT
    values, V = eigen.eigh(A)
    return float(((V * values[..., None, :]) @ V.mT - A).abs().max() / A.abs().max())


def _why_kernels(device: torch.device) -> str:
    if products.has_kernels(device):
        return "Triton, and a GPU with float64 tensor cores"
    if device.type != "cuda":
        return "for GPUs with float64 tensor cores; precision='fast' is 'exact' here"
    if torch.version.hip is not None:
        return "for NVIDIA's GPUs; precision='fast' is 'exact' here"
    capability = torch.cuda.get_device_capability(device)
    if capability not in products.WITH_FLOAT64_CORES:
        return f"compute capability {capability[0]}.{capability[1]} has no float64 tensor cores; 'fast' is 'exact' here"
    return "Triton is not installed; precision='fast' is 'exact' here"
