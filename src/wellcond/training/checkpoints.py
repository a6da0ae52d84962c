"""Checkpoints that survive what happens to machines.

`checkpoints/step-00001000/` holds `*.safetensors`, `state.json` and `manifest.json` (size and SHA-256 of every other
file). It is written under a temporary name; each file, then the folder is synced; one rename makes it exist; then its
parent is synced. So a process killed anywhere leaves either the whole new checkpoint or none, and a file that was torn
or changed later is found by its checksum. No pickle: reading one runs no code.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from wellcond.atomic import sync_file, sync_folder

Tensors = Mapping[str, Tensor]
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints there are, newest first, whole or not."""
    found = [p.name.removeprefix("step-") for p in folder.glob("step-*") if p.is_dir()]
    return sorted((int(digits) for digits in found if digits.isdecimal()), reverse=True)


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensors],
    state: Mapping[str, Any],
    *,
    keep: int,
    about: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint of whole CPU tensors by file name, then drop all but the newest `keep` up to it.

    Later ones stay until their step comes again: they are damaged, or the run would have gone on from them.

    `about` goes into the header of every file of tensors: what its reader cannot see from them.
    """
    final = folder / name_of(step)
    temporary = folder / f".{final.name}.part"
    with _nothing_left_behind(temporary):
        folder.mkdir(parents=True, exist_ok=True)
        _clean(folder)
        temporary.mkdir()
        for name, content in tensors.items():
            whole = {key: t.contiguous() for key, t in content.items()}
            said = {"wellcond": json.dumps(dict(about or {}))}  # one entry: safetensors writes several in any order
            save_file(whole, temporary / f"{name}.safetensors", metadata=said)
        (temporary / "state.json").write_text(json.dumps(dict(state), indent=1))
        manifest = {p.name: {"bytes": p.stat().st_size, "sha256": _digest(p)} for p in sorted(temporary.iterdir())}
        (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1))
        mode = (temporary / "state.json").stat().st_mode
        for path in temporary.iterdir():
            os.chmod(path, mode)  # safetensors makes its files private
            sync_file(path)
        sync_folder(temporary)
        aside = folder / f".{final.name}.aside"
        if final.exists():  # a damaged one, or the same step again: before and after the end of an epoch
            os.rename(final, aside)
        os.rename(temporary, final)
        sync_folder(folder)
        shutil.rmtree(aside, ignore_errors=True)
    for old in [found for found in steps(folder) if found <= step][keep:]:
        _remove(folder / name_of(old))


def put_back(folder: Path) -> None:
    """What a process had set aside that died before the new one was in its place: it may be the only one."""
    for aside in folder.glob(".step-*.aside"):
        final = folder / aside.name.removeprefix(".").removesuffix(".aside")
        if not final.exists():
            os.rename(aside, final)


def newest_whole(folder: Path, log: Path | None = None) -> int | None:
    """The step of the newest checkpoint whose files are as its manifest says; the others are named in warnings.

    With `log`, metrics.jsonl, one that saw more of it than there is now gives way to one that did not, if there is any.
    """
    saw_more = None
    for step in steps(folder):
        path = folder / name_of(step)
        damage = find_damage(path)
        if damage is None:
            missing = missing_bytes(path, log) if log is not None else 0
            if not missing:
                return step
            saw_more = step if saw_more is None else saw_more
            damage = f"{missing} bytes of metrics.jsonl that it saw are gone"
        warnings.warn(f"checkpoint {name_of(step)} is damaged ({damage}); trying the one before it", stacklevel=2)
    return saw_more


def missing_bytes(path: Path, log: Path) -> int:
    """How much of what a checkpoint saw of metrics.jsonl is not there any more."""
    return max(0, read_state(path)["metrics_bytes"] - (log.stat().st_size if log.exists() else 0))


def find_damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None where nothing is."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        for name, expected in manifest.items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} of {expected['bytes']} bytes"
            if _digest(path / name) != expected["sha256"]:
                return f"{name} has another checksum than when it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"{Path(error.filename or 'a file of it').name}: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return "manifest.json cannot be read"
    return None


def read_state(path: Path) -> dict[str, Any]:
    return json.loads((path / "state.json").read_text())


def read_tensors(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one file, on the CPU; ValueError where it is missing or no safetensors file."""
    file = path / f"{name}.safetensors"
    try:
        return load_file(file)
    except FileNotFoundError:
        raise ValueError(f"checkpoint {str(path)!r} has no {file.name}; it holds {_contents(path)}") from None
    except SafetensorError as error:
        raise ValueError(f"{str(file)!r} cannot be read: {error}") from None


def _contents(path: Path) -> str:
    return ", ".join(sorted(p.stem for p in path.glob("*.safetensors"))) or "nothing"


def _clean(folder: Path) -> None:
    """Drop what a killed process left behind."""
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def _remove(path: Path) -> None:
    """Rename first: a folder that is half deleted must not look like a damaged checkpoint."""
    doomed = path.with_name(f".{path.name}.old")
    os.rename(path, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _nothing_left_behind(temporary: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        number = re.search(r"os error (\d+)", str(error)) if isinstance(error, SafetensorError) else None
        if number is not None:  # written by Rust, which tells the system's error in words only
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from None
        raise


def told(error: OSError, folder: Path, step: int) -> OSError:
    """The same error; where the disk is full, it says what is safe and what to do."""
    if error.errno not in _FULL:
        return error
    last = next((found for found in steps(folder) if find_damage(folder / name_of(found)) is None), None)
    safe = "there is no checkpoint yet" if last is None else f"the last good checkpoint, step {last}, is whole"
    message = f"no space left at step {step}; {safe}; the same command continues once there is space"
    return OSError(error.errno, message, str(folder))
