"""What the doctor found, as a table that fits a screen."""

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .findings import Finding

Rows = Iterator[tuple[str, str]]


def show(sections: dict[str, dict[str, Any]], findings: list[Finding]) -> None:
    console = Console(highlight=False)
    table = Table(box=SIMPLE, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    for name, section in sections.items():
        for i, (what, words) in enumerate(_ROWS[name](section) if section else [("", "not known")]):
            table.add_row(Text(name if i == 0 else "", style="bold"), Text(what), Text(words))
    console.print(table)
    for finding in findings:
        console.print(Text.assemble(("warning: ", "bold yellow"), finding.text), soft_wrap=True)
        console.print(Text(f"  → {finding.remedy}"), soft_wrap=True)
    if not findings:
        console.print("nothing is wrong")


def _versions(found: dict[str, Any]) -> Rows:
    for name in ("wellcond", "python", "torch", "timm"):
        if name in found:
            yield name, found[name] or "missing"
    others = {name: version for name, version in found.items() if name not in ("wellcond", "python", "torch", "timm")}
    if others:
        yield "others", ", ".join(f"{name} {version or 'missing'}" for name, version in others.items())


def _machine(found: dict[str, Any]) -> Rows:
    yield "system", found["system"]
    yield "CPU", f"{found['cpu']}, {found['cores']} cores, {found['threads']} threads for torch"
    yield "memory", f"{found['memory_gib']} GiB"


def _gpu(found: dict[str, Any]) -> Rows:
    for index, device in enumerate(found["devices"]):
        memory = f"{device['free_gib']} of {device['memory_gib']} GiB free"
        yield f"cuda:{index}", f"{device['name']}, {memory}, compute capability {device['capability']}"
    if not found["devices"]:
        yield "", "no GPU"
    yield "driver", found["driver"] or "none"
    yield "torch is for", found["torch"]


def _eigensolver(found: dict[str, Any]) -> Rows:
    for device, choice in found.items():
        yield device, f"{choice['solver']}: {choice['why']}; tried, error {choice['error']:.0e}"
        yield "", f"float64 kernels {'found' if choice['kernels'] else 'not used'}: {choice['why_kernels']}"


def _storage(found: dict[str, Any]) -> Rows:
    for what, place in found.items():
        yield what, f"{place['bytes'] / 1e9:.2f} GB {'at' if what == 'free' else 'in'} {place['folder']}"


def _extras(found: dict[str, Any]) -> Rows:
    for extra, state in found.items():
        missing = ", ".join(state["missing"])
        yield extra, f"{state['install']} (missing: {missing})" if missing else "installed"


_ROWS = {
    "versions": _versions,
    "machine": _machine,
    "gpu": _gpu,
    "eigensolver": _eigensolver,
    "storage": _storage,
    "extras": _extras,
}
