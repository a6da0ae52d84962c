"""Sources: what is read, in which order, what happens to damaged pictures, and what a model is fed."""

import io
import json
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import timm
import torch
import torchvision.datasets
from PIL import Image
from pyarrow import parquet
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform

from wellcond.data.batches import Preprocessing, image_batches
from wellcond.data.filling import TooManyDamaged, fill
from wellcond.data.fingerprints import fingerprint
from wellcond.data.procedural import procedural
from wellcond.data.reading import FIRST, read_pictures, spread
from wellcond.data.sources import open_source


def encoded(value: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> bytes:
    """A PNG of one colour; its grey value is its name in these tests."""
    buffer = io.BytesIO()
    Image.new(mode, size, value if mode == "L" else (value,) * 3).save(buffer, "PNG")
    return buffer.getvalue()


def write_shards(folder: Path, values: list[int | None], *, shards: int = 2, group: int = 5, **columns: list) -> Path:
    """Pictures of these grey values in the hub's schema; None is a damaged one."""
    folder.mkdir(exist_ok=True)
    pictures = [{"bytes": b"damaged" if v is None else encoded(v), "path": f"{i}.png"} for i, v in enumerate(values)]
    table = pyarrow.table({"image": pictures, "label": [i % 3 for i in range(len(values))], **columns})
    for number, part in enumerate(np.array_split(np.arange(len(values)), shards)):
        parquet.write_table(table.take(part), folder / f"train-{number:05d}.parquet", row_group_size=group)
    return folder


def write_folder(folder: Path, values: list[int | None]) -> Path:
    folder.mkdir()
    for index, value in enumerate(values):
        (folder / f"{index:03d}.png").write_bytes(b"damaged" if value is None else encoded(value))
    return folder


WRITERS = {"parquet": write_shards, "folder": write_folder}
by_kind = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())


def read(source, count: int, **options) -> list[int]:
    """Grey values of the pictures read."""
    return [int(pixels[0, 0, 0]) for _, pixels in read_pictures(source, count, prepare=lambda p: p, **options)]


@by_kind
def test_every_record_is_the_picture_of_its_number(write, tmp_path):
    values = [3 * i for i in range(40)]
    source = open_source(str(write(tmp_path / "set", values)))
    assert len(source) == 40
    assert source.title.endswith(":set")
    indices = [0, 4, 5, 19, 20, 21, 39]  # on both sides of the borders of row groups and shards
    records = list(source.records(indices))
    assert [record.index for record in records] == indices
    assert [int(record.read()[0, 0, 0]) for record in records] == [values[i] for i in indices]
    assert sorted(read(source, 40)) == values


def test_parquet_gives_labels_masks_and_names_without_decoding(tmp_path):
    masks = [{"bytes": f"mask {i}".encode(), "path": None} for i in range(12)]
    boxes = [[[0, 0, i, i]] for i in range(12)]
    damaged: list[int | None] = [None] * 12
    source = open_source(write_shards(tmp_path / "set", damaged, mask=masks, boxes=boxes))
    labels = source.labels()
    assert labels is not None
    assert labels.tolist() == [i % 3 for i in range(12)]
    record = next(source.records([7], extras=("mask", "boxes")))
    assert record.extras == {"mask": masks[7], "boxes": boxes[7]}
    assert (record.label, record.name) == (1, "train-00001.parquet row 1 (7.png)")
    with pytest.raises(ValueError, match=r"'depth'.*mask, boxes"):
        next(source.records([0], extras=("depth",)))


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint64", "float64"])
def test_labels_are_whole_numbers_of_any_kind(kind, tmp_path):
    column = pyarrow.array([3, None, 0], getattr(pyarrow, kind)())
    pictures = [{"bytes": encoded(i), "path": None} for i in range(3)]
    parquet.write_table(pyarrow.table({"image": pictures, "label": column}), tmp_path / "train.parquet")
    assert open_source(tmp_path).labels().tolist() == [3, -1, 0]  # pyright: ignore[reportOptionalMemberAccess]


def test_labels_that_are_no_numbers_are_quoted(tmp_path):
    pictures = [{"bytes": encoded(i), "path": None} for i in range(2)]
    for number, labels in enumerate([["cat", "dog"], [0.0, float("inf")], [0.5, 1.0]]):
        shard = tmp_path / f"{number}.parquet"
        parquet.write_table(pyarrow.table({"image": pictures, "label": labels}), shard)
        with pytest.raises(ValueError, match=r"'label' of .* give each class a whole number"):
            open_source(shard).labels()


def test_labels_corrected_in_place_are_another_source(tmp_path):
    """Length, footer and the statistics in it stay: in all row groups but the last nothing else tells."""
    shard, labels = tmp_path / "train.parquet", [0, 1, 2] * 4
    noise = np.random.default_rng(0).bytes(1 << 19)  # the labels lie deeper than the end that is read
    found = set()
    for kept in (labels, [0, 1, 2, 1, 0, *labels[5:]]):
        parquet.write_table(pyarrow.table({"image": [noise] * 12, "label": kept}), shard, row_group_size=6)
        found.add((shard.stat().st_size, fingerprint(open_source(shard))))
    assert len({size for size, _ in found}) == 1 and len(found) == 2


def test_a_shard_without_rows_counts_for_nothing(tmp_path):
    picture = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    for number, values in enumerate([[], [1, 2], [], [3]]):  # without rows a column of labels has the type null
        pictures = pyarrow.array([{"bytes": encoded(v), "path": None} for v in values], picture)
        table = pyarrow.table({"image": pictures, "label": values})
        parquet.write_table(table, tmp_path / f"train-{number:05}.parquet")
    source: Any = open_source(tmp_path)
    assert source.labels().tolist() == [1, 2, 3] == [int(r.read()[0, 0, 0]) for r in source.records(range(3))]


def test_parquet_knows_labels_in_the_plural(tmp_path):
    """So do beans and cats_vs_dogs of the hub call them."""
    rows = [{"bytes": encoded(i), "path": None} for i in range(2)]
    parquet.write_table(pyarrow.table({"image": rows, "labels": [1, 0]}), tmp_path / "train.parquet")
    assert open_source(tmp_path).labels().tolist() == [1, 0]  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("kind", [pyarrow.large_binary(), pyarrow.binary_view()], ids=str)
def test_parquet_reads_every_kind_of_bytes(kind, tmp_path):
    """Views, which newer libraries write, ended in a traceback."""
    pictures = pyarrow.array([encoded(value) for value in range(9)], kind)
    parquet.write_table(pyarrow.table({"image": pictures, "label": list(range(9))}), tmp_path / "train.parquet")
    source = open_source(tmp_path / "train.parquet")
    assert [int(record.read()[0, 0, 0]) for record in source.records([1, 4, 8])] == [1, 4, 8]


def test_parquet_with_a_column_twice_is_refused(tmp_path):
    columns = [pyarrow.array([encoded(1)]), pyarrow.array([0]), pyarrow.array([1])]
    table = pyarrow.Table.from_arrays(columns, names=["image", "label", "label"])
    parquet.write_table(table, tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"'train.parquet' has the column 'label' twice; rename one of them"):
        open_source(tmp_path / "train.parquet")


def test_parquet_labels_beyond_64_bits_are_refused_with_their_place(tmp_path):
    labels = pyarrow.array([2**63], pyarrow.uint64())
    parquet.write_table(pyarrow.table({"image": [encoded(1)], "label": labels}), tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"the column 'label' of 'train.parquet' holds uint64, .* whole number from 0"):
        open_source(tmp_path / "train.parquet").labels()


def test_parquet_knows_the_columns_of_cifar_100(tmp_path):
    rows = [{"bytes": encoded(i), "path": None} for i in range(4)]
    columns = {"img": rows, "fine_label": [7, 0, 7, 99], "coarse_label": [1, 0, 1, 9]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "train.parquet")
    source: Any = open_source(str(tmp_path / "train.parquet"))
    assert source.labels().tolist() == [7, 0, 7, 99] == [record.label for record in source.records(range(4))]
    assert source.fields == ("coarse_label",)


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ({"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}, ("cat", "dog")),
        ({"info": {"features": {"label": {"dtype": "int64", "_type": "Value"}}}}, ()),
        ({"info": None}, ()),
        (None, ()),
    ],
)
def test_parquet_has_the_names_of_its_classes_from_the_hub(metadata, names, tmp_path):
    pictures = [{"bytes": encoded(i), "path": None} for i in range(4)]
    table = pyarrow.table({"image": pictures, "label": [0, 1, 1, 0]})
    table = table.replace_schema_metadata(metadata and {"huggingface": json.dumps(metadata)})
    parquet.write_table(table, tmp_path / "train.parquet")
    source: Any = open_source(tmp_path)
    assert source.classes == names


def test_folders_inside_are_the_classes(tmp_path):
    for name in ("dog", "cat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(encoded(9))
    source = open_source(tmp_path)
    labels = source.labels()
    assert labels is not None and labels.tolist() == [0, 1]
    assert [(r.name, r.label) for r in source.records([0, 1])] == [("cat/a.png", 0), ("dog/a.png", 1)]
    (tmp_path / "loose.png").write_bytes(encoded(9))
    assert open_source(tmp_path).labels() is None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names are text")
def test_names_of_classes_can_be_written_whatever_the_folders_are_called(tmp_path):
    for name in (b"\xff", "ä".encode()):
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name, b"a.png"))).write_bytes(encoded(1))
    source: Any = open_source(tmp_path)
    assert [name.encode().decode() for name in source.classes] == ["ä", "\ufffd"]
    assert source.labels().tolist() == [0, 1]


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path):
    """Subsets of ImageNet are made of links to class folders."""
    stored, linked = write_folder(tmp_path / "stored", [1, 2]), tmp_path / "set"
    for name in ("cat", "dog"):
        (linked / name).mkdir(parents=True)
        (linked / name / "part").symlink_to(stored)
    (linked / "fox").symlink_to(stored)
    (linked / "cat" / "home").symlink_to(linked)
    (stored / "back").symlink_to(linked)
    names = [record.name for record in open_source(linked).records(range(6))]
    assert names == [f"{part}/00{i}.png" for part in ("cat/part", "dog/part", "fox") for i in range(2)]
    assert len(open_source(linked)) == 6


def test_a_link_to_a_picture_that_is_gone_is_a_damaged_picture(tmp_path):
    folder = write_folder(tmp_path / "set", [1, 2])
    (folder / "003.png").symlink_to(tmp_path / "gone.png")
    source = open_source(folder)
    assert len(source) == 3 and fingerprint(source) != fingerprint(open_source(write_folder(tmp_path / "b", [1, 2])))
    with pytest.raises(TooManyDamaged, match=r"1 of 3 .*'003.png': No such file"):
        fill(source, 8, lambda index, pixels: None)


def test_generated_pictures_have_mask_and_box():
    source = open_source("procedural", length=15, size=32, seed=4)
    record = next(source.records([13], extras=("mask", "box")))
    sample = procedural(13, size=32, seed=4)
    assert np.array_equal(record.read(), sample.image)
    assert np.array_equal(record.extras["mask"], sample.mask)
    assert (record.extras["box"], record.label, len(source)) == (sample.box, 3, 15)


@pytest.mark.parametrize(("length", "count"), [(7, 7), (100, 3), (1000, 999), (64, 1)])
def test_spread_draws_different_numbers_one_from_each_stretch(length, count):
    drawn = spread(length, count, np.random.default_rng(1))
    assert len(set(drawn.tolist())) == count
    edges = [number * length // count for number in range(count + 1)]
    assert all(low <= x < high for low, x, high in zip(edges, drawn, edges[1:], strict=False))


@by_kind
def test_the_choice_depends_on_the_seed_only_and_covers_the_source(write, tmp_path):
    source = open_source(write(tmp_path / "set", list(range(200))))
    chosen = read(source, 50, seed=3)
    assert chosen == read(source, 50, seed=3)
    assert chosen != read(source, 50, seed=4)
    assert len(set(chosen)) == 50
    first = np.array(chosen[:FIRST])
    assert np.histogram(first, bins=4, range=(0, 200))[0].tolist() == [8, 8, 8, 8]


@by_kind
def test_damaged_pictures_are_named_and_replaced(write, tmp_path):
    values = [None if i % 4 == 1 else i for i in range(60)]
    skipped: list[str] = []
    chosen = read(open_source(write(tmp_path / "set", values)), 40, skipped=skipped)
    assert len(set(chosen)) == 40
    assert all(value % 4 != 1 for value in chosen)
    assert skipped
    assert all("not an image that Pillow knows" in reason for reason in skipped)
    assert all(("row" if write is write_shards else ".png") in reason for reason in skipped)


@by_kind
def test_what_is_left_when_there_are_not_enough(write, tmp_path):
    skipped: list[str] = []
    source = open_source(write(tmp_path / "set", [5, None, 6, None]))
    assert sorted(read(source, 10, skipped=skipped)) == [5, 6]
    assert len(skipped) == 2


@by_kind
def test_a_source_of_damaged_pictures_only(write, tmp_path):
    source = open_source(write(tmp_path / "set", [None] * 300))
    with pytest.raises(ValueError, match=r"no readable image in .*set; 300 skipped, first "):
        read(source, 2)


def test_what_is_no_source(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.parquet").write_text("x")
    (tmp_path / "empty").mkdir()
    parquet.write_table(pyarrow.table({"pixels": [1]}), tmp_path / "other.parquet")
    parquet.write_table(pyarrow.table({"image": pyarrow.array([], pyarrow.binary())}), tmp_path / "none.parquet")
    for name, words in {
        "nowhere": "no data at .*nowhere",
        "a.txt": "neither a folder nor",
        "a.parquet": "not a parquet file",
        "empty": "no image in",
        "other.parquet": "pixels.*no 'image'",
        "none.parquet": "no rows",
    }.items():
        with pytest.raises(ValueError, match=words):
            open_source(tmp_path / name)


def test_shards_of_two_sets_are_not_mixed(tmp_path):
    write_shards(tmp_path, [1, 2], shards=1)
    parquet.write_table(pyarrow.table({"image": [{"bytes": encoded(1), "path": ""}]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="shards of one set"):
        open_source(tmp_path)


def test_rows_without_a_picture_and_plain_bytes(tmp_path):
    pictures = pyarrow.array([None, encoded(7), b""], pyarrow.binary())
    parquet.write_table(pyarrow.table({"img": pictures}), tmp_path / "a.parquet")
    skipped: list[str] = []
    assert read(open_source(tmp_path / "a.parquet"), 3, skipped=skipped) == [7]
    assert len(skipped) == 2
    assert all("no picture in this row" in reason for reason in skipped)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_a_model_is_fed_as_timm_feeds_it(name, tmp_path):
    for index in range(3):
        Image.fromarray(procedural(index, size=300).image[: 300 - 40 * index]).save(tmp_path / f"{index}.png")
    model = timm.create_model(name)
    expected: Any = create_transform(**resolve_model_data_config(model), is_training=False)
    batches = list(image_batches(open_source(tmp_path), 3, Preprocessing(model), batch_size=2))
    assert [len(batch) for batch in batches] == [2, 1]
    for index, image in enumerate(torch.cat(batches)):
        wanted = expected(Image.open(tmp_path / f"{index}.png"))
        assert torch.allclose(image, wanted, atol=1e-5)


def test_a_generated_picture_of_the_right_side_is_not_resampled():
    model = timm.create_model("vit_tiny_patch16_224")
    preprocessing = Preprocessing(model, image_size=72)  # 72 / 0.9 = 80: a margin of 4 on every side
    source = open_source("procedural", length=1, size=preprocessing.side)
    (batch,) = image_batches(source, 1, preprocessing, batch_size=4, dtype=torch.float64)
    middle = procedural(0, size=80).image[4:76, 4:76].transpose(2, 0, 1) / 255
    assert np.abs(batch[0].numpy() * 0.5 + 0.5 - middle).max() < 1e-12


def test_a_reader_that_stops_early_leaves_no_thread(tmp_path):
    source = open_source(write_folder(tmp_path / "set", list(range(100))))
    before = threading.active_count()
    pictures = read_pictures(source, 100, prepare=lambda p: p)
    next(pictures)
    pictures.close()
    assert threading.active_count() == before


def test_a_palette_with_transparency_is_read_without_a_warning(tmp_path):
    """Pillow warned of each of them; many sets of drawings and logos are such PNGs."""
    picture = Image.fromarray(procedural(0, size=32).image).quantize(16)
    picture.save(tmp_path / "a.png", transparency=bytes(range(0, 256, 16)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (record,) = open_source(tmp_path).records([0])
        assert np.array_equal(record.read(), np.asarray(picture.convert("RGB")))


def test_every_picture_that_torchvision_finds_is_found(tmp_path):
    for suffix in torchvision.datasets.folder.IMG_EXTENSIONS:
        (tmp_path / f"a{suffix}").write_bytes(encoded(1))
    assert len(open_source(tmp_path)) == len(torchvision.datasets.folder.IMG_EXTENSIONS)
