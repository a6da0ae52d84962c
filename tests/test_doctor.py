"""`wellcond doctor`: what it finds here, and on machines where something is wrong."""

import json
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from wellcond import doctor, extras
from wellcond.cli import main
from wellcond.doctor import machine, packages, storage
from wellcond.doctor.findings import Finding
from wellcond.extras import install
from wellcond.spectral import choice

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def examined(capsys) -> tuple[int, dict]:
    status = main(["doctor", "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_here(tmp_path, capsys):
    (tmp_path / "wellcond" / "images" / "set-64px").mkdir(parents=True)
    (tmp_path / "wellcond" / "images" / "set-64px" / "images.npy").write_bytes(bytes(12345))
    status, found = examined(capsys)
    assert status == 0, found["findings"]
    assert list(found) == ["versions", "machine", "gpu", "eigensolver", "storage", "extras", "findings"]
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["versions"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found["storage"]["pictures"] == {"folder": str(tmp_path / "wellcond" / "images"), "bytes": 12345}
    assert found["storage"]["free"]["bytes"] > 0
    assert found["eigensolver"]["cpu"]["solver"] == "lapack"
    assert found["eigensolver"]["cpu"]["error"] < 1e-12
    assert ("cuda" in found["eigensolver"]) == torch.cuda.is_available() == bool(found["gpu"]["devices"])


def test_as_a_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 80
    for words in ("versions", f"torch         {metadata.version('torch')}", "lapack", "free", "float64 kernels"):
        assert words in shown
    if not torch.cuda.is_available():
        assert "no GPU" in shown


@pytest.mark.gpu
def test_a_gpu_and_its_solver(capsys):
    from wellcond.spectral.eigen import solver_name

    _, found = examined(capsys)
    assert found["gpu"]["devices"][0]["name"] == torch.cuda.get_device_name(0)
    assert found["gpu"]["driver"]
    assert found["eigensolver"]["cuda"]["solver"] == solver_name("cuda")
    assert found["eigensolver"]["cuda"]["error"] < 1e-12


def test_packages_that_are_missing_or_old_are_fatal_and_extras_have_their_line(capsys, monkeypatch):
    lines = [
        "torch>=99.1",
        "no-such-thing>=2",
        "numpy>=1.0",
        "no-such-extra>=3; extra == 'hub'",
        'pytest; extra == "dev"',
    ]
    monkeypatch.setattr(metadata, "requires", lambda name: lines)
    monkeypatch.setenv("COLUMNS", "120")
    status, found = examined(capsys)
    assert status == 1
    assert [finding["remedy"] for finding in found["findings"]] == [
        "pip install 'torch>=99.1'",
        "pip install 'no-such-thing>=2'",
    ]
    assert found["versions"]["no-such-thing"] is None
    assert found["extras"]["hub"] == {"missing": ["no-such-extra"], "install": install("hub")}
    assert found["extras"]["dev"]["missing"] == []
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "install -e '.[hub]' (missing: no-such-extra)" in " ".join(shown.split())
    assert "warning: no-such-thing is missing, wellcond needs no-such-thing>=2" in shown


def test_an_extra_is_one_of_ours_and_comes_from_the_checkout():
    """The package is on no index: what pip finds there under its name is not ours."""
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py"), *(ROOT / "docs").glob("*.md")]
    texts = [path.read_text() for path in (*sources, ROOT / "README.md")]
    assert not any("wellcond[" in text for text in texts)
    named = {name for text in texts for name in re.findall(r"\binstall\(['\"](\w+)['\"]\)|'\.\[(\w+)\]'", text)}
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"app", "hub"} < {a or b for a, b in named} <= known.keys()


def test_an_extra_goes_to_the_python_that_asks_for_it(tmp_path, monkeypatch):
    """`.venv/bin/wellcond` of a checkout, whose environment is not activated."""
    pip = tmp_path / "my env" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(pip.with_name("python")))
    monkeypatch.chdir(tmp_path.parent)  # what is told is typed in the checkout, wherever it was told
    assert install("app").endswith("my env/bin/python' -m pip install -e '.[app]'")
    pip.touch(mode=0o755)
    assert install("app").endswith("my env/bin/pip' install -e '.[app]'")
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)  # without pyproject.toml: a copy in site-packages
    assert install("app") == "in wellcond's checkout say 'my env/bin/pip' install '.[app]'"
    monkeypatch.setenv("PATH", str(pip.parent))
    assert install("app") == "in wellcond's checkout say pip install '.[app]'"


def test_a_package_that_cannot_be_imported_is_named(monkeypatch):
    monkeypatch.setattr(packages, "IMPORTED", ("wellcond.no_such_room",))
    findings: list[Finding] = []
    packages.versions(findings)
    assert [(f.fatal, "no_such_room" in f.text) for f in findings] == [(True, True)]


def test_a_checkout_that_is_not_installed(monkeypatch):
    def unknown(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", unknown)
    findings: list[Finding] = []
    assert packages.versions(findings)["wellcond"]
    assert not any(finding.fatal for finding in findings) and "pip install" in findings[0].remedy


@pytest.mark.parametrize(
    ("built", "hidden", "words"),
    [(None, None, "built for the CPU"), ("13.0", "", "CUDA_VISIBLE_DEVICES is ''"), ("13.0", None, "550.54")],
)
def test_a_driver_without_a_gpu_for_torch(built, hidden, words, monkeypatch, tmp_path):
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 2024\n")
    monkeypatch.setattr(machine, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    findings: list[Finding] = []
    assert machine.gpu(findings)["driver"] == "550.54.15"
    assert len(findings) == 1 and words in findings[0].text and findings[0].remedy


def test_a_slow_solver_and_little_room_are_told_with_remedies(monkeypatch, capsys, tmp_path):
    """A GPU that is not here: what the table makes of it."""
    properties = SimpleNamespace(name="Some GPU", total_memory=80 << 30, major=8, minor=6)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (40 << 30, 80 << 30))
    slow = choice.Choice("torch", "no XsyevBatched", False, "compute capability 8.6", 1e-15)
    ours = choice.explain("cpu")
    monkeypatch.setattr(choice, "explain", lambda device: ours if device == "cpu" else slow)
    monkeypatch.setattr(storage, "LITTLE", 1e18)
    (tmp_path / "wellcond" / "images" / ".set-64px.77.part").mkdir(parents=True)
    assert main(["doctor"]) == 0  # slow, but it works
    shown = capsys.readouterr().out
    assert "Some GPU, 40.0 of 80.0 GiB free, compute" in shown
    for words in ("slow on the GPU", "CUDA 12.6", "XDG_CACHE_HOME", "1 caches in", "remove these folders"):
        assert words in shown, words
    assert shown.count("warning: ") == shown.count("  → ") == 3


@pytest.mark.parametrize("broken", ["file", "link"])
def test_a_cache_that_cannot_be_made_is_told(broken, monkeypatch, tmp_path):
    """A file in its place, or a link to a disk that is gone."""
    (tmp_path / "file").touch(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for variable in ("XDG_CACHE_HOME", "HF_HOME", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / broken))
    findings: list[Finding] = []
    assert storage.storage(findings)["free"]["bytes"] > 0
    assert len(findings) == 3 and all(f"{tmp_path / broken} is no folder" in finding.text for finding in findings)
    assert ["XDG_CACHE_HOME" in findings[0].remedy, "HF_HOME" in findings[1].remedy] == [True, True]


def test_a_cache_that_may_not_be_entered_is_told(monkeypatch, tmp_path):
    """Tried as anybody: root may."""
    look = Path.stat

    def closed(self, **options):
        if tmp_path in self.parents:
            raise PermissionError(13, "Permission denied", str(self))
        return look(self, **options)

    monkeypatch.setattr(Path, "stat", closed)
    monkeypatch.setattr("os.access", lambda *_: False)
    findings: list[Finding] = []
    storage.storage(findings)
    assert "you may not write there" in findings[0].text and "XDG_CACHE_HOME" in findings[0].remedy


def test_a_wrong_solver_is_fatal(monkeypatch, capsys):
    broken = choice.Choice("lapack", "", False, "", float("nan"))
    monkeypatch.setattr(choice, "explain", lambda device: broken)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, found = examined(capsys)
    assert status == 1
    assert found["eigensolver"]["cpu"]["error"] is None  # JSON has no NaN


def test_what_cannot_be_looked_at_is_a_finding_and_not_a_traceback(monkeypatch, capsys):
    def fail(findings: list[Finding]) -> dict:
        raise OSError("no such thing")

    monkeypatch.setattr(machine, "gpu", fail)
    sections, findings = doctor.examine()
    assert sections["gpu"] == {}
    assert "gpu: OSError: no such thing" in [finding.text for finding in findings]
    assert main(["doctor"]) == 0
    assert "not known" in capsys.readouterr().out
