"""The commands that need a checkout, as written, in a small copy: every `make` of the pages (that of the demo is
in conftest), the server of the site, and every `pip install`, which finds what it needs here and installs to a folder
of its own."""

import http.client
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkout_cases import bring, environment, lay_out, type_in
from docs_cases import PAGES, ROOT
from PIL import Image
from typed_cases import SAID, as_written, of_a_checkout

from wellcond.bench.table import CLAIMS, PROMISES, replace_block


@pytest.fixture
def checkout(tmp_path) -> Path:
    return lay_out(tmp_path)


def served(line: str, checkout: Path, path: str) -> bytes:
    """What the server that `line` starts answers to one question, on any free port."""
    with subprocess.Popen(
        [*shlex.split(line), "0"],
        cwd=checkout,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            host, port = server.stdout.readline().split()[3:6:2]
            connection = http.client.HTTPConnection(host, int(port), timeout=20)
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read()
        finally:
            server.terminate()


@pytest.mark.slow
def test_the_site_is_built_and_served_with_its_search(checkout):
    """From the disk the theme hides its search, and its plugin offline loads a script from another machine."""
    pytest.importorskip("mkdocs")
    bring(checkout, "mkdocs.yml", "CONTRIBUTING.md", "docs", "results", "src", "examples", "tests/test_house.py")
    *_, last = type_in(checkout, "make docs").splitlines()
    pages = {f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.name for path in (checkout / "site").iterdir()}
    for page in pages:
        assert not re.search(r"<(script|link|img)\b[^>]*(src|href)=\"?https?:", (checkout / "site" / page).read_text())
    opening, line = last.split("; to search in it, ")
    assert opening == "open site/index.html" and f"`{line}`" in (ROOT / "CONTRIBUTING.md").read_text()
    assert line.endswith("/python -m http.server --bind 127.0.0.1 --directory site")
    index = json.loads(served(line, checkout, "/search/search_index.json"))
    assert pages <= {entry["location"] for entry in index["docs"]}


def test_the_tables_are_written_from_the_results(checkout):
    bring(checkout, "README.md", "docs/results.md", "results")
    readme, results = checkout / "README.md", checkout / "docs" / "results.md"
    readme.write_text(replace_block(replace_block(readme.read_text(), "", CLAIMS), "", PROMISES))
    results.unlink()
    type_in(checkout, "make table")
    assert readme.read_text() == (ROOT / "README.md").read_text()
    assert results.read_text() == (ROOT / "docs" / "results.md").read_text()


@pytest.mark.slow
def test_the_picture_is_drawn_again(checkout):
    bring(checkout, "docs/kappa.py")
    type_in(checkout, "make picture")
    drawn, shown = (np.asarray(Image.open(root / "docs" / "kappa.png"), float) for root in (checkout, ROOT))
    assert drawn.shape == shown.shape
    assert abs(drawn - shown).mean() < 0.5  # of 255: another machine may round a pixel otherwise


PROJECT = {  # what the tools of `make check test` find nothing in
    "mkdocs.yml": "site_name: small\n",
    "docs/index.md": "# Small\n",
    "src/small.py": '"""\n>>> 1 + 1\n2\n"""\n\nnumber: int = 1\n',
    "tests/test_small.py": "def test_small():\n    pass\n",
}
FAULTS = {  # and what just one of them finds
    "docs/leads.md": "# Leads\n\n[nowhere](nowhere.md)\n",
    "src/unused.py": "import os\n",
    "src/spaced.py": "number  = 1\n",
    "src/mistyped.py": 'number: int = "one"\n',
    "src/miscounted.py": '"""\n>>> 1 + 1\n3\n"""\n',
}


def write(checkout: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(text)


def need_the_tools() -> None:
    for tool in ("mkdocs", "ruff", "pyright", "xdist"):
        pytest.importorskip(tool)


@pytest.mark.slow
def test_a_clean_project_passes_the_check(checkout):
    """This suite is what `make check test` runs, so here it runs on a small project."""
    need_the_tools()
    write(checkout, PROJECT)
    said = type_in(checkout, "make check test")
    assert said.count("1 passed") == 2 and (checkout / "site" / "index.html").exists()
    assert "exec make check test" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.slow
def test_the_check_finds_a_fault_of_every_kind(checkout):
    need_the_tools()
    write(checkout, PROJECT | FAULTS)
    said = type_in(checkout, "make check", MAKEFLAGS="--ignore-errors")
    assert len(re.findall(r"Error \d+ \(ignored\)", said)) == len(FAULTS), said
    assert all(Path(name).name in said for name in FAULTS)


@pytest.mark.slow
def test_the_suite_runs_in_an_environment_of_the_newest(checkout):
    need_the_tools()
    write(checkout, PROJECT)
    (checkout / ".venv").rename(checkout / ".venv-latest")
    assert "1 passed" in type_in(checkout, "make test-latest")


def test_that_environment_is_made_without_the_pinned_versions(checkout):
    said = type_in(checkout, "make --dry-run test-latest")
    (installing,) = re.findall(r"^.venv-latest/bin/python -m pip install .*", said, re.MULTILINE)
    assert "--upgrade" in installing and "[dev]" in installing and "-c " not in installing


def test_cleaning_leaves_the_checkout(checkout):
    before = {path.name for path in checkout.iterdir()}
    write(checkout, {"demo/report.html": "", "site/index.html": ""})
    environment(checkout / ".venv-latest")
    type_in(checkout, "make clean")
    assert {path.name for path in checkout.iterdir()} == before - {".venv"}
    assert Path(sys.executable).exists()  # what the environment only pointed at


@pytest.mark.slow
@pytest.mark.parametrize("line", ["pip install .", "pip install '.[slurm]'", "pip install -e '.[app]'"])
def test_pip_installs_the_package_and_its_command(line, checkout):
    """Without what it depends on; whether the extra of a line is there is asked of what was installed."""
    for tool in ("hatchling", "editables"):
        pytest.importorskip(tool)
    bring(checkout, "src", "README.md", "LICENSE")
    folder = checkout / "installed"
    offline = {"PIP_DRY_RUN": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}  # 0: none
    type_in(checkout, f"{sys.prefix}/bin/{line}", **offline, PIP_TARGET=str(folder))
    found = subprocess.run(
        [sys.executable, "-S", "-c", INSTALLED, str(folder)], cwd=folder, capture_output=True, text=True, check=True
    )
    place, command, *extras = found.stdout.split()
    assert Path(place).is_relative_to(checkout / "src" if "-e" in line else folder)
    assert command == "wellcond.cli:main" and (folder / "bin" / "wellcond").exists()
    assert set(re.findall(r"\[(\w+)\]", line)) <= set(extras)


INSTALLED = """
import site, sys
from importlib import metadata
site.addsitedir(sys.argv[1])
import wellcond
package = metadata.distribution("wellcond")
(command,) = package.entry_points
print(wellcond.__file__, command.value, *package.metadata.get_all("Provides-Extra"))
"""


def test_every_such_command_of_the_pages_is_typed():
    lines = {as_written(words) for page in PAGES for words in SAID[page] if of_a_checkout(words)}
    assert {line.split()[0] for line in lines} == {"make", "pip", "python"}
    tests = "".join((ROOT / "tests" / name).read_text() for name in ("test_checkout.py", "conftest.py"))
    assert [line for line in lines if f'{line}"' not in tests] == []
