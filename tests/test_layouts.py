"""Readers of VOC, COCO, COCO 20k, COCO-Stuff and ADE20K on miniature copies; masks and boxes of every source."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from layout_cases import SIZE, numbers, sample, save, write_ade20k, write_coco, write_voc
from PIL import Image
from pyarrow import parquet

from wellcond.data.annotations import (
    box_field,
    boxes_of,
    check_boxes,
    check_mask,
    mask_field,
    mask_of,
    matching,
)
from wellcond.data.fingerprints import fingerprint
from wellcond.data.generated import GeneratedSource
from wellcond.data.reading import in_order
from wellcond.data.sources import open_source
from wellcond.data.splits import open_split


def opened(path: Path, half: Any = "val") -> Any:
    return open_split(str(path), half, image_size=32)


def known(source) -> list[tuple]:
    """(name, boxes, mask) of every picture."""
    fields = [name for name in (box_field(source), mask_field(source)) if name]
    found = []
    for record in source.records(range(len(source)), fields):
        assert record.read().shape == (SIZE, SIZE, 3)
        boxes = boxes_of(record.extras["boxes"], record.name) if "boxes" in fields else None
        mask = mask_of(record.extras["mask"], record.name) if "mask" in fields else None
        found.append((record.name, boxes, mask))
    return found


def test_voc(tmp_path):
    root = write_voc(tmp_path / "VOC2012")
    train, val = opened(root, "train"), opened(root)
    assert (len(train), len(val), val.title) == (4, 3, "voc:VOC2012/Segmentation/val")
    for index, (name, boxes, mask) in enumerate(known(val), start=4):
        assert name == f"2012_{index:06d}.jpg"
        assert boxes.tolist() == [list(sample(index).box)]
        assert (mask == numbers(sample(index))).all()
    assert val.labels() is None and val.num_segments == 21


def test_a_list_of_voc_names_its_pictures(tmp_path):
    root = write_voc(tmp_path)
    assert len(opened(root / "ImageSets" / "Main" / "trainval.txt")) == 7
    cats = opened(root / "ImageSets" / "Main" / "cat_val.txt", "train")  # a list of a class: -1 is "not here"
    assert [path.stem for path in cats.paths] == ["2012_000004", "2012_000006"]
    (root / "SegmentationClass" / "2012_000000.png").unlink()
    source = opened(root / "ImageSets" / "Main" / "trainval.txt")
    assert source.fields == ("boxes",)  # masks only where all have one
    (root / "ImageSets" / "Segmentation" / "val.txt").unlink()
    assert opened(root).title.endswith("Main/val")


def test_a_list_of_voc_may_be_of_file_names_and_begin_with_a_mark(tmp_path):
    root = write_voc(tmp_path)
    listed = root / "mine.txt"
    listed.write_bytes("\ufeff2012_000004.jpg\r\n2012_000002\r\n".encode())
    assert [path.stem for path in opened(listed).paths] == ["2012_000004", "2012_000002"]


def test_voc_as_it_unpacks(tmp_path):
    write_voc(tmp_path / "VOCdevkit" / "VOC2012")
    for place in (tmp_path / "VOCdevkit", tmp_path):  # the second is torchvision's root
        assert len(opened(place)) == 3 and opened(place).title == "voc:VOC2012/Segmentation/val"
    write_voc(tmp_path / "VOCdevkit" / "VOC2007")
    for place in (tmp_path / "VOCdevkit", tmp_path):
        with pytest.raises(ValueError, match=r"holds VOC2007 and VOC2012; give one of them, for example .*VOC2012'"):
            opened(place)


def test_a_list_of_segmentation_misses_a_mask(tmp_path):
    root = write_voc(tmp_path)
    (root / "SegmentationClass" / "2012_000005.png").unlink()
    source = opened(root)
    assert source.fields == ("mask", "boxes")
    with pytest.raises(ValueError, match=r"mask of 2012_000005\.jpg cannot be read.*2012_000005\.png"):
        known(source)


def test_coco_stuff_and_its_boxes(tmp_path):
    root = write_coco(write_coco(tmp_path, "train2017", stuff=True), "val2017", 2, stuff=True)
    assert len(opened(root, "train")) == 4
    source = opened(root)
    assert (source.title, source.num_segments, source.fields) == ("coco:val2017", 182, ("mask", "boxes"))
    for index, (_, boxes, mask) in enumerate(known(source)):
        assert boxes.tolist() == [list(sample(index).box)]  # the crowd is not there
        assert (mask == numbers(sample(index), background=120, shift=0)).all()


@pytest.mark.parametrize("line", ["COCO_train2014_{:012d}.jpg", "{}", "train2014/COCO_train2014_{:012d}.jpg"])
def test_coco_20k_is_a_list(line, tmp_path):
    root = write_coco(tmp_path)
    (root / "coco_20k_filenames.txt").write_text("\n".join(line.format(n) for n in (1014, 1000)) + "\n\n")
    source = opened(root / "coco_20k_filenames.txt")
    assert (source.title, source.fields) == ("coco:coco_20k_filenames", ("boxes",))
    assert [boxes.tolist() for _, boxes, _ in known(source)] == [[list(sample(2).box)], [list(sample(0).box)]]


def test_a_list_of_two_splits_is_refused(tmp_path):
    """Their boxes lie in two files, and those of the first split would be missed."""
    root = write_coco(write_coco(tmp_path, "train2014"), "val2014")
    listed = root / "both.txt"
    listed.write_text("COCO_train2014_000000001000.jpg\nCOCO_val2014_000000001007.jpg\n")
    with pytest.raises(ValueError, match=r"both\.txt names pictures of train2014 and val2014; make one list for each"):
        opened(listed)


def test_ade20k(tmp_path):
    root = write_ade20k(tmp_path)
    source = opened(root)
    assert (source.title, len(source), source.fields, source.num_segments) == ("ade20k:validation", 3, ("mask",), 150)
    for index, (_, _, mask) in enumerate(known(source), start=3):
        assert (mask[0] == 255).all()  # "other"
        assert (mask[1:] == np.where(sample(index).mask, sample(index).label, 99)[1:]).all()


@pytest.mark.parametrize("folder", ["images/ADE/training/urban/street", "images/training/a/abbey"])
def test_the_whole_ade20k_is_refused(folder, tmp_path):
    """Of 2021 and of 2016: the masks lie among the pictures, and were trained on as if they were some."""
    for name in ("ADE_train_00000001.jpg", "ADE_train_00000001_seg.png"):
        save(tmp_path / folder / name, sample(0).image if name.endswith("jpg") else sample(0).mask.astype(np.uint8))
    with pytest.raises(ValueError, match=r"is the whole ADE20K.*ADEChallengeData2016"):
        opened(tmp_path)


def test_stored_pictures_are_not_turned_by_their_exif(tmp_path):
    root = write_voc(tmp_path)
    path = root / "JPEGImages" / "2012_000004.jpg"
    turned = Image.Exif()
    turned[0x0112] = 6
    wide = np.zeros((20, 40, 3), np.uint8)
    Image.fromarray(wide).save(path, exif=turned)
    (record,) = opened(root).records([0])
    assert record.read().shape == (20, 40, 3)


def test_fingerprints_follow_the_files(tmp_path):
    root = write_voc(tmp_path)
    before = fingerprint(opened(root))
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(root / "JPEGImages" / "2012_000004.jpg")
    assert fingerprint(opened(root)) != before


def test_masks_are_no_photographs_of_a_folder(tmp_path):
    """For whoever asks for no half: wellcond diagnose."""
    for name, write in (("voc", write_voc), ("ade", write_ade20k)):
        write(tmp_path / name)
        assert open_source(tmp_path / name).title == opened(tmp_path / name).title


def test_hidden_files_are_no_pictures(tmp_path):
    """macOS leaves ._NAME beside NAME on disks of another kind."""
    coco, ade = write_coco(tmp_path / "coco"), write_ade20k(tmp_path / "ade")
    for root, folder in ((coco, "train2014"), (ade, "images/training")):
        count = len(opened(root, "train"))
        (root / folder / "._000000001000.jpg").write_bytes(b"Mac OS X")
        assert len(opened(root, "train")) == count


def test_coco_boxes_in_words_are_numbers_all_the_same(tmp_path):
    root = write_coco(tmp_path)
    path = root / "annotations" / "instances_train2014.json"
    content = json.loads(path.read_text())
    before = [boxes.tolist() for _, boxes, _ in known(opened(root, "train"))]
    for one in content["annotations"]:
        one["bbox"] = [str(number) for number in one["bbox"]]
    path.write_text(json.dumps(content))
    assert [boxes.tolist() for _, boxes, _ in known(opened(root, "train"))] == before


def test_mistakes_name_the_file(tmp_path):
    root = write_voc(tmp_path / "voc")
    (root / "Annotations" / "2012_000005.xml").write_text("<annotation>")
    with pytest.raises(ValueError, match=r"2012_000005.jpg .*xml"):
        known(opened(root))
    (root / "JPEGImages" / "2012_000006.jpg").unlink()
    with pytest.raises(ValueError, match=r"2012_000006.jpg.*does not exist"):
        opened(root)
    coco = write_coco(tmp_path / "coco")
    (coco / "some.txt").write_text("no number here\n")
    with pytest.raises(ValueError, match="no picture of COCO"):
        opened(coco / "some.txt")
    (coco / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match="names no pictures"):
        opened(coco / "empty.txt")
    (coco / "empty.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"empty\.txt' is no list of pictures"):
        opened(coco / "empty.txt")
    with pytest.raises(ValueError, match="val2017"):
        opened(coco)
    (coco / "annotations" / "instances_train2014.json").write_text("{}")
    with pytest.raises(ValueError, match="no file of COCO instances"):
        known(opened(coco, "train"))
    (tmp_path / "alone.txt").write_text("1\n")
    with pytest.raises(ValueError, match="no VOC or COCO folder"):
        opened(tmp_path / "alone.txt")


def png(mask: np.ndarray) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": "x.png"}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("bbox", [0, 1, 63, 31]),
        ("boxes", [[0.0, 1.0, 64.0, 32.0]]),
        ("objects", {"bbox": [[0.0, 1.0, 64.0, 32.0]], "category": [3]}),
        ("objects", [{"bbox": [0.0, 1.0, 64.0, 32.0], "category": 3}]),
    ],
)
def test_parquet_columns(column, value, tmp_path):
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    picture = png(np.zeros((3, 4, 3), np.uint8))
    table = pyarrow.table({"image": [picture, picture], "mask": [png(mask), None], column: [value, None]})
    parquet.write_table(table, tmp_path / "val-0.parquet")
    source = opened(tmp_path)
    assert (box_field(source), mask_field(source)) == (column, "mask")
    first, second = source.records([0, 1], [column, "mask"])
    assert boxes_of(first.extras[column], "a").tolist() == [[0, 1, 64, 32]]
    assert boxes_of(second.extras[column], "a").shape == (0, 4)
    got = mask_of(first.extras["mask"], "a")
    assert got is not None and (got == mask).all()
    assert mask_of(second.extras["mask"], "a") is None


def test_boxes_as_sizes_and_wrong_ones():
    assert boxes_of([[5, 6, 7, 8]], "a", "sizes").tolist() == [[5, 6, 12, 14]]
    with pytest.raises(ValueError, match=r"ends before it begins.*--boxes sizes"):
        boxes_of([[50, 60, 7, 8]], "a")
    with pytest.raises(ValueError, match="four numbers"):
        boxes_of([1, 2, 3], "a")
    with pytest.raises(ValueError, match=r"a box of a is \[8\.0, 0\.0, 3\.0, 3\.0\], which ends before it begins"):
        boxes_of(np.array([[0, 0, 1, 1], [8, 0, 3, 3]]), "a")  # of VOC or COCO, whose form is known
    for ragged in ([[1, 2, 3, 4], [1, 2]], [{"bbox": [1, 2, 3, 4]}, {"category": 3}]):
        with pytest.raises(ValueError, match=r"the boxes of a are \[\[1, 2, 3, 4\], .*; give four numbers for each"):
            boxes_of(ragged, "a")


def test_boxes_beside_the_picture_or_in_shares_of_it():
    pixels = np.zeros((10, 20, 3), np.uint8)
    check_boxes(np.array([[0.5, 0.5, 1.5, 2.0], [0, 0, 1, 1]]), pixels, "a")
    check_boxes(np.array([[0.0, 0.0, 1.0, 1.0]]), pixels, "a")  # one pixel
    check_boxes(np.zeros((0, 4)), pixels, "a")
    with pytest.raises(ValueError, match=r"a box of a is \[0\.1, 0\.1, 0\.6, 1\.0\], shares of .*; give .* pixels"):
        check_boxes(np.array([[0.1, 0.1, 0.6, 1.0]]), pixels, "a")
    check_boxes(np.array([[0.1, 0.1, 0.6, 1.0]]), pixels, "a", in_pixels=True)
    for known in (False, True):
        with pytest.raises(ValueError, match=r"outside the picture of 20 × 10 px"):
            check_boxes(np.array([[30.0, 1, 40, 3]]), pixels, "a", in_pixels=known)


def test_numbers_that_are_none():
    with pytest.raises(ValueError, match=r"boxes of a are \[\[0\.0, 1\.0, 2\.0, nan\]\]; give four numbers"):
        boxes_of(np.array([[0, 1, 2, np.nan]]), "a")
    for wrong in ([[0, 300]], [[0, -1]], [[0.5, 1.0]]):
        with pytest.raises(ValueError, match=r"mask of a holds .*; give class numbers from 0 to 255"):
            mask_of(wrong, "a")


def test_a_bool_mask_holds_the_class_of_its_picture():
    source = GeneratedSource(5, size=32)
    record = next(source.records([3], ["mask", "box"]))
    mask = mask_of(record.extras["mask"], record.name, record.label)
    assert mask is not None and set(np.unique(mask)) == {0, 4}
    assert boxes_of(record.extras["box"], "a", exclusive=True).tolist() == [list(record.extras["box"])]


def test_masks_that_are_none(tmp_path):
    with pytest.raises(ValueError, match=r"12 × 10 px, but the picture is 20 × 10"):
        check_mask(np.zeros((10, 12), np.uint8), np.zeros((10, 20, 3), np.uint8), "a.jpg")
    with pytest.raises(ValueError, match="mode RGB"):
        mask_of(png(np.zeros((3, 4, 3), np.uint8)), "a")
    with pytest.raises(ValueError, match="cannot be read"):
        mask_of({"bytes": b"nonsense"}, "a")
    with pytest.raises(ValueError, match="cannot be read"):
        mask_of(tmp_path / "nowhere.png", "a")
    for value in ([[0, 1], [2]], np.zeros((2, 2, 3), np.uint8)):
        with pytest.raises(ValueError, match=r"the mask of a is \[\[.*; give a picture of class numbers") as caught:
            mask_of(value, "a")
        assert "\n" not in str(caught.value)


def test_where_chooses_rows(tmp_path):
    picture = png(np.zeros((3, 4, 3), np.uint8))
    table = pyarrow.table({"image": [picture] * 3, "kind": ["a", "b", "a"], "number": [1, 2, 3]})
    parquet.write_table(table, tmp_path / "val-0.parquet")
    source = opened(tmp_path)
    assert matching(source, ()) == [0, 1, 2]
    assert matching(source, ("kind=a", "number=3")) == [2]
    for where, words in (("kind", "FIELD=VALUE"), ("kind=z", "no picture"), ("colour=a", "no 'colour'")):
        with pytest.raises(ValueError, match=words):
            matching(source, (where,))


def test_threads_keep_the_order_and_pass_errors_on():
    assert list(in_order(lambda n: n * n, range(200))) == [n * n for n in range(200)]
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda n: 1 // (50 - n), range(200)))
