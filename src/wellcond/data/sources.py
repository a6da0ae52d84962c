"""A name or a path → a source of pictures. Floor 6; imports no torch.

    procedural           generated, deterministic, offline
    x.parquet, a folder  the hub's schema: image{bytes,path}, label, …; a folder of shards counts as one set
    a folder             photographs, also in folders inside; of VOC, COCO or ADE20K the validation pictures, for their
                         masks are pictures, too

>>> source = open_source("procedural", length=20, size=64)
>>> len(source), source.labels()[11]
(20, np.int64(1))
"""

from pathlib import Path

from .folders import FolderSource
from .generated import GeneratedSource
from .layouts import open_layout
from .records import Source

PROCEDURAL = "procedural"
KINDS = f"{PROCEDURAL}, a parquet file, a folder of them, or a folder of images"


def open_source(source: str | Path, *, length: int = 10_000, size: int = 224, seed: int = 0) -> Source:
    """The source that `source` names; ValueError if there is none. `length`, `size`, `seed` are for procedural."""
    if source == PROCEDURAL:
        return GeneratedSource(length, size=size, seed=seed)
    path = Path(source)
    if not path.exists():
        raise ValueError(f"there is no data at {str(source)!r}; give {KINDS}")
    if path.is_dir():
        shards = find_shards(path) or find_shards(path / "data")  # the hub's own layout
    elif path.is_file() and path.suffix == ".parquet":
        shards = [path]
    else:
        raise ValueError(f"{str(source)!r} is neither a folder nor a .parquet file; give {KINDS}")
    if shards:
        from .parquet import ParquetSource  # pyarrow takes a while to import

        return ParquetSource(shards, f"parquet:{path.resolve().name}")
    if (laid_out := open_layout(path, "val")) is not None:
        return laid_out
    try:
        return FolderSource(path)
    except ValueError as error:
        if (deeper := next(path.glob("**/*.parquet"), None)) is None:
            raise
        raise ValueError(f"{error}; there are parquet files in {str(deeper.parent)!r}: name their own folder") from None


def find_shards(folder: Path, pattern: str = "*.parquet") -> list[Path]:
    """The files that match, sorted; hidden ones, such as macOS leaves beside others (._x.parquet), are left out."""
    return sorted(path for path in folder.glob(pattern) if not path.name.startswith("."))
