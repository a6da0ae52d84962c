"""jacobian_spectrum: checks its input, chooses between the matrix and Lanczos, and takes images in groups."""

import torch
from torch import Tensor, nn

from wellcond import spectral
from wellcond.jacobian.exact import dense_jacobian, exact_spectrum
from wellcond.jacobian.lanczos import Ends, bidiagonalize
from wellcond.jacobian.linearize import (
    Map,
    Products,
    adjoint_gap,
    check_repeatable,
    reading,
    rounding,
    separate,
    tensors_of,
)
from wellcond.jacobian.result import JacobianSpectrum

EXACT_SIDE = 2048  # "auto" writes matrices of up to this many rows and columns: a second or two each on one core
_MAX_BYTES = 2 << 30  # of one image's matrix
_GROUP_BYTES = 1 << 29  # of the matrices or Lanczos bases of the images that are treated at once


def jacobian_spectrum(
    f: Map,
    X: Tensor,
    method: str = "auto",
    *,
    module: nn.Module | None = None,
    dtype: torch.dtype | None = None,
    num_values: int = 16,
    smallest: bool = True,
    tolerance: float = 1e-3,
    max_steps: int = 200,
    confidence: float = 0.99,
    chunk_size: int = 64,
    generator: torch.Generator | None = None,
) -> JacobianSpectrum:
    """Singular values of the Jacobian of f at X (n, d), or of one Jacobian per image at X (B, n, d), with error bars.

    f is called with the shape of X and must not mix images (checked); wrap a function of one image in `torch.vmap`.

    - `method`: "exact" writes the matrix down (or, where every token is treated alone, its diagonal blocks), "lanczos"
      uses products only, "auto" is exact up to 2048 rows and columns.
    - `dtype`: arithmetic of f, by default that of X. A float32 model is measured in float64 by `dtype=torch.float64`
      and `module`, the module whose parameters f reads (f itself if it is one): they are cast during the call.
    - Lanczos stops when the `num_values` largest values, and σ_min unless `smallest=False`, have residuals within
      `tolerance` of their size or at the floor, or after `max_steps`. It keeps 8 · steps · (n·d + n'·d') bytes.
    - `chunk_size`: rows of an exact Jacobian that are computed at once; 1 does without `torch.vmap`.
    - `generator`: random start, probes and checks; by default a fresh one with seed 0.

    >>> stretch = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)
    >>> spectrum = jacobian_spectrum(lambda X: X * stretch, torch.ones(2, 4, dtype=torch.float64), method="lanczos")
    >>> spectrum.sigma.round(decimals=8)
    tensor([8., 8., 4., 4., 2., 2., 1., 1.], dtype=torch.float64)
    >>> spectrum.log_kappa
    tensor(2.0794, dtype=torch.float64)
    """
    f, X = _prepared(f, X, method, module, dtype)
    _check_options(num_values=num_values, max_steps=max_steps, chunk_size=chunk_size)
    _check_shares(tolerance=tolerance, confidence=confidence)
    generator = generator or torch.Generator().manual_seed(0)
    one = Products(f, X[:1] if X.ndim == 3 else X)
    check_repeatable(f, one.X)
    tokenwise = separate(one, -2, generator)
    method, bytes_each = _choice(method, one, tokenwise, max_steps)
    if X.ndim == 3 and len(X) > 1 and not separate(Products(f, X[:16]), 0, generator):
        raise ValueError(
            "f mixes the images of a batch (batch normalisation in train mode?); there is no Jacobian per image. "
            "Call model.eval(), or pass one image at a time"
        )
    size = max(1, _GROUP_BYTES // bytes_each)
    parts = []
    for group in X.split(size) if X.ndim == 3 else (X,):
        products = Products(f, group)
        noise = rounding(products, generator)
        if method == "exact":
            parts.append(_exact(products, noise, chunk_size, tokenwise))
            continue
        noise = torch.maximum(noise, adjoint_gap(products, noise, generator))
        parts.append(
            bidiagonalize(
                products, noise, num_values=num_values, smallest=smallest, tolerance=tolerance, max_steps=max_steps,
                confidence=confidence, generator=generator,
            )
        )  # fmt: skip
    return _joined(parts, one, method, confidence, batched=X.ndim == 3)


def _prepared(
    f: Map, X: Tensor, method: str, module: nn.Module | None, dtype: torch.dtype | None
) -> tuple[Map, Tensor]:
    """f and X in the arithmetic that was asked for."""
    if method not in ("auto", "exact", "lanczos"):
        raise ValueError(f'method={method!r} is unknown; use "auto", "exact" or "lanczos"')
    spectral.check_matrices(X)
    if X.ndim > 3 or 0 in X.shape:
        raise ValueError(f"X has shape {tuple(X.shape)}; expected (n, d), or (B, n, d) with at least one image")
    given, dtype = X.dtype, dtype or X.dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"Jacobians in {dtype} are mostly rounding; pass dtype=torch.float32 or torch.float64")
    module = f if module is None and isinstance(f, nn.Module) else module
    with torch.inference_mode(False):
        X = X.detach().to(dtype).clone()
    if module is not None and any(t.is_floating_point() and t.dtype != dtype for t in module.parameters()):
        call, tensors = reading(f, module), tensors_of(module, dtype)
        return lambda X: call(tensors, X), X
    if dtype == given:
        return f, X

    def named(X: Tensor) -> Tensor:
        try:
            return f(X)
        except RuntimeError as error:
            if "dtype" not in str(error):
                raise
            raise ValueError(
                f"f does not take {dtype}, the dtype asked for ({error}); pass the module whose parameters f reads as "
                "module=, or convert that module first"
            ) from error

    return named, X


def _choice(method: str, one: Products, tokenwise: bool, max_steps: int) -> tuple[str, int]:
    """(exact or lanczos, bytes that one image takes)."""
    (n, d), d_out = one.X.shape[-2:], one.Y.shape[-1]
    side = max(d, d_out) if tokenwise else max(one.N, one.M)
    dense = one.X.element_size() * (n * d * d_out if tokenwise else one.N * one.M)
    if method == "auto":
        method = "exact" if side <= EXACT_SIDE and dense <= _MAX_BYTES else "lanczos"
    if method == "exact" and dense > _MAX_BYTES:
        raise ValueError(
            f'method="exact" would write a Jacobian of {one.M} × {one.N}, {dense / 2**30:.1f} GiB; '
            'use method="lanczos", or fewer tokens'
        )
    return method, dense if method == "exact" else 8 * min(max_steps, one.N, one.M) * (one.N + one.M)


def _exact(products: Products, noise: Tensor, chunk_size: int, tokenwise: bool) -> Ends:
    sigma, floor = exact_spectrum(dense_jacobian(products, chunk_size, tokenwise), noise)
    return Ends(
        sigma=sigma,
        error=floor[:, None].expand_as(sigma),
        sigma_min=sigma[:, -1],
        sigma_min_error=floor,
        sigma_min_lower=(sigma[:, -1] - floor).clamp_min(0),
        sigma_max_upper=sigma[:, 0] + floor,
        floor=floor,
        nodes=sigma,
        weights=torch.full_like(sigma, 1 / sigma.shape[-1]),
        steps=0,
    )


def _joined(parts: list[Ends], one: Products, method: str, confidence: float, batched: bool) -> JacobianSpectrum:
    fields = ("sigma", "error", "sigma_min", "sigma_min_error", "sigma_min_lower", "sigma_max_upper", "floor")
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in fields}
    longest = max(part.nodes.shape[-1] for part in parts)
    for name in ("nodes", "weights"):  # groups of images may have taken different numbers of steps
        tensors[name] = torch.cat([_padded(getattr(part, name), longest) for part in parts])
    (n, d), (n_out, d_out) = one.X.shape[-2:], one.Y.shape[-2:]
    return JacobianSpectrum(
        **{name: values if batched else values[0] for name, values in tensors.items()},
        method=method, steps=max(part.steps for part in parts), confidence=confidence,
        n=n, d=d, n_out=n_out, d_out=d_out,
    )  # fmt: skip


def _padded(values: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(values, (0, length - values.shape[-1]))


def _check_options(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name}={value!r} is too small; it must be at least 1")


def _check_shares(**shares: float) -> None:
    for name, value in shares.items():
        if not 0 < value < 1:
            raise ValueError(f"{name}={value!r} must lie between 0 and 1, e.g. tolerance=1e-3, confidence=0.99")
