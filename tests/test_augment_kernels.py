"""The Triton kernels of RandAugment, in Triton's own interpreter on the CPU: the bits of the CPU path."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

CODE = """
import torch
from wellcond.data.augment import kernels, layers, randaugment
from wellcond.data.procedural import procedural

drawn = [torch.from_numpy(procedural(index, size=29).image[:27]) for index in range(16)]
pixels = torch.stack(drawn).permute(0, 3, 1, 2).contiguous()
pixels[3] = 77
operation = torch.arange(-1, 15)
fill = torch.tensor([124, 116, 104], dtype=torch.uint8)
seen = []
launched = layers.apply_kinds


def both(pixels, *parameters):
    out = torch.empty_like(pixels)
    kernels.launch_layer(pixels, out, *parameters)
    want = launched(pixels, *parameters)
    seen.append([bool(torch.equal(a, b)) for a, b in zip(out, want)])
    return want


layers.apply_kinds = both
for magnitude, negative in ((9.0, False), (3.3, True)):
    level = torch.full((16,), magnitude, dtype=torch.float64)
    argument = randaugment.arguments(operation, level, torch.full((16,), negative), increasing=True)
    randaugment.apply(pixels, operation, argument, fill)
assert len(seen) == 2 and all(map(all, seen)), seen

wants_counts, wants_grey = torch.arange(16) % 2 == 0, torch.arange(16) % 3 == 0
want = layers.statistics(pixels, wants_counts, wants_grey)
counts, grey = (torch.zeros_like(part) for part in want)
kernels.launch_count(pixels, wants_counts, wants_grey, counts, grey)
assert torch.equal(counts, want[0]) and torch.equal(grey, want[1])
"""


def test_kernels_equal_the_cpu_path():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
