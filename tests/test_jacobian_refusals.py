"""What has no Jacobian spectrum is refused in a sentence, or answered with nan."""

import pytest
import torch
from test_jacobian import METHODS, attention
from torch import nn

from wellcond.jacobian import jacobian_spectrum


class Cut(torch.autograd.Function):
    """Its backward is right, but a second derivative passes by it."""

    @staticmethod
    def forward(X):
        return 2 * X

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, G):  # pyright: ignore[reportIncompatibleMethodOverride]
        return 2 * G.detach()


BAD = {
    "unknown": (lambda f, X: jacobian_spectrum(f, X, "svd"), "'svd'.*lanczos"),
    "nan in X": (lambda f, X: jacobian_spectrum(f, X * torch.nan), "NaN or inf"),
    "nan in f": (lambda f, X: jacobian_spectrum(lambda X: f(X) / 0, X), "no Jacobian at this X"),
    "infinite slope": (lambda f, X: jacobian_spectrum(lambda X: (X - X.detach()).sqrt(), X), "not differentiable"),
    "infinite slope, lanczos": (
        lambda f, X: jacobian_spectrum(lambda X: (0 * X).sqrt(), X, "lanczos"),
        "not differentiable",
    ),
    "integers": (lambda f, X: jacobian_spectrum(f, X.long()), "floating point"),
    "half": (lambda f, X: jacobian_spectrum(f, X.half()), "float16.*dtype=torch.float32"),
    "rank": (lambda f, X: jacobian_spectrum(f, X[None, None]), r"\(B, n, d\)"),
    "output": (lambda f, X: jacobian_spectrum(lambda X: X.sum(), X), r"shape \(\); expected"),
    "dtype": (lambda f, X: jacobian_spectrum(f, X, dtype=torch.float32), "float32.*module="),
    "too large": (lambda f, X: jacobian_spectrum(lambda X: X.cumsum(0), X.repeat(1000, 1), "exact"), "GiB; use method"),
    "steps": (lambda f, X: jacobian_spectrum(f, X, max_steps=0), "max_steps=0"),
    "tolerance": (lambda f, X: jacobian_spectrum(f, X, tolerance=2.0), "tolerance=2.0"),
    "dropout": (lambda f, X: jacobian_spectrum(nn.Dropout(0.5), X), "two answers.*eval"),
    "batch norm in train mode": (
        lambda f, X: jacobian_spectrum(torch.nn.BatchNorm1d(len(X), dtype=X.dtype), torch.stack([X, X])),
        "as batch normalisation does in train mode",
    ),
    "in place": (lambda f, X: jacobian_spectrum(lambda X: X.mul_(2), X), "writes into its input"),
    "mixed images": (lambda f, X: jacobian_spectrum(lambda X: X - X.mean(0), torch.stack([X, X])), "mixes the images"),
    "cut backward": (lambda f, X: jacobian_spectrum(Cut.apply, X, "lanczos"), "inconsistent"),
}


@pytest.mark.parametrize("case", BAD)
def test_refusals_name_cause_and_remedy(case):
    call, message = BAD[case]
    f, X, _ = attention(5, 4, seed=0)
    with pytest.raises(ValueError, match=message):
        call(f, X)


@pytest.mark.parametrize("method", METHODS)
def test_the_zero_map_has_no_kappa(method):
    spectrum = jacobian_spectrum(lambda X: 0 * X, torch.randn(2, 4, 3), method)
    assert (spectrum.sigma == 0).all() and spectrum.kappa.isnan().all() and spectrum.log_kappa.isnan().all()
    assert all(bound.isnan().all() for bound in spectrum.kappa_bounds) and "J = 0" in str(spectrum)
