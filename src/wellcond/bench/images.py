"""Real photographs for benchmarks, as uint8 arrays (B, H, W, 3); procedural ones only if no data is given.

Speed and error of graying depend on the picture: a photograph's patch matrix has κ around 2e3, a random one
about 3, and rounding to uint8 after the resize is part of what makes a photograph's smallest singular values.
So pictures are resized by PIL (bicubic) to uint8 first and normalised on the device afterwards.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..data.files import find_images, read_image
from ..data.procedural import images as procedural_images

if TYPE_CHECKING:
    import torch

NUM_PROCEDURAL = 64  # they cost about 20 ms each


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Pixels and where they came from: ``source`` is "procedural" or "parquet:NAME" or "folder:NAME"."""

    pixels: np.ndarray
    source: str
    num_distinct: int


def load_pictures(data: Path | None, *, count: int, size: int, seed: int = 0) -> Pictures:
    """``count`` square pictures of ``size`` pixels from a parquet file, a folder of them, or an image folder.

    The shorter side is resized and the middle cut out. A random choice that depends on ``seed`` only; a
    set with fewer pictures is repeated, and ``num_distinct`` says so.
    """
    if data is None:
        decoded = procedural_images(min(count, NUM_PROCEDURAL), size=size, seed=seed)
        return _repeated(decoded, count, "procedural")
    if not data.exists():
        raise ValueError(
            f"There is no data at {str(data)!r}: give a parquet file, a folder of them or an image folder."
        )
    shards = [data] if data.suffix == ".parquet" else sorted(data.glob("*.parquet"))
    kind = "parquet" if shards else "folder"
    if not shards and not data.is_dir():
        raise ValueError(f"{str(data)!r} is no parquet file: give one, a folder of them or an image folder.")
    encoded = _parquet_rows(shards, count) if shards else find_images(data)
    if not encoded:  # an image folder without pictures was refused by find_images
        raise ValueError(f"{str(data)!r} holds no row with a picture: give other parquet files.")
    rng = np.random.default_rng(seed)
    chosen = [encoded[i] for i in rng.permutation(len(encoded))[:count]]
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        decoded = np.stack(list(pool.map(lambda item: _decode(item, size), chosen)))
    return _repeated(decoded, count, f"{kind}:{data.resolve().name}")


def normalise(pixels: np.ndarray, device: "str | torch.device") -> "torch.Tensor":
    """uint8 (B, H, W, 3) → float32 (B, 3, H, W) on ``device``, by ImageNet's mean and deviation."""
    import torch

    from ..pictures import MEAN, STD

    images = torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float().div_(255)
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return images.sub_(mean).div_(std).contiguous()


def _parquet_rows(shards: list[Path], count: int) -> list[bytes]:
    """Encoded pictures of the first shards that together hold ``count``, in the hub's schema."""
    rows: list[bytes] = []
    for shard in shards:
        if len(rows) >= count:
            break
        rows.extend(_shard_rows(shard))
    return rows


def _shard_rows(shard: Path) -> Iterator[bytes]:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(shard)
    if "image" not in file.schema_arrow.names:
        raise ValueError(
            f"{shard.name!r} has the columns {file.schema_arrow.names}, but no 'image' with bytes and path."
        )
    for batch in file.iter_batches(columns=["image"]):
        yield from (row["bytes"] for row in batch.column(0).to_pylist() if row and row["bytes"])


def _decode(encoded: bytes | Path, size: int) -> np.ndarray:
    if isinstance(encoded, Path):
        return read_image(encoded, resize=size)
    return read_image(Path(f"parquet row of {len(encoded)} bytes"), content=encoded, resize=size)


def _repeated(decoded: np.ndarray, count: int, source: str) -> Pictures:
    pixels = decoded if len(decoded) == count else decoded[np.arange(count) % len(decoded)]
    return Pictures(pixels=pixels, source=source, num_distinct=len(decoded))
