"""`wellcond doctor`: what is installed, found and chosen on this machine; what is wrong, and a remedy. Floor 8.

packages  versions against those that wellcond needs; extras             findings  what is wrong
machine   CPU, memory, GPU and driver, the eigensolver of each device     storage   caches and free disk
showing   all of it as a table

It is for machines on which something is broken: what cannot be looked at is a finding, not a traceback.
"""

import json
import os
from collections.abc import Callable
from typing import Any

from ..config import DoctorConfig
from ..finite import finite
from .findings import Finding

Section = dict[str, Any]


def run(config: DoctorConfig) -> int:
    """Look, print, and say by the exit status whether wellcond can work here."""
    sections, findings = examine()
    if config.json:
        found = finite({**sections, "findings": [finding._asdict() for finding in findings]})
        print(json.dumps(found, indent=1, allow_nan=False))
    else:
        from .showing import show

        show(sections, findings)
    return int(any(finding.fatal for finding in findings))


def examine() -> tuple[dict[str, Section], list[Finding]]:
    """Sections of name → value, ready for JSON, and what is wrong."""
    from . import machine, packages, storage

    findings: list[Finding] = []
    looks: dict[str, Callable[[list[Finding]], Section]] = {
        "versions": packages.versions,
        "machine": machine.machine,
        "gpu": machine.gpu,
        "eigensolver": machine.eigensolver,
        "storage": storage.storage,
        "extras": packages.extras,
    }
    sections: dict[str, Section] = {}
    for name, look in looks.items():
        try:
            sections[name] = look(findings)
        except Exception as error:  # whatever is broken here is what people come for
            sections[name] = {}
            findings.append(Finding(f"{name}: {_in_a_line(error)}", "repair what it names, or install wellcond anew"))
    return sections, findings


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".replace(os.linesep, " ").split())
