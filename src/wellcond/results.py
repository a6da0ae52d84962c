"""A file in results/: where its numbers come from (commit, hardware, versions), and how it is written; tables. Floor 0.

Benchmarks and claims both write such files, and tables are made from them. torch is imported only where the hardware
is looked at.
"""

import datetime
import json
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from .atomic import write_bytes
from .finite import finite

PACKAGES = ("wellcond", "torch", "timm", "numpy", "triton", "torch-dct", "pytorch-optimizer")


def now() -> str:
    """The moment, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def origin(command: str, device: str, commit: str | None = None) -> dict[str, Any]:
    """What was run, on which code, on what, with what, when."""
    return {
        "command": command,
        "commit": commit or git_commit(),
        "hardware": hardware(device),
        "versions": versions(),
        "date": now(),
    }


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
    """Versions of what the numbers depend on; null for what is not here."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = getattr(sys.modules.get(name), "__version__", None)  # a bare folder on the path
    return found


def git_commit() -> str | None:
    """The commit of this checkout, with "+" if the package's files differ; None outside a checkout.

    WELLCOND_COMMIT is believed before that: images and copied folders have no history, or an old one.
    """
    if said := os.environ.get("WELLCOND_COMMIT"):
        return said
    package = Path(__file__).parent

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *words], cwd=package, capture_output=True, text=True)

    try:
        if git("ls-files", "--error-unmatch", __file__).returncode:
            return None  # an installed copy, perhaps inside somebody else's checkout
        head = git("rev-parse", "HEAD").stdout.strip()
        return head + ("+" if git("diff", "--quiet", "HEAD", "--", ".").returncode else "")
    except OSError:
        return None


def write(path: Path, content: Mapping[str, Any], one_a_line: Collection[str]) -> dict[str, Any]:
    """Write `content` as JSON, whole or not at all, and return it as it was written (`finite`).

    Each item of the fields in `one_a_line` has a line of its own: a changed number is a changed line.
    """
    written: dict[str, Any] = finite(content)
    write_bytes(path, by_lines(written, one_a_line).encode())
    return written


def by_lines(content: Mapping[str, Any], one_a_line: Collection[str]) -> str:
    """JSON with a line for each field, and for each item of the fields in `one_a_line`; ValueError for NaN and inf."""
    lines = [f" {_dump(key)}: {_field(value, key in one_a_line)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def read(path: Path, needed: Collection[str], what: str) -> dict[str, Any] | None:
    """What `write` wrote, with the fields `needed`; None where there is no file, ValueError where it is another's."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
    except ValueError:  # not JSON, or not even text
        found = None
    if not isinstance(found, dict) or not set(needed) <= set(found):
        raise ValueError(f"{str(path)!r} holds no {what}: move it away or give another --out.")
    return found


def without_place(word: str) -> str:
    """Of PATH, NAME=PATH or NAME:PATH what says no place on this machine; results and cards are published.

    >>> words = "/home/me/cats/", "knn=/data/voc", "cifar10:/data/x", "--data.train=hf:owner/set", "procedural:40"
    >>> [without_place(word) for word in words]
    ['cats', 'knn=voc', 'cifar10:x', '--data.train=hf:owner/set', 'procedural:40']
    """
    head, *parts = re.split(r"[/\\]", word.rstrip("/\\"))
    before = head[: 1 + max(head.rfind("="), head.rfind(":"))]
    of_hub = re.search(r"(^|=)hf:$", before) and len(parts) == 1 and head[-1] not in ":.~"
    return word if of_hub or not parts else before + parts[-1]


def told_seeds(runs: Iterable[Mapping[str, Any]]) -> str:
    """How many the variants of a claim have, the fewest and the most.

    >>> told_seeds([{"variant": "a"}, {"variant": "a"}, {"variant": "b"}]), told_seeds([{"variant": "a"}])
    ('1 to 2 seeds', '1 seed')
    """
    counts = Counter(run["variant"] for run in runs).values()
    few, many = min(counts, default=0), max(counts, default=0)
    return f"{f'{few} to ' if few < many else ''}{many} {'seed' if many == 1 else 'seeds'}"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. A cell stays one cell: a bar in it is escaped, a line break is a blank.

    >>> print(markdown(["what", "value"], [["|x|", "a\\nb"]]))
    | what | value |
    | --- | --- |
    | \\|x\\| | a b |
    """
    lines = [heads, ["---"] * len(heads), *rows]
    cells = ((" ".join(cell.split()).replace("|", "\\|") for cell in line) for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _field(value: Any, one_a_line: bool) -> str:
    if one_a_line and isinstance(value, Mapping):
        return "{\n" + ",\n".join(f"  {_dump(k)}: {_dump(v)}" for k, v in value.items()) + "\n }"
    if one_a_line:
        return "[\n" + ",\n".join(f"  {_dump(item)}" for item in value) + "\n ]"
    return _dump(value)


def _dump(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
