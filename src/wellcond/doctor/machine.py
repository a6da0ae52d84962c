"""The machine: CPU, memory, GPU and driver, and the eigensolver that each device gets, with the reason."""

import os
import platform
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

from .. import results
from .findings import Finding

DRIVER = Path("/proc/driver/nvidia/version")


def machine(findings: list[Finding]) -> dict[str, Any]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": results.hardware("cpu")["cpu"],
        "cores": cores,
        "threads": torch.get_num_threads(),
        "memory_gib": round(pages / 2**30, 1),
    }


def gpu(findings: list[Finding]) -> dict[str, Any]:
    """The GPUs that torch sees, and the driver; a driver without a GPU for torch is a finding."""
    import torch

    cuda, hip = torch.version.cuda, torch.version.hip
    found: dict[str, Any] = {
        "driver": driver(),
        "torch": f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "CPU",  # that it is built for
        "devices": [],
    }
    if not torch.cuda.is_available():
        if found["driver"] is not None:
            findings.append(_unseen(found["driver"]))
        return found
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found["devices"].append(
            {
                "name": properties.name,
                "memory_gib": round(properties.total_memory / 2**30, 1),
                "free_gib": round(torch.cuda.mem_get_info(index)[0] / 2**30, 1),
                "capability": f"{properties.major}.{properties.minor}",
            }
        )
    return found


def driver() -> str | None:
    """NVIDIA's, from the kernel or from nvidia-smi."""
    if DRIVER.exists() and (found := re.search(r"Kernel Module\D*?(\d+\.[\d.]+)", DRIVER.read_text())):
        return found[1]
    try:
        words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return said[0] if said else None


def _unseen(version: str) -> Finding:
    import torch

    text = f"there is an NVIDIA driver ({version}), but torch sees no GPU"
    if torch.version.cuda is None:
        return Finding(f"{text}: it is built for the CPU", "install a build for CUDA: https://pytorch.org/get-started")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return Finding(f"{text}: CUDA_VISIBLE_DEVICES is {hidden!r}", "unset CUDA_VISIBLE_DEVICES, or name a GPU in it")
    remedy = f"update the driver to one for CUDA {torch.version.cuda}, or install torch built for an older CUDA"
    return Finding(text, f"{remedy}; in a container, give it the GPU")


def eigensolver(findings: list[Finding]) -> dict[str, Any]:
    """Which solver each kind of device takes, whether the fast path's kernels are there, and why."""
    import torch

    from ..spectral.choice import explain

    found: dict[str, Any] = {}
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        with warnings.catch_warnings(record=True) as heard:  # it says itself why cuSOLVER is not used
            warnings.simplefilter("always")
            choice = explain(device)
        found[device] = choice._asdict()
        if not choice.error < 1e-10:  # NaN is wrong, too
            what = f"the eigensolver of {device} is wrong: error {choice.error:.1e}"
            findings.append(Finding(what, "pip install --force-reinstall torch", fatal=True))
        if device == "cuda" and choice.solver == "torch":
            why = str(heard[0].message) if heard else choice.why
            remedy = "install a torch built for CUDA 12.6 or newer: https://pytorch.org/get-started"
            findings.append(Finding(f"eigenproblems are slow on the GPU: {why}", remedy))
    return found
