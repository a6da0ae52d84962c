"""What is installed: versions against those that wellcond's own metadata asks for, and the extras."""

import platform
import re
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..extras import install
from .findings import Finding

IMPORTED = ("torch", "timm")  # installed is not enough: a torchvision of another torch breaks timm


class Requirement(NamedTuple):
    name: str
    least: str  # version, or empty
    extra: str  # that asks for it, or empty

    @property
    def line(self) -> str:
        return f"{self.name}>={self.least}" if self.least else self.name


def read(line: str) -> Requirement:
    """A line of the metadata; of versions only the least is looked at.

    >>> read("torch>=2.11"), read("datasets>=3; extra == 'hub'").extra, read("pyright[nodejs]>=1.1").name
    (Requirement(name='torch', least='2.11', extra=''), 'hub', 'pyright')
    """
    name = re.match(r"[\w.-]+", line)
    least, extra = re.search(r">=\s*([\w.]+)", line.split(";")[0]), re.search(r"extra == ['\"]([\w-]+)['\"]", line)
    return Requirement(name[0] if name else line, least[1] if least else "", extra[1] if extra else "")


def older(version: str, least: str) -> bool:
    """By the leading numbers.

    >>> older("2.9.1+cu128", "2.11"), older("2.11.0", "2.11"), older("3.0.dev1", "2.11")
    (True, False, False)
    """
    found, asked = ([int(n) for n in re.findall(r"\d+", re.split(r"[+a-z]", v)[0])] for v in (version, least))
    return found + [0] * (len(asked) - len(found)) < asked


def versions(findings: list[Finding]) -> dict[str, Any]:
    """Python, wellcond and what it needs; null where it is missing."""
    found: dict[str, Any] = {"python": platform.python_version(), "wellcond": __version__}
    for needed in requirements(findings):
        if needed.extra:
            continue
        found[needed.name] = version = installed(needed.name)
        if version is None or older(version, needed.least):
            what = f"{needed.name} is missing" if version is None else f"{needed.name} {version} is too old"
            what += f", wellcond needs {needed.line}"
            findings.append(Finding(what, f"pip install '{needed.line}'", fatal=True))
    for name in IMPORTED:
        try:
            import_module(name)
        except Exception as error:
            line = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            remedy = f"pip install --force-reinstall {name} torchvision, for versions that belong together"
            findings.append(Finding(f"{name} cannot be imported: {line}", remedy, fatal=True))
    return found


def extras(findings: list[Finding]) -> dict[str, Any]:
    """Each extra: what of it is missing, and the line that installs it."""
    asked: dict[str, list[Requirement]] = {}
    for needed in requirements([]):
        if needed.extra:
            asked.setdefault(needed.extra, []).append(needed)
    found: dict[str, Any] = {}
    for extra, needs in asked.items():
        missing = [needed.name for needed in needs if installed(needed.name) is None]
        found[extra] = {"missing": missing, "install": install(extra)}
    return found


def requirements(findings: list[Finding]) -> list[Requirement]:
    try:
        return [read(line) for line in metadata.requires("wellcond") or []]
    except metadata.PackageNotFoundError:
        here = Path(__file__).parents[1]
        findings.append(Finding(f"wellcond is not installed, only found in {here}", "pip install . in its checkout"))
        return []


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
