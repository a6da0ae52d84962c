"""Names and paths → the training or validation half."""

import gzip
import hashlib
import io
import pickle
import sys
import types
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torchvision.datasets
from PIL import Image

from wellcond.data import splits
from wellcond.data.arrays import ArraySource, read_idx
from wellcond.data.fingerprints import fingerprint


def open_split(name: str, split: Any, **options: Any) -> Any:
    return splits.open_split(name, split, **options)


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_parquet(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = {"image": [{"bytes": png(v), "path": f"{v}.png"} for v in values], "label": [v % 3 for v in values]}
    pyarrow.parquet.write_table(pyarrow.table(rows), path)


def values_of(source) -> list[int]:
    return [int(record.read()[0, 0, 0]) for record in source.records(range(len(source)))]


def test_procedural_halves_share_no_picture():
    train, val = (open_split("procedural:20", split, image_size=32) for split in ("train", "val"))
    assert len(train) == len(val) == 20
    pictures = {r.read().tobytes() for s in (train, val) for r in s.records(range(20))}
    assert len(pictures) == 40
    assert len(open_split("procedural", "train", image_size=32)) == 10_000
    with pytest.raises(ValueError, match="procedural:many"):
        open_split("procedural:many", "train", image_size=32)


@pytest.mark.parametrize("inner", ["", "data"])
@pytest.mark.parametrize("word", ["val", "validation", "test"])
def test_shards_of_each_half(tmp_path, inner, word):
    write_parquet(tmp_path / inner / "train-00000-of-00002.parquet", [1, 2])
    write_parquet(tmp_path / inner / "train-00001-of-00002.parquet", [3])
    write_parquet(tmp_path / inner / f"{word}-00000-of-00001.parquet", [9])
    train, val = (open_split(str(tmp_path), split, image_size=8) for split in ("train", "val"))
    assert values_of(train) == [1, 2, 3] and train.labels().tolist() == [1, 2, 0]
    assert values_of(val) == [9]
    assert fingerprint(train) != fingerprint(val)
    assert values_of(open_split(str(tmp_path / inner / "train-*.parquet"), "val", image_size=8)) == [1, 2, 3]


def test_shards_that_are_not_all_there_are_no_half(tmp_path):
    """A download that was stopped; a pattern says that these few are meant."""
    for number in (0, 2):
        write_parquet(tmp_path / f"train-0000{number}-of-00003.parquet", [number])
    with pytest.raises(ValueError, match=r"2 of the 3 shards of train and lacks number 1; .*train-\*\.parquet"):
        open_split(str(tmp_path), "train", image_size=8)
    assert values_of(open_split(str(tmp_path / "train-*.parquet"), "train", image_size=8)) == [0, 2]
    write_parquet(tmp_path / "train-00001-of-00003.parquet", [1])
    assert values_of(open_split(str(tmp_path), "train", image_size=8)) == [0, 1, 2]


def test_image_folders_of_each_half(tmp_path):
    for half, value in (("train", 5), ("val", 6)):
        for kind in ("cat", "dog"):
            (tmp_path / half / kind).mkdir(parents=True)
            (tmp_path / half / kind / "a.png").write_bytes(png(value))
    train, val = (open_split(str(tmp_path), split, image_size=8) for split in ("train", "val"))
    assert values_of(train) == [5, 5] and values_of(val) == [6, 6]
    assert train.labels().tolist() == [0, 1] and train.classes == ("cat", "dog")


@pytest.mark.parametrize("end", [".parquet", "_0.parquet", "0.parquet"])
def test_shards_that_are_not_named_as_on_the_hub(tmp_path, end):
    for word, value in (("train", 1), ("validation", 2), ("trained-on", 3)):
        write_parquet(tmp_path / f"{word}{end}", [value])
    assert [values_of(open_split(str(tmp_path), split, image_size=8)) for split in ("train", "val")] == [[1], [2]]


@pytest.mark.parametrize("name", ["train-00000-of-00001", "train", "train_0"])
def test_a_missing_half_is_not_replaced_by_the_other(name, tmp_path):
    write_parquet(tmp_path / f"{name}.parquet", [1])
    with pytest.raises(ValueError, match="half named train, but none named val"):
        open_split(str(tmp_path), "val", image_size=8)


@pytest.mark.parametrize("name", ["nowhere", "nowhere/*.parquet", "cifar10:/nowhere", "fashion-mnist:/nowhere"])
def test_what_is_not_there_is_quoted(name):
    with pytest.raises(ValueError, match="nowhere"):
        open_split(name, "train", image_size=32)


def test_fashion_mnist_from_idx_files(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    labels = np.array([0, 9, 3, 3, 1], np.uint8)
    for array, name in ((pixels, "images-idx3"), (labels, "labels-idx1")):
        head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        (tmp_path / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
        (tmp_path / f"t10k-{name}-ubyte").write_bytes(head + array.tobytes())
    for split in ("train", "val"):
        source = open_split(f"fashion-mnist:{tmp_path}", split, image_size=28)
        assert len(source) == 5 and source.labels().tolist() == labels.tolist() and len(source.classes) == 10
        assert np.array_equal(next(source.records([2])).read(), np.repeat(pixels[2][..., None], 3, 2))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03short")
    with pytest.raises(ValueError, match="t10k-images-idx3-ubyte"):
        read_idx(tmp_path / "t10k-images-idx3-ubyte")


def test_cifar_from_its_files(tmp_path, monkeypatch):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    data = np.random.default_rng(0).integers(0, 256, (4, 3072), np.uint8)

    def write(name, content):
        (folder / name).write_bytes(pickle.dumps(content))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    cifar = torchvision.datasets.CIFAR10
    monkeypatch.setattr(cifar, "train_list", [write("data_batch_1", {"data": data, "labels": [3, 1, 0, 2]})])
    monkeypatch.setattr(cifar, "test_list", [write("test_batch", {"data": data[:2], "labels": [5, 6]})])
    name, md5 = write("batches.meta", {"label_names": list("abcdefghij")})
    monkeypatch.setattr(cifar, "meta", {"filename": name, "key": "label_names", "md5": md5})
    source = open_split(f"cifar10:{tmp_path}", "train", image_size=32)
    assert len(source) == 4 and source.labels().tolist() == [3, 1, 0, 2] and source.classes[2] == "c"
    assert np.array_equal(next(source.records([1])).read(), data[1].reshape(3, 32, 32).transpose(1, 2, 0))
    monkeypatch.setenv("WELLCOND_DATA", str(tmp_path))
    assert len(open_split("cifar10", "val", image_size=32)) == 2
    (folder / "test_batch").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="could not be read"):
        open_split("cifar10", "val", image_size=32)


def test_arrays_and_labels_must_agree():
    with pytest.raises(ValueError, match="2 pictures but 3 labels"):
        ArraySource("a", np.zeros((2, 4, 4), np.uint8), np.zeros(3), ())


def test_the_hub_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"hf:some/set needs the library datasets; .*pip install .*'\.\[hub\]'"):
        open_split("hf:some/set", "train", image_size=32)


class Rows:
    """What the library gives back, as far as it is used."""

    column_names = ("image", "label")
    features = {"image": None, "label": types.SimpleNamespace(names=["no", "yes"])}  # noqa: RUF012
    _fingerprint = "abc"

    def __len__(self):
        return 2

    def __getitem__(self, key):
        return [1, 0] if key == "label" else {"image": {"bytes": png(40 + key), "path": None}, "label": 1 - key}

    def cast_column(self, name, kind):
        assert name == "image" and kind == "undecoded"
        return self


def test_a_set_of_the_hub(monkeypatch):
    def load(name, split):
        if name != "some/set" or split not in ("train", "test"):
            raise ValueError(f"Unknown split {split}")
        return Rows()

    library = types.SimpleNamespace(load_dataset=load, Image=lambda decode: "decoded" if decode else "undecoded")
    monkeypatch.setitem(sys.modules, "datasets", library)
    source = open_split("hf:some/set", "val", image_size=8)
    assert values_of(source) == [40, 41] and source.labels().tolist() == [1, 0] and source.classes == ("no", "yes")
    with pytest.raises(ValueError, match="hf:other has no split train"):
        open_split("hf:other", "train", image_size=8)
    hidden = {"label": [None, 1], 0: {"image": {"bytes": png(7), "path": None}, "label": None}}
    monkeypatch.setattr(Rows, "__getitem__", lambda self, key: hidden[key])
    assert source.labels().tolist() == [-1, 1] and next(source.records([0])).label is None


@pytest.mark.parametrize("words", [("Train", "Val"), ("TRAIN", "TEST"), ("Training", "validation")])
def test_halves_may_have_capitals(words, tmp_path):
    """They were two classes, and the message advised to train a model to tell them apart."""
    for half, value in zip(words, (5, 6), strict=True):
        for kind in ("cat", "dog"):
            (tmp_path / half / kind).mkdir(parents=True)
            (tmp_path / half / kind / "a.png").write_bytes(png(value))
    assert [values_of(open_split(str(tmp_path), split, image_size=8)) for split in ("train", "val")] == [[5, 5], [6, 6]]


def test_a_class_of_trains_is_no_half(tmp_path):
    for kind in ("Bus", "Train"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "a.png").write_bytes(png(1))
    assert open_split(str(tmp_path), "val", image_size=8).classes == ("Bus", "Train")


def test_tiny_imagenet_as_it_unpacks(tmp_path):
    """Its validation pictures lie in one folder, which counted as their only class."""
    kinds = ("n2", "n1", "n2")
    lines = [f"val_{i}.JPEG\t{kind}\t0\t0\t3\t3\n" for i, kind in enumerate(kinds)]
    names = [f"train/{kind}/images/{kind}_0.JPEG" for kind in kinds]
    for path in [*names, *(f"val/images/val_{i}.JPEG" for i in range(3))]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(png(1))
    listing = tmp_path / "val" / "val_annotations.txt"
    listing.write_text("".join(lines))
    train, val = (open_split(str(tmp_path), split, image_size=8) for split in ("train", "val"))
    assert train.classes == val.classes == ("n1", "n2")
    assert train.labels().tolist() == [0, 1] and val.labels().tolist() == [1, 0, 1]
    known = fingerprint(val)
    listing.write_text("".join(lines).replace("val_1.JPEG\tn1", "val_1.JPEG\tn2"))
    assert fingerprint(open_split(str(tmp_path), "val", image_size=8)) != known
    listing.write_text(lines[0])  # of another set: the folders are the classes
    assert open_split(str(tmp_path), "val", image_size=8).classes == ("images",)


def test_hidden_shards_are_left_out_and_deeper_ones_are_told(tmp_path):
    """macOS leaves a file ._x beside x on foreign disks; sets of the hub may lie in a folder of their configuration."""
    write_parquet(tmp_path / "set" / "a.parquet", [1, 2])
    (tmp_path / "set" / "._a.parquet").write_bytes(b"no parquet")
    for name in ("set", "set/*.parquet"):
        assert values_of(open_split(str(tmp_path / name), "train", image_size=8)) == [1, 2]
    with pytest.raises(ValueError, match=r"no image in .*; there are parquet files in '.*set': name their own folder"):
        open_split(str(tmp_path), "train", image_size=8)


def test_a_folder_called_as_a_set_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WELLCOND_DATA", str(tmp_path / "sets"))
    with pytest.raises(ValueError, match=r"cifar10:FOLDER$"):
        open_split("cifar10", "val", image_size=32)
    (tmp_path / "cifar10").mkdir()
    with pytest.raises(ValueError, match=r"the folder cifar10 here is \./cifar10$"):
        open_split("cifar10", "val", image_size=32)
