"""The Triton kernels of the fast path, run by Triton's interpreter on the CPU and held against numpy's SVD.

The interpreter must be chosen before Triton is imported, hence the subprocess. `test_gpu.py` runs the real thing.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import json
import numpy as np, torch
from wellcond.spectral import power, products

products.has_kernels = lambda device: True
rng = np.random.default_rng(0)

def prescribed(n, d, sigma):
    U = np.linalg.qr(rng.standard_normal((n, len(sigma))))[0]
    V = np.linalg.qr(rng.standard_normal((d, len(sigma))))[0]
    return (U * sigma) @ V.T

results = []
for n, d, epsilon in {cases}:
    m = min(n, d)
    two_level = np.where(np.arange(m) < m // 2, 1.0, 1e-4)
    spectra = [np.logspace(0, -5, m), np.logspace(0, -1, m), two_level, np.full(m, 3.0)]
    X = torch.from_numpy(np.stack([prescribed(n, d, sigma) for sigma in spectra])).float()
    bad = torch.full((1, n, d), torch.nan)
    Y, top = power.singular_power(torch.cat([X, torch.zeros(1, n, d), bad]), epsilon)
    for x, y, largest in zip(X.double().numpy(), Y.double().numpy(), top.tolist()):
        U, s, Vh = np.linalg.svd(x, full_matrices=False)
        lifted = s[0] * (s / s[0]) ** epsilon
        expected = (U * lifted) @ Vh
        results.append({{
            "fro": float(np.linalg.norm(y - expected) / np.linalg.norm(expected)),
            "log": float(np.abs(np.log(np.linalg.svd(y, compute_uv=False)) - np.log(lifted)).max()),
            "top": abs(largest / s[0] - 1),
        }})
    assert (Y[-2] == 0).all() and Y[-1].isnan().all() and Y[:-1].isfinite().all()
print(json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.longest
def test_kernels_meet_the_bars_of_fast():
    cases = [(20, 30, 0.7), (33, 18, 0.5), (66, 67, 0.7)]  # wide, tall, and larger than one block
    program = PROGRAM.format(cases=cases)
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout)
    assert len(results) == 12
    assert max(r["fro"] for r in results) < 1e-3
    assert max(r["log"] for r in results) < 0.05
    assert max(r["top"] for r in results) < 1e-3
