"""What lies on this disk because of wellcond and its models, and how much room is left."""

import os
import shutil
from pathlib import Path
from typing import Any

from ..data.cache import default_folder
from .findings import Finding

LITTLE = 2e9  # bytes; less than this is too little for decoded pictures
KEPT = {  # what is kept in a cache, and how to have it elsewhere
    "pictures": ("decoded pictures", "set XDG_CACHE_HOME, or for a run --data.cache,"),
    "weights": ("weights that timm fetches", "set HF_HOME"),
    "kernels": ("compiled kernels", "set TRITON_CACHE_DIR"),
}


def storage(findings: list[Finding]) -> dict[str, Any]:
    cache = default_folder()
    places = {"pictures": cache, "weights": weights_folder(), "kernels": kernels_folder()}
    found: dict[str, Any] = {name: {"folder": str(path), "bytes": size(path)} for name, path in places.items()}
    nearest = next(filter(os.path.exists, _upwards(cache)))
    free = shutil.disk_usage(nearest).free
    found["free"] = {"folder": str(nearest), "bytes": free}
    for name, path in places.items():
        if why := _why_not(path):
            what, remedy = KEPT[name]
            findings.append(Finding(f"{what} cannot be kept in {path}: {why}", f"{remedy} to a folder of your own"))
    if free < LITTLE:
        remedy = f"free some space, or {KEPT['pictures'][1]} to a folder on another disk"
        findings.append(Finding(f"only {free / 1e9:.1f} GB are free at {nearest}", remedy))
    parts = cache.glob(".*.part") if os.path.isdir(cache) else ()  # glob stumbles over a folder that it may not enter
    if left := [path for path in parts if path.is_dir()]:
        wasted = sum(map(size, left)) / 1e9
        remedy = "if none is being built now, remove these folders; so does the next run on the same pictures"
        findings.append(Finding(f"{len(left)} caches in {cache} are unfinished ({wasted:.2f} GB)", remedy))
    return found


def _upwards(folder: Path) -> tuple[Path, ...]:
    return (folder, *folder.absolute().parents)


def _why_not(folder: Path) -> str:
    """Why nothing can be written into the folder, or it not be made; empty where it can."""
    place = next(filter(os.path.lexists, _upwards(folder)))  # a link that leads nowhere is in the way, too
    if not os.path.isdir(place):
        return f"{place} is no folder"
    return "" if os.access(place, os.W_OK | os.X_OK) else "you may not write there"


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
