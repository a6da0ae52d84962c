"""Write a file whole or not at all, and bring it to the disk. Floor 0.

A full disk or an interrupt must leave either the old file or the new one, never half of it: the bytes go to a
temporary name in the same folder, and `os.replace` swaps the name in one step. What must survive a power cut as well
is synced, and so is its folder.
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


def sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Make names in a folder durable: a renamed or new file is lost with the power until its folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:  # some network file systems cannot
        pass
    finally:
        os.close(handle)


def check_writable(path: Path, option: str, *, suffix: str = "") -> None:
    """ValueError if the file `path` that `option` names cannot be written; tried with a nameless file beside it.

    With `suffix`, a file that is there already must end in it: what is replaced is an earlier result, not other work.
    """
    what = f"{option} is {str(path)!r}"
    if path.is_dir():
        raise ValueError(f"{what}, which is a folder; name a file in it")
    if suffix and path.suffix.lower() != suffix and path.exists():
        raise ValueError(f"{what}, a file that would be lost; name one that ends in {suffix}")
    nearest = next(p for p in path.absolute().parents if p.exists())
    if not nearest.is_dir():
        raise ValueError(f"{what}, but {str(nearest)!r} is a file; name another folder")
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise ValueError(f"{what}, where you may not write ({error.strerror}); name another place") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
