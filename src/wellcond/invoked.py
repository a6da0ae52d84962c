"""How the commands of this Python are typed from where the user stands. Foundation: imports nothing of ours.

`make` has an environment that is not activated: there `wellcond` alone is no command, or another's.
"""

import shlex
import shutil
import sys
from pathlib import Path


def typed(program: str, folder: Path | None = None) -> str:
    """The name where the shell finds this one by it; else the script beside this Python; else `python -m`.

    Paths are told from `folder`, or from where the user stands.
    """
    folder = folder or Path.cwd()
    here = Path(sys.executable)
    script = here.with_name(program)
    if (found := shutil.which(program)) is not None and Path(found) in (script, Path(sys.argv[0])):
        return program
    return _near(script, folder) if script.is_file() else f"{_near(here, folder)} -m {program}"


def _near(path: Path, folder: Path) -> str:
    return shlex.quote(str(path.relative_to(folder) if path.is_relative_to(folder) else path))
