"""The decoded cache: whole or not there, whatever happens while it is built or lies on the disk."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wellcond.data import cache as caching
from wellcond.data import disk
from wellcond.data.arrays import ArraySource
from wellcond.data.cache import open_cache
from wellcond.data.filling import fill, replacements, squared, stored_side
from wellcond.data.folders import FolderSource
from wellcond.data.generated import GeneratedSource
from wellcond.data.progress import bar
from wellcond.data.records import Record


class Flawed:
    """`count` pictures of one grey each, of which some cannot be read."""

    classes = ("even", "odd")

    def __init__(self, count: int = 2000, damaged: tuple[int, ...] = (), side: int = 4) -> None:
        self.title, self.count, self.damaged, self.side = "flawed", count, damaged, side
        self.num_read = 0

    def __len__(self) -> int:
        return self.count

    def labels(self):
        return np.arange(self.count) % 2

    def records(self, indices, extras=()):
        for i in indices:
            yield Record(index=i, name=f"picture {i}", label=i % 2, read=partial(self.read, i))

    def read(self, i: int):
        self.num_read += 1
        if i in self.damaged:
            raise ValueError(f"'picture {i}': damaged")
        return np.full((self.side, self.side, 3), i % 251, np.uint8)


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if not p.name.endswith(".lock")]


def test_holds_the_pictures_and_labels(tmp_path):
    source = GeneratedSource(12, size=24, seed=3)
    cache = open_cache(source, 24, tmp_path, progress=bar)
    want = np.stack([record.read() for record in source.records(range(12))])
    assert np.array_equal(cache.images, want.transpose(0, 3, 1, 2))
    assert np.array_equal(cache.labels, source.labels())
    assert len(cache) == 12 and cache.meta.num_classes == 10 and cache.meta.side == 24 and not cache.meta.damaged
    assert leftovers(tmp_path) == [cache.folder.name]


def test_is_decoded_once(tmp_path):
    source = Flawed(50)
    first = open_cache(source, 4, tmp_path)
    before = source.num_read
    again = open_cache(source, 4, tmp_path)
    assert source.num_read - before <= 32  # the look at sizes
    assert np.array_equal(first.images, again.images)


def test_writing_into_the_arrays_does_not_reach_the_disk(tmp_path):
    cache = open_cache(Flawed(50), 4, tmp_path)
    cache.images[:] = 0
    assert open_cache(Flawed(50), 4, tmp_path).images[7, 0, 0, 0] == 7


def test_another_source_or_size_is_another_cache(tmp_path):
    folders = {
        open_cache(source, size, tmp_path).folder
        for source, size in (
            (GeneratedSource(8, size=16, seed=0), 16),
            (GeneratedSource(8, size=16, seed=1), 16),
            (GeneratedSource(9, size=16, seed=0), 16),
            (GeneratedSource(8, size=24, seed=0), 16),
            (ArraySource("a", np.zeros((8, 16, 16), np.uint8), np.zeros(8), ("x",)), 16),
            (ArraySource("a", np.ones((8, 16, 16), np.uint8), np.zeros(8), ("x",)), 16),
        )
    }
    assert len(folders) == 6


def test_a_changed_file_is_seen(tmp_path):
    photos = tmp_path / "photos" / "cat"
    photos.mkdir(parents=True)
    for i in range(3):
        Image.fromarray(np.full((8, 8, 3), 10 * i, np.uint8)).save(photos / f"{i}.png")
    assert open_cache(FolderSource(tmp_path / "photos"), 8, tmp_path / "c").images[1, 0, 0, 0] == 10
    Image.fromarray(np.full((8, 8, 3), 99, np.uint8)).save(photos / "1.png")
    assert open_cache(FolderSource(tmp_path / "photos"), 8, tmp_path / "c").images[1, 0, 0, 0] == 99


def test_folders_that_may_not_be_read_are_told_at_every_start(tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "cat" / "a.png")
    source, lines = FolderSource(tmp_path / "photos"), []
    source.unreadable += ["'photos/dog': Permission denied", "'photos/cat/more': Permission denied"]
    for _ in range(2):
        open_cache(source, 8, tmp_path / "c", say=lines.append)
    told = "2 folders of folder:photos are left out, for they cannot be read; first 'photos/dog': Permission denied"
    assert lines == [told, told]


@pytest.mark.parametrize(
    ("sizes", "image_size", "want"),
    [
        ([(32, 32)] * 3, 32, 32),  # small sets stay as they are
        ([(32, 32)] * 3, 224, 32),
        ([(64, 64)] * 3, 32, 37),
        ([(32, 32), (32, 40)], 224, 256),
        ([(300, 400)] * 2, 224, 256),
        ([(40, 40)] * 2, 40, 40),
    ],
)
def test_side_that_is_kept(sizes, image_size, want):
    source: Any = Flawed(len(sizes))
    source.read = lambda i: np.zeros((*sizes[i], 3), np.uint8)
    assert stored_side(source, image_size) == want


def test_squared_keeps_the_centre():
    picture = np.zeros((20, 40, 3), np.uint8)
    picture[:, 10:30] = 200
    assert squared(picture, 20).shape == (3, 20, 20) and squared(picture, 20).min() > 190
    assert np.array_equal(squared(picture[:, :20], 20), picture[:, :20].transpose(2, 0, 1))


def test_a_damaged_picture_is_named_replaced_and_counted(tmp_path):
    lines: list[str] = []
    cache = open_cache(Flawed(2000, damaged=(5, 1999)), 4, tmp_path, say=lines.append)
    assert cache.images[5, 0, 0, 0] == 7 and cache.images[1999, 0, 0, 0] == 1
    assert cache.labels[5] == 1 and cache.labels[1999] == 1  # theirs, and of what is there now
    assert cache.meta.replaced == {"5": 7, "1999": 1}
    assert len(lines) == 1 and "2 of 2000" in lines[0] and "'picture 5': damaged" in lines[0]
    assert lines[0].endswith(f"all are named in {str(cache.folder / 'meta.json')!r}")
    lines.clear()
    open_cache(Flawed(2000, damaged=(5, 1999)), 4, tmp_path, say=lines.append)
    assert len(lines) == 1 and "2 of 2000" in lines[0]  # said again when it is opened


def test_damaged_neighbours_are_stepped_over():
    assert replacements([3, 4, 0], np.full(5, -1)) == {0: 1, 3: 1, 4: 1}


def test_where_no_picture_of_a_class_is_good_the_next_one_stands_in():
    assert replacements([1, 4], np.array([0, 1, 0, 2, 2, 2])) == {1: 2, 4: 5}


def test_too_many_damaged_pictures_stop_it_early(tmp_path):
    source = Flawed(5000, damaged=tuple(range(0, 5000, 2)))
    with pytest.raises(ValueError, match=r"of 5000 images of flawed are damaged, more than 0\.1%; first 'picture 0'"):
        open_cache(source, 4, tmp_path)
    assert source.num_read < 1000 and leftovers(tmp_path) == []


@pytest.mark.parametrize("where", ["images.npy", "labels.npy", "meta.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "gone", "header"])
def test_a_damaged_cache_is_built_again_with_a_word(tmp_path, where, how):
    source = Flawed(100)
    good = open_cache(source, 4, tmp_path)
    path = good.folder / where
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[-3 if where != "meta.json" else 0] ^= 0x55
    if how == "header":  # of an array: a bracket of its shape that opens nothing
        content[:128] = content[:128].replace(b")", b"(")
        content[:1] = b"(" if where == "meta.json" else content[:1]
    path.unlink() if how == "gone" else path.write_bytes(
        bytes(content[: len(content) // 2] if how == "cut" else content)
    )
    lines: list[str] = []
    again = open_cache(source, 4, tmp_path, say=lines.append)
    assert len(lines) == 1 and "is damaged" in lines[0] and "building it again" in lines[0]
    assert again.images[7, 0, 0, 0] == 7 and np.array_equal(again.labels, source.labels())
    assert leftovers(tmp_path) == [again.folder.name]
    assert open_cache(source, 4, tmp_path, say=lines.append) and len(lines) == 1


def test_a_large_cache_is_checked_by_a_spread_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "BLOCK", 1 << 10)
    monkeypatch.setattr(caching, "SPREAD", 4)
    source = Flawed(500)
    cache = open_cache(source, 4, tmp_path)
    assert len(cache.meta.blocks) == 25
    monkeypatch.setattr(caching, "CHECK_WHOLE", 1 << 12)
    assert [number for number, _ in caching._checked_blocks(cache.folder)] == [0, 7, 15, 23, 24]
    content = bytearray((cache.folder / "images.npy").read_bytes())
    content[-1] ^= 1
    (cache.folder / "images.npy").write_bytes(content)
    lines: list[str] = []
    open_cache(source, 4, tmp_path, say=lines.append)
    assert "block 23" in lines[0]


@pytest.mark.parametrize("step", ["reserve", "write_all"])
def test_a_full_disk_is_one_clear_line_and_leaves_nothing(tmp_path, monkeypatch, step):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, step, full)
    with pytest.raises(ValueError, match=r"is full: the cache of flawed needs 0\.00 GB; make room") as caught:
        open_cache(Flawed(100), 4, tmp_path)
    assert "\n" not in str(caught.value) and leftovers(tmp_path) == []


def test_a_real_limit_on_file_sizes_leaves_nothing(tmp_path):
    """The system itself refuses the bytes, in a process of its own."""
    code = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from pathlib import Path
from wellcond.data.cache import open_cache
from wellcond.data.generated import GeneratedSource
try:
    open_cache(GeneratedSource(40, size=32), 32, Path({str(tmp_path)!r}))
except ValueError as error:
    sys.exit(0 if "make room or choose another folder" in str(error) else 3)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert leftovers(tmp_path) == []


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be used"):
        open_cache(Flawed(10), 4, tmp_path / "file")


def test_a_finished_one_is_read_where_nobody_may_write(tmp_path, monkeypatch):
    made = open_cache(Flawed(100), 4, tmp_path)

    def refused(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("touch", "mkdir"):
        monkeypatch.setattr(Path, name, refused)
    assert open_cache(Flawed(100), 4, tmp_path).meta == made.meta
    with pytest.raises(ValueError, match="cannot be used: Read-only file system; choose another"):
        open_cache(Flawed(101), 4, tmp_path)


SLOW = """
import sys, time
from pathlib import Path
from wellcond.data.cache import open_cache
from wellcond.data.generated import GeneratedSource
class Slow(GeneratedSource):
    def _draw(self, index):
        if index == 2:  # not one of those that are looked at for their size
            time.sleep(float(sys.argv[2]))
        return super()._draw(index)
cache = open_cache(Slow(60, size=16), 16, Path(sys.argv[1]), say=lambda line: print(line, flush=True))
print("done", cache.meta.blocks, flush=True)
"""


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", SLOW, str(folder), str(seconds)], stdout=subprocess.PIPE, text=True)


def wait_for(folder: Path, pattern: str) -> Path:
    for _ in range(400):
        if found := list(folder.glob(pattern)):
            return found[0]
        time.sleep(0.02)
    raise AssertionError(f"no {pattern} in {folder}")


def test_killed_while_building_and_built_again(tmp_path):
    process = start(tmp_path, 20)
    wait_for(tmp_path, ".*.part/images.npy")
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(leftovers(tmp_path)) == 1  # the temporary folder of the dead
    source = GeneratedSource(60, size=16)
    cache = open_cache(source, 16, tmp_path)
    assert np.array_equal(cache.images[59].transpose(1, 2, 0), next(source.records([59])).read())
    assert leftovers(tmp_path) == [cache.folder.name]


def test_two_processes_build_one_cache(tmp_path):
    first = start(tmp_path, 3)
    wait_for(tmp_path, ".*.part/images.npy")
    second = start(tmp_path, 0)
    outputs = [process.communicate(timeout=60)[0] for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0]
    assert "another process builds" in outputs[1]
    assert outputs[0].splitlines()[-1] == outputs[1].splitlines()[-1]
    assert len(leftovers(tmp_path)) == 1


def test_without_locks_the_slower_one_takes_what_is_there(tmp_path, monkeypatch):
    source = Flawed(20)

    def finish_before_us(*arguments):
        monkeypatch.setattr(caching, "fill", fill)
        monkeypatch.setattr(os, "getpid", lambda: 2)
        open_cache(source, 4, tmp_path)  # another process, as it were
        return fill(*arguments)

    @contextmanager
    def no_lock(*_):
        yield False

    monkeypatch.setattr(caching, "locked", no_lock)
    monkeypatch.setattr(caching, "fill", finish_before_us)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    cache = open_cache(source, 4, tmp_path)
    assert cache.images[7, 0, 0, 0] == 7 and leftovers(tmp_path) == [cache.folder.name]


def test_meta_is_plain_json(tmp_path):
    cache = open_cache(Flawed(30), 4, tmp_path)
    meta = json.loads((cache.folder / "meta.json").read_text())
    assert meta["title"] == "flawed" and meta["count"] == 30 and meta["classes"] == ["even", "odd"]
