"""Write a file whole or not at all. Floor 0.

A full disk or an interrupt must leave either the old file or the new one, never half of it: the bytes go to a
temporary name in the same folder, and `os.replace` swaps the name in one step.
"""

import os
import tempfile
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content`; its folder is made if it is missing."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes it private; a result is not
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # the user knows this name, not the temporary one
        raise


def check_writable(path: Path, option: str) -> None:
    """ValueError if the file `path` that `option` names could not be written, as far as can be seen before trying."""
    what = f"{option} is {str(path)!r}"
    if path.is_dir():
        raise ValueError(f"{what}, which is a folder; name a file in it")
    nearest = next(p for p in path.absolute().parents if p.exists())
    if not nearest.is_dir():
        raise ValueError(f"{what}, but {str(nearest)!r} is a file; name another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ValueError(f"{what}, where you may not write; name another place")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
