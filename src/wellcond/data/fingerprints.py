"""What a source holds, as a short text that changes when the source does, without reading its pictures. Floor 6.

A parquet shard is known by its length and its footer, which holds the place and the statistics of every column chunk,
and by its labels, which can be corrected without a trace in either; an image folder by the paths, lengths and times of
its files; an array by its bytes; a generated set by its recipe.
"""

import hashlib
from pathlib import Path

import numpy as np

from .arrays import ArraySource
from .folders import FolderSource
from .generated import GeneratedSource
from .records import Source

FOOTER = 1 << 18  # bytes; longer than a footer, or all of a short file
DRAWING = 1  # raised when procedural pictures change


def fingerprint(source: Source) -> str:
    """64 hexadecimal digits."""
    digest = hashlib.sha256(f"{source.title} {len(source)} {getattr(source, 'fingerprint', '')}\n".encode())
    if isinstance(source, GeneratedSource):
        digest.update(f"{DRAWING} {source.size} {source.seed}".encode())
    elif isinstance(source, ArraySource):
        for array in (source.pixels, source.labels()):
            digest.update(np.ascontiguousarray(array).data)
    elif isinstance(source, FolderSource):
        for path in source.paths:
            found = path.stat() if path.exists() else path.lstat()  # a link to a picture that is gone
            line = f"{path.relative_to(source.folder).as_posix()} {found.st_size} {found.st_mtime_ns}\n"
            digest.update(line.encode(errors="surrogateescape"))
    elif shards := getattr(source, "shards", ()):
        for shard in shards:
            digest.update(_tail(shard))
        if (labels := source.labels()) is not None:
            digest.update(labels.tobytes())
    return digest.hexdigest()


def _tail(shard: Path) -> bytes:
    with shard.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - FOOTER))
        return f"{shard.name} {length}\n".encode() + file.read()
