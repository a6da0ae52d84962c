"""A results file: what was run, where, on what, every row, and which bars it meets.

Parts are measured in separate runs (a big GPU is seldom free long), so a file is merged: a new run of part
"a" on "cuda" replaces the rows of that part on that device and leaves the others. The file is rewritten,
whole or not at all, after every part.
"""

import datetime
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..atomic import write_bytes
from .bars import Bar

PACKAGES = ("wellcond", "torch", "timm", "numpy", "triton", "torch-dct")


@dataclass(frozen=True, kw_only=True)
class Record:
    """``results/bench-WHAT.json`` of one run: one command, device and commit for all the parts it adds."""

    what: str
    out: Path
    device: str
    command: str
    quick: bool
    bars: tuple[Bar, ...]
    commit: str | None = None

    @property
    def path(self) -> Path:
        return self.out / f"bench-{self.what}.json"

    def refuse_overwriting(self, parts: list[str]) -> None:
        """A quick run shows that the benchmark works; it must not replace a real measurement."""
        old = self._read()["parts"]
        kept = [p for p in parts if self._key(p) in old and not old[self._key(p)]["quick"]]
        if self.quick and kept:
            raise ValueError(
                f"{str(self.path)!r} holds full measurements of part {', '.join(kept)}: "
                "a quick run would replace them. Give another --out."
            )

    def add(self, part: str, rows: list[dict[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Merge the rows of one part, judge all bars again and rewrite the file. Returns its content."""
        merged = self._read()
        key = self._key(part)
        origin = {
            "command": self.command,
            "commit": self.commit or git_commit(),
            "hardware": hardware(self.device),
            "versions": versions(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        }
        merged["parts"][key] = {
            "part": part,
            "device": self.device,
            "quick": self.quick,
            **origin,
            **settings,
        }
        rows = [{"part": part, "device": self.device, **row} for row in rows]
        others = [r for r in merged["rows"] if (r["part"], r["device"]) != (part, self.device)]
        merged["rows"] = sorted(others + rows, key=lambda r: (r["device"] != "cuda", r["part"]))
        head = {"what": self.what, **origin, "images": settings["images"], "seeds": settings["seeds"]}
        bars = [bar.judge(merged["rows"], merged["parts"]) for bar in self.bars]
        content = _finite({**head, "bars": bars, "parts": merged["parts"], "rows": merged["rows"]})
        write_bytes(self.path, _text(content).encode())
        return content

    def _key(self, part: str) -> str:
        return f"{part}-{self.device}"

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"parts": {}, "rows": []}
        try:
            found = json.loads(self.path.read_text())
        except ValueError:  # not JSON, or not even text
            found = None
        if not isinstance(found, dict) or not {"parts", "rows"} <= set(found):
            raise ValueError(f"{str(self.path)!r} holds no benchmark: move it away or give another --out.")
        return found


def hardware(device: str) -> dict[str, Any]:
    """GPU or CPU model, and what decides its speed."""
    import torch

    if device == "cuda":
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        return {
            "gpu": properties.name,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return {"cpu": _cpu_model(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def versions() -> dict[str, str | None]:
    """Versions of what the timing depends on; null for what is not here."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = getattr(sys.modules.get(name), "__version__", None)  # a bare folder on the path
    return found


def git_commit() -> str | None:
    """The commit of this checkout, with "+" if the package's files differ; None outside a checkout."""
    package = Path(__file__).parents[1]

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=package, capture_output=True, text=True)

    try:
        if git("ls-files", "--error-unmatch", __file__).returncode:
            return None  # an installed copy, perhaps inside somebody else's checkout
        head = git("rev-parse", "HEAD").stdout.strip()
        return head + ("+" if git("diff", "--quiet", "HEAD", "--", ".").returncode else "")
    except OSError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _text(content: Mapping[str, Any]) -> str:
    """JSON with one line per row, bar and part: a changed number is a changed line."""

    def dump(value: Any) -> str:
        return json.dumps(value, allow_nan=False, ensure_ascii=False)

    lines = []
    for key, value in content.items():
        if key in ("rows", "bars"):
            inner = "[\n" + ",\n".join(f"  {dump(item)}" for item in value) + "\n ]"
        elif key == "parts":
            inner = "{\n" + ",\n".join(f"  {dump(k)}: {dump(v)}" for k, v in value.items()) + "\n }"
        else:
            inner = dump(value)
        lines.append(f" {dump(key)}: {inner}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _finite(value: Any) -> Any:
    """The same with null for NaN and infinity: JSON knows neither."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
