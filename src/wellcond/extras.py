"""How to get an extra (optional-dependencies of pyproject.toml). Floor 0: imports nothing of ours.

The package is on no index, where the name may be somebody else's: an extra comes from the checkout.
"""

import shlex
import shutil
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def install(extra: str) -> str:
    """What to type; `-e` where the package is used as it lies in its checkout, which a copy would come before.

    >>> install("app").endswith("'.[app]'")
    True
    """
    editable = "-e " if (CHECKOUT / "pyproject.toml").is_file() else ""
    return f"in wellcond's checkout say {_pip()} install {editable}'.[{extra}]'"


def _pip() -> str:
    """The one of this Python: `make` has an environment that is not activated, and another's pip would not help."""
    found, here = shutil.which("pip"), Path(sys.executable)
    if found is not None and Path(found).parent == here.parent:
        return "pip"
    near = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    return f"{shlex.quote(str(near))} -m pip"
