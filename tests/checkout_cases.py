"""A small copy of the checkout, for the commands that need one: `make` and what it leaves.

`make` finds its environment there, which is the one that runs the tests. What sets one up needs the network; who comes
here by `make test`, as .ci/run does, has been through it.
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from docs_cases import ROOT

OUTER = ("MAKE", "MFLAGS", "VENV", "CONSTRAINTS", "PIP_", "PYTEST")  # what make and pytest hand down to those inside


def environment(folder: Path) -> None:
    """The one of this test under another name, with the stamps by which make knows that it is done."""
    folder.mkdir()
    for path in Path(sys.prefix).glob("[!.]*"):
        (folder / path.name).symlink_to(path)
    for stamp in (".installed-base", ".installed"):
        (folder / stamp).touch()


def lay_out(folder: Path) -> Path:
    """What every target of the Makefile needs."""
    bring(folder, "Makefile", "pyproject.toml", "constraints.txt")
    environment(folder / ".venv")
    return folder


def bring(checkout: Path, *names: str) -> None:
    for name in names:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, checkout / name)


def type_in(checkout: Path, line: str, **given: str) -> str:
    """What a command says there, if it ends well. Whatever it is, it makes no environment and pip installs nothing."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OUTER)}
    settings = {"PYTHON": "false", "PIP_DRY_RUN": "1", "PYTEST_XDIST_AUTO_NUM_WORKERS": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        shlex.split(line),
        cwd=checkout,
        env=inherited | settings | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
