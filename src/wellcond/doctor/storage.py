"""What lies on this disk because of wellcond and its models, and how much room is left."""

import os
import shutil
from pathlib import Path
from typing import Any

from ..data.cache import default_folder
from .findings import Finding

LITTLE = 2e9  # bytes; less than this is too little for decoded pictures


def storage(findings: list[Finding]) -> dict[str, Any]:
    cache = default_folder()
    places = {"pictures": cache, "weights": weights_folder(), "kernels": kernels_folder()}
    found: dict[str, Any] = {name: {"folder": str(path), "bytes": size(path)} for name, path in places.items()}
    nearest = next(path for path in (cache, *cache.absolute().parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    found["free"] = {"folder": str(nearest), "bytes": free}
    elsewhere = "set XDG_CACHE_HOME, or for a run --data.cache, to a folder on another disk"
    if not os.access(nearest, os.W_OK | os.X_OK):
        findings.append(Finding(f"decoded pictures cannot be kept in {cache}: you may not write there", elsewhere))
    elif free < LITTLE:
        findings.append(Finding(f"only {free / 1e9:.1f} GB are free at {nearest}", f"free some space, or {elsewhere}"))
    if left := [path for path in cache.glob(".*.part") if path.is_dir()]:
        wasted = sum(map(size, left)) / 1e9
        remedy = "if none is being built now, remove these folders; so does the next run on the same pictures"
        findings.append(Finding(f"{len(left)} caches in {cache} are unfinished ({wasted:.2f} GB)", remedy))
    return found


def weights_folder() -> Path:
    """Where timm keeps what it downloads."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub"))


def kernels_folder() -> Path:
    """Where Triton keeps what it compiles."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def size(folder: Path) -> int:
    """Bytes of all files in it; links are not followed, and what vanishes meanwhile does not count."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                continue
    return total
