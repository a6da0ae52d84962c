"""A source, decoded once into a folder of arrays that is mapped into memory from then on. Floor 6; imports no torch.

    images.npy   (N, 3, S, S) uint8      labels.npy   (N,) int64, −1 where there is none
    meta.json    what it was made of, damaged pictures and what replaced them, a checksum of every block

It is written under a temporary name, fsynced and renamed, so a folder with the final name is complete. A lock is held
while building: a second process waits and then finds the folder finished; a killed one leaves a temporary folder,
which the next one removes. A damaged cache (a checksum differs) is built again. Up to CHECK_WHOLE bytes every block is
checked when the cache is opened, beyond that a spread of blocks.

A damaged picture is replaced by the next good one of its class; above 0.1 % building stops.
"""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..atomic import sync_file, sync_folder
from ..locks import locked
from . import disk, ours
from .filling import fill, replacements, stored_side
from .fingerprints import fingerprint
from .records import Source

VERSION = 1
CHECK_WHOLE = 8 << 30
SPREAD = 64  # blocks checked in a larger cache

Say = Callable[[str], None]
Progress = Callable[[str, int], contextlib.AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True, kw_only=True)
class Meta:
    """What meta.json says."""

    version: int
    title: str
    fingerprint: str
    count: int
    side: int
    num_classes: int  # 0: no labels
    classes: list[str]
    damaged: dict[str, str]  # index → what is wrong with it
    replaced: dict[str, int]  # index → index of the picture in its place
    blocks: list[str]  # of images.npy, then one of labels.npy


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The arrays of a finished cache. Writing into them does not reach the disk."""

    folder: Path
    meta: Meta
    images: NDArray[np.uint8]  # (N, 3, S, S)
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return self.meta.count


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wellcond" / "images"


def open_cache(
    source: Source,
    image_size: int,
    folder: Path | None = None,
    *,
    say: Say = lambda line: None,
    progress: Progress = lambda title, count: contextlib.nullcontext(lambda done: None),
) -> Cache:
    """The cache of `source` for pictures of `image_size`, built now if it is missing or damaged.

    `say` gets one line for each thing that a person should know; `progress(title, count)` is a context that counts.
    """
    parent = folder or default_folder()
    side, digits = stored_side(source, image_size), fingerprint(source)
    final = parent / f"{re.sub(r'[^A-Za-z0-9.]+', '-', source.title)}-{side}px-{digits[:12]}"
    try:
        cache = _opened(final, digits, lambda line: None)  # a finished one may lie where nobody may write
        if cache is None:
            _check_usable(parent, final)
            cache = _locked_build(source, side, digits, final, say, progress)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise ValueError(
            f"the disk of {str(parent)!r} is full: the cache of {source.title} needs "
            f"{len(source) * 3 * side * side / 1e9:.2f} GB; make room or choose another folder; nothing was left behind"
        ) from None
    if line := ours.told(source):
        say(line)
    if left_out := getattr(source, "unreadable", ()):
        folders = "1 folder" if len(left_out) == 1 else f"{len(left_out)} folders"
        are, they = ("is", "it") if len(left_out) == 1 else ("are", "they")
        say(f"{folders} of {source.title} {are} left out, for {they} cannot be read; first {left_out[0]}")
    if cache.meta.damaged:
        first = min(cache.meta.damaged, key=int)
        all_of_them = f"; all are named in {str(cache.folder / 'meta.json')!r}" if len(cache.meta.damaged) > 1 else ""
        say(
            f"{len(cache.meta.damaged)} of {len(cache)} images of {source.title} are damaged and replaced by the next "
            f"good one of their class; first {cache.meta.damaged[first]}{all_of_them}"
        )
    return cache


def outline(source: Source) -> Cache:
    """The cache of `source` without its pictures: what is known of its labels before anything is decoded."""
    labels, classes = _labels_of(source), _classes_of(source)
    meta = Meta(
        version=VERSION,
        title=source.title,
        fingerprint="",
        count=len(source),
        side=0,
        num_classes=_count(classes, labels),
        classes=classes,
        damaged={},
        replaced={},
        blocks=[],
    )
    return Cache(folder=Path(), meta=meta, images=np.empty((0, 3, 0, 0), np.uint8), labels=labels)


def _labels_of(source: Source) -> NDArray[np.int64]:
    labels = source.labels()
    return np.full(len(source), -1, np.int64) if labels is None else labels.astype(np.int64)


def _classes_of(source: Source) -> list[str]:
    return [str(name) for name in getattr(source, "classes", ())]


def _count(classes: list[str], labels: NDArray[np.int64]) -> int:
    return max(len(classes), int(labels.max()) + 1)


def _check_usable(parent: Path, final: Path) -> None:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        (parent / f".{final.name}.lock").touch()
    except OSError as error:
        raise ValueError(f"the cache folder {str(parent)!r} cannot be used: {error.strerror}; choose another") from None


def _opened(folder: Path, digits: str, say: Say) -> Cache | None:
    """The finished cache, or None if it is missing or damaged, which `say` is told."""
    if not folder.is_dir():
        return None
    try:
        meta = Meta(**json.loads((folder / "meta.json").read_text()))
        # before numpy reads them: it parses a header, and a damaged one fails in many ways
        wrong = [i for i, block in _checked_blocks(folder) if i >= len(meta.blocks) or meta.blocks[i] != block]
        if wrong:
            raise ValueError(f"the checksum of block {wrong[0]} differs")
        images = np.load(folder / "images.npy", mmap_mode="c")  # c: torch wants writable memory; the file stays
        labels = np.load(folder / "labels.npy")
        shape = (meta.count, 3, meta.side, meta.side)
        if (meta.version, meta.fingerprint, images.shape, labels.shape) != (VERSION, digits, shape, (meta.count,)):
            raise ValueError("it is of another version or size")
    except (OSError, ValueError, TypeError, EOFError) as error:
        say(f"the cache {folder.name} is damaged ({error}); building it again")
        return None
    return Cache(folder=folder, meta=meta, images=images, labels=labels)


def _locked_build(source: Source, side: int, digits: str, final: Path, say: Say, progress: Progress) -> Cache:
    """Built by one process; whoever waited finds it finished."""
    lock = final.parent / f".{final.name}.lock"
    with locked(lock, lambda: say(f"another process builds {final.name}; waiting for it")) as alone:
        if (cache := _opened(final, digits, say)) is not None:
            return cache
        if alone:  # whatever temporary folder there is belongs to a process that died
            for left in final.parent.glob(f".{final.name}.*.part"):
                shutil.rmtree(left, ignore_errors=True)
        return _build(source, side, digits, final, say, progress)


def _build(source: Source, side: int, digits: str, final: Path, say: Say, progress: Progress) -> Cache:
    part = final.parent / f".{final.name}.{os.getpid()}.part"
    part.mkdir()
    try:
        _write(source, side, digits, part, progress)
        if final.exists():  # damaged: out of the way, under a name that the next one removes
            os.rename(final, part.with_suffix(".old.part"))
        try:
            os.rename(part, final)
        except OSError:
            if not final.is_dir():  # else a process that could not see the lock was first, and made the same
                raise
        sync_folder(final.parent)
    finally:
        for left in (part, part.with_suffix(".old.part")):
            shutil.rmtree(left, ignore_errors=True)
    cache = _opened(final, digits, say)
    if cache is None:
        raise ValueError(f"the cache {str(final)!r} is damaged right after it was written; check the disk")
    return cache


def _write(source: Source, side: int, digits: str, part: Path, progress: Progress) -> None:
    count, nbytes = len(source), 3 * side * side
    labels = _labels_of(source)
    with (part / "images.npy").open("wb+") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, 3, side, side)}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        start, handle = file.tell(), file.fileno()
        disk.reserve(handle, start, count * nbytes)

        def write(index: int, pixels: NDArray[np.uint8]) -> None:
            disk.write_all(handle, pixels.tobytes(), start + index * nbytes)

        with progress(f"decoding {source.title}", count) as advance:
            damaged = fill(source, side, write, advance)
        replaced = replacements(damaged, labels)
        for index, good in replaced.items():
            disk.write_all(handle, os.pread(handle, nbytes, start + good * nbytes), start + index * nbytes)
    np.save(part / "labels.npy", labels)
    classes = _classes_of(source)
    meta = Meta(
        version=VERSION,
        title=source.title,
        fingerprint=digits,
        count=count,
        side=side,
        num_classes=_count(classes, labels),
        classes=classes,
        damaged={str(i): damaged[i] for i in sorted(damaged)},
        replaced={str(i): good for i, good in replaced.items()},
        blocks=[digest for _, digest in _checked_blocks(part, every=True)],
    )
    (part / "meta.json").write_text(json.dumps(dataclasses.asdict(meta)))
    for path in part.iterdir():
        sync_file(path)
    sync_folder(part)


def _checked_blocks(folder: Path, every: bool = False) -> list[tuple[int, str]]:
    """(number, checksum) of the blocks of images.npy, or of a spread of them, and of labels.npy after the last."""
    images, labels = folder / "images.npy", folder / "labels.npy"
    count = disk.num_blocks(images)
    numbers = list(range(count))
    if not every and count * disk.BLOCK > CHECK_WHOLE:
        numbers = np.unique(np.linspace(0, count - 1, SPREAD).astype(int)).tolist()
    found = list(zip(numbers, disk.checksums(images, numbers), strict=True))
    return [*found, (count, "".join(disk.checksums(labels, list(range(disk.num_blocks(labels))))))]
