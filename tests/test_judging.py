"""`wellcond evaluate` with every judge: numbers against direct ones, files, the page, and mistakes in one line."""

import errno
import io
import json
import os
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import judge_oracles as oracle
import numpy as np
import pyarrow
import pytest
import torch
from layout_cases import write_ade20k, write_voc
from PIL import Image
from pyarrow import parquet
from rich.console import Console

import wellcond
from wellcond import recipes
from wellcond.cli import main
from wellcond.config import to_json
from wellcond.data.procedural import CLASSES, procedural
from wellcond.evaluation import JUDGES, Backbone, Scene, Settings, Subject, keeping
from wellcond.evaluation.scenes import by_size, stacked
from wellcond.judging import _tables, parse
from wellcond.judging.album import Album, Sight
from wellcond.judging.drawing import FOUND, as_colours
from wellcond.judging.page import build
from wellcond.runs import Run
from wellcond.training import build_model, train

SIZE, PATCH = 32, 8
ALL = ["--with", "accuracy", "knn", "linear", "segmentation", "discovery", "pca"]
QUICK = ["--device=cpu", "--probe-epochs=2", "--segmentation-epochs=2", "--pictures=3"]


def config(folder: Path, **changes):
    base = recipes.get("procedural-vit")
    options = (("embed_dim", 24), ("depth", 3), ("num_heads", 3))
    model = replace(base.model, image_size=SIZE, patch_size=PATCH, options=options)
    data = replace(base.data, train="procedural:40", val="procedural:12", image_size=SIZE, cache=folder / "cache")
    model, optim = replace(model, **changes), replace(base.optim, warmup_epochs=0)
    return replace(base, model=model, data=data, optim=optim, epochs=1, batch_size=8, monitor_every=0, device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Three small runs: a plain ViT, one without skips, and a ConvMixer, which has no keys."""
    folder = tmp_path_factory.mktemp("runs")
    made = {
        "plain": config(folder),
        "cut": config(folder, cut_attention_skips=True, cut_mlp_skips=True),
        "mixer": config(folder, name="convmixer_tiny", options=()),
    }
    for name, what in made.items():
        train(what, folder / name)
    return {name: folder / name for name in made}


def values(run: Path) -> dict[str, dict[str, float]]:
    return {row["judge"]: row["values"] for row in Run(run).evaluations()}


def test_every_judge_by_layer(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    words = ["evaluate", str(runs["plain"]), str(runs["cut"]), *ALL, *QUICK, "--layers", "all", "--html", str(page)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "layer 0" in out and "corloc" in out and str(page) in out
    words = " ".join(out.split())
    assert "In percent, but for images, k, rate; " in words and "tied: pictures whose cut is not unique" in words
    for name in ("plain", "cut"):
        found = values(runs[name])
        assert set(found) == set(JUDGES)
        for judge, what in (("knn", "top1"), ("linear", "rate"), ("segmentation", "miou"), ("discovery", "corloc")):
            assert {what, f"{what}@0", f"{what}@1"} <= set(found[judge])
        assert found["discovery"]["images"] == 12 and found["pca"]["images"] == 3
        row = next(row for row in Run(runs[name]).evaluations() if row["judge"] == "knn")
        assert row["settings"]["layers"] == "all" and "--layers all" in row["command"]
    text = page.read_text()
    assert text.count("<img") == (1 + 2 * 3) * 3 * 2 + (1 + 2 * 4) * 3  # objects, maps; segments also multi-scale
    assert "http://" not in text.split("<script>")[0]
    for title in ("k-NN top-1", "linear probe top-1", "dense probe mIoU", "CorLoc", "foreground IoU", "variance in"):
        assert text.count(f'"text":"{title}') == 1, "a curve by layer of every number"


def test_the_numbers_are_those_of_the_features(runs, capsys):
    """CorLoc and k-NN once more, by the oracles, from the loaded model's own features."""
    assert main(["evaluate", str(runs["plain"]), "--with", "discovery", "knn", "--device=cpu", "--k", "5"]) == 0
    found = values(runs["plain"])
    backbone = Backbone(wellcond.load(runs["plain"]))
    data = recipes.get("procedural-vit").data
    mean, std = (np.array(v, np.float32)[:, None, None] for v in (data.mean, data.std))
    drawn, images = {}, {}
    for half, seed, count in (("train", 0, 40), ("val", 1, 12)):
        drawn[half] = [procedural(i, size=SIZE, seed=seed) for i in range(count)]
        scaled = [(d.image.transpose(2, 0, 1) / np.float32(255) - mean) / std for d in drawn[half]]
        images[half] = torch.from_numpy(np.stack(scaled))
    hits, ious, tied = 0, [], 0
    for keys, d in zip(backbone.read(images["val"], (2,), "keys")[2], drawn["val"], strict=True):
        box, mask, _, tie = oracle.token_cut(keys.double().numpy(), (4, 4))
        hits += oracle.box_iou([PATCH * v for v in box], d.box) >= 0.5
        pixels = mask.repeat(PATCH, 0).repeat(PATCH, 1)
        ious.append((pixels & d.mask).sum() / (pixels | d.mask).sum())
        tied += tie
    if not tied:  # else rounding may decide
        assert found["discovery"]["corloc"] == pytest.approx(100 * hits / 12)
        assert found["discovery"]["foreground_iou"] == pytest.approx(100 * np.mean(ious), abs=1e-6)
    assert found["discovery"]["tied"] == pytest.approx(100 * tied / 12)
    pooled = {half: backbone.read(x, (2,), "pooled")[2].tolist() for half, x in images.items()}
    labels = [d.label for d in drawn["train"]]
    votes = oracle.knn_votes(pooled["train"], labels, pooled["val"], 10, 5, 0.07)
    right = (votes.argmax(1) == [d.label for d in drawn["val"]]).mean()
    assert found["knn"]["top1"] == pytest.approx(100 * right)


@pytest.mark.parametrize("layout", ["voc", "ade20k", "pets"])
def test_sets_with_masks(layout, runs, tmp_path, capsys):
    if layout == "pets":
        write_pets(tmp_path)
    else:
        {"voc": write_voc, "ade20k": write_ade20k}[layout](tmp_path)
    words = ["evaluate", str(runs["plain"]), "--data", str(tmp_path), "--with", "segmentation", "discovery", *QUICK]
    words += ["--foreground", "1", "--void", "3"] if layout == "pets" else []
    assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
    assert ("have no background" in capsys.readouterr().err) == (layout == "ade20k")  # 0 is its first class
    found = {row["judge"]: row["values"] for row in Run(runs["plain"]).evaluations() if row["data"] == str(tmp_path)}
    assert 0 <= found["segmentation"]["miou"] <= 100
    assert ("corloc" in found["discovery"]) == (layout == "voc")
    assert 0 <= found["discovery"]["foreground_iou"] <= 100


def test_learning_and_asking_on_one_set_is_told(runs, tmp_path, capsys):
    """The neighbour of every picture is the picture itself."""
    pictures = [{"bytes": png(procedural(i, size=32).image), "path": f"{i}.png"} for i in range(6)]
    for path, half in (("whole/0", pictures), ("halves/train-0", pictures[:3]), ("halves/val-0", pictures[3:])):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        table = pyarrow.table({"image": half, "label": [i % 2 for i in range(len(half))]})
        parquet.write_table(table, tmp_path / f"{path}.parquet")
    for folder, told in (("whole", True), ("halves", False)):
        words = ["evaluate", str(runs["plain"]), "--data", str(tmp_path / folder), "--with", "knn", *QUICK]
        assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
        assert ("knn will be asked about the pictures learned from" in capsys.readouterr().err) == told


def write_named(folder: Path, names: list[str]) -> Path:
    """A folder for each class, with the pictures of that class."""
    for index in range(20):
        drawn = procedural(index, size=32)
        inside = folder / names[drawn.label]
        inside.mkdir(parents=True, exist_ok=True)
        (inside / f"{index}.png").write_bytes(png(drawn.image))
    return folder


def test_labels_mean_the_classes_of_training(runs, tmp_path, capsys):
    """A folder numbers its classes in its own order: with other names its labels would count as other classes."""
    assert Run(runs["plain"]).classes() == list(CLASSES)
    ordered = [f"{number} {name}" for number, name in enumerate(CLASSES)]
    for run in ("trained", "renamed"):
        shutil.copytree(runs["plain"], tmp_path / run)
    Run(tmp_path / "renamed").write_classes(ordered)
    same = ["--data", str(write_named(tmp_path / "same", ordered))]
    assert main(["evaluate", str(tmp_path / "renamed"), *same, *QUICK]) == 0
    capsys.readouterr()
    other = ["--data", str(write_named(tmp_path / "other", [name[::-1] for name in ordered]))]
    for run, words, named in (("trained", same, repr(ordered[0])), ("renamed", other, repr(ordered[0]))):
        before = Run(tmp_path / run).evaluations()
        assert main(["evaluate", str(tmp_path / run), *words, *QUICK]) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and "label 0 is" in told and named in told and "classes.json" in told
        assert Run(tmp_path / run).evaluations() == before
    assert main(["evaluate", str(tmp_path / "renamed"), *other, "--with", "knn", *QUICK]) == 0, "it has its own labels"
    (tmp_path / "renamed" / "classes.json").unlink()
    assert main(["evaluate", str(tmp_path / "renamed"), *other, *QUICK]) == 0


def write_pets(folder: Path) -> None:
    """1 is the pet, 2 is not, 3 is the border; pictures of two sizes."""
    for half, count in (("train", 5), ("test", 4)):
        pictures, masks = [], []
        for index in range(count):
            drawn = procedural(index, size=40)
            mask = np.where(drawn.mask, 1, 2).astype(np.uint8)
            mask[:2] = 3
            cut = 33 if index % 2 else 40
            pictures.append({"bytes": png(drawn.image[:cut]), "path": f"{index}.png"})
            masks.append({"bytes": png(mask[:cut]), "path": None})
        parquet.write_table(pyarrow.table({"image": pictures, "mask": masks}), folder / f"{half}-0.parquet")


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("name", ["procedural-mae", "procedural-dino"])
def test_runs_without_labels(name, tmp_path, capsys):
    """Their backbones have no head: everything but accuracy."""
    base = recipes.get(name)
    data = replace(base.data, train="procedural:16", val="procedural:8", cache=tmp_path / "cache")
    options = replace(base.optim, warmup_epochs=0)
    made = replace(base, data=data, optim=options, epochs=1, batch_size=8, monitor_every=0, device="cpu")
    train(made, tmp_path / "run")
    assert main(["evaluate", str(tmp_path / "run"), *QUICK, "--with", *ALL[2:], "--pool", "mean"]) == 0
    assert set(values(tmp_path / "run")) == set(JUDGES) - {"accuracy"}
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "run"), *QUICK]) == 2
    assert "without labels" in capsys.readouterr().err


def test_pictures_of_one_size_come_together_and_none_is_lost():
    sizes = [(16, 16), (9, 16), (16, 16), (24, 16), (10, 15)] * 7
    scenes = [Scene(index=i, name=str(i), image=torch.full((3, *size), float(i))) for i, size in enumerate(sizes)]
    batches = list(by_size(iter(scenes), 4, (8, 8)))
    assert sorted(scene.index for batch in batches for scene in batch) == list(range(35))
    assert all(len(batch) <= 4 for batch in batches)
    for batch in batches:
        images = stacked(batch, (8, 8), torch.device("cpu"))
        assert images.shape[2:] in ((16, 16), (24, 16))
        for scene, image in zip(batch, images, strict=True):
            height, width = scene.size
            assert (image[:, :height, :width] == scene.index).all()
            assert not image[:, height:].any() and not image[:, :, width:].any()


def test_judges_need_neither_command_nor_disk():
    """A subject made by hand: two kinds of pictures, told apart by any backbone."""
    model = recipes.get("procedural-vit")
    backbone = build_model(replace(model.model, image_size=16, patch_size=8)).eval()

    def batches(half):
        generator = torch.Generator().manual_seed(int(half == "val"))
        labels = torch.arange(12) % 2
        yield torch.randn(12, 3, 16, 16, generator=generator) * 0.1 + labels[:, None, None, None], labels

    subject = Subject(model=backbone, forward=backbone, batches=batches, settings=Settings(k=3))
    assert dict(JUDGES["knn"](subject))["top1"] == 100
    assert dict(JUDGES["linear"](subject))["top1"] == 100
    for judge, words in (("discovery", "boxes or masks"), ("segmentation", "masks")):
        with pytest.raises(ValueError, match=words):
            dict(JUDGES[judge](subject))


@pytest.mark.parametrize(("keep", "passes"), [(1 << 30, 2), (0, 4)])
def test_neighbours_and_probe_share_one_pass(keep, passes, monkeypatch):
    """Over each half, where memory keeps what was read; a subject with another model reads its own."""
    config = replace(recipes.get("procedural-vit").model, image_size=16, patch_size=8)
    one, other = (build_model(config).eval() for _ in range(2))
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    asked = []

    def batches(half):
        asked.append(half)
        generator = torch.Generator().manual_seed(int(half == "val"))
        yield torch.randn(40, 3, 16, 16, generator=generator), torch.arange(40) % 4

    def judged(subject):
        return [dict(JUDGES[judge](subject)) for judge in ("knn", "linear")]

    monkeypatch.setattr(keeping, "KEEP", keep)
    settings = Settings(k=3, layers="all", probe_epochs=3)
    alone = [[dict(JUDGES[judge](Subject(model=model, forward=model, batches=batches, settings=settings)))
              for judge in ("knn", "linear")] for model in (one, other)]  # fmt: skip
    assert alone[0] != alone[1]
    asked.clear()
    subject = Subject(model=one, forward=one, batches=batches, settings=settings)
    assert judged(subject) == alone[0] and len(asked) == passes
    assert judged(replace(subject, model=other, forward=other)) == alone[1] and len(asked) == 2 * passes


@pytest.fixture(scope="module")
def place(runs, tmp_path_factory) -> Path:
    """Sets that are wrong in one way each."""
    folder = tmp_path_factory.mktemp("place")
    write_voc(folder / "voc")
    other = folder / "voc" / "SegmentationClass" / "2012_000004.png"
    Image.fromarray(np.zeros((9, 7), np.uint8)).save(other)
    write_voc(folder / "shrunk")
    path = folder / "shrunk" / "Annotations" / "2012_000005.xml"
    path.write_text(path.read_text().replace("<xmax>", "<xmax>9").replace("<xmin>", "<xmin>9"))
    write_voc(folder / "tiny")
    for path in (folder / "tiny" / "JPEGImages").iterdir():
        Image.fromarray(np.zeros((6, 40, 3), np.uint8)).save(path)
    for path in (folder / "tiny" / "SegmentationClass").iterdir():
        Image.fromarray(np.zeros((6, 40), np.uint8)).save(path)
    for path in (folder / "tiny" / "Annotations").iterdir():
        path.write_text("<annotation></annotation>")
    write_ade20k(folder / "ade")
    more = folder / "ade" / "annotations" / "validation" / "ADE_00000004.png"
    Image.fromarray(np.full((40, 40), 200, np.uint8)).save(more)
    picture = {"bytes": png(procedural(0, size=32).image), "path": "a.png"}
    (folder / "bare").mkdir()
    (folder / "sized").mkdir()
    for half in ("train", "val"):
        parquet.write_table(pyarrow.table({"image": [picture] * 3}), folder / "bare" / f"{half}-0.parquet")
        table = pyarrow.table({"image": [picture] * 3, "bbox": [[20, 20, 5, 5]] * 3})
        parquet.write_table(table, folder / "sized" / f"{half}-0.parquet")
    return folder


BAD = {
    "a size under a patch": ("plain", ["--with", "pca", "--size", "4"], ["size is 4", "patch of 8 × 8", "--size"]),
    "masks of another size": ("plain", ["--with", "discovery", "--data", "voc"], ["2012_000004", "7 × 9", "40 × 40"]),
    "segments of another size": ("plain", ["--with", "segmentation", "--data", "voc"], ["2012_000004", "7 × 9"]),
    "more classes": (
        "plain",
        ["--with", "segmentation", "--data", "ade"],
        ["ADE_00000004", "class 199", "0 … 149", "--void"],
    ),
    "no boxes": ("plain", ["--with", "discovery", "--data", "bare"], ["neither boxes nor masks"]),
    "no masks": ("plain", ["--with", "segmentation", "--data", "bare"], ["no masks"]),
    "no labels": ("plain", ["--with", "knn", "--data", "bare"], ["no labels"]),
    "no keys": ("mixer", ["--with", "discovery"], ["no attention keys", "depthwise convolution"]),
    "smaller than a patch": ("plain", ["--with", "discovery", "--data", "tiny"], ["40 × 6", "patch of 8 × 8"]),
    "boxes that are sizes": ("plain", ["--with", "discovery", "--data", "sized"], ["--boxes sizes"]),
    "boxes of a larger picture": ("plain", ["--with", "discovery", "--data", "shrunk"], ["2012_000005", "outside the"]),
    "no such object": ("plain", ["--with", "discovery", "--foreground", "77"], ["none of 12 masks", "foreground"]),
    "one class of segments": ("plain", ["--with", "segmentation", "--foreground", "1"], ["foreground is '1'", "heed"]),
    "boxes of neighbours": ("plain", ["--with", "knn", "--boxes", "sizes"], ["boxes is 'sizes'", "leave it out"]),
    "no such layer": ("plain", ["--with", "knn", "--layers", "7"], ["layer 7", "0 … 2"]),
    "layers of words": ("plain", ["--with", "knn", "--layers", "first"], ["layers is first"]),
    "half a patch": ("plain", ["--with", "segmentation", "--size", "36"], ["36", "32"]),
    "nothing matches": ("plain", ["--with", "discovery", "--where", "colour=red"], ["'colour'"]),
    "no neighbour": ("plain", ["--with", "knn", "--k", "0"], ["k is 0"]),
    "no temperature": ("plain", ["--with", "knn", "--temperature", "0"], ["temperature is 0"]),
    "endless temperature": ("plain", ["--with", "knn", "--temperature", "inf"], ["temperature is inf"]),
    "a single patch": ("plain", ["--with", "discovery", "--size", "8"], ["procedural", "single patch", "larger size"]),
    "void out of range": ("plain", ["--with", "discovery", "--void", "300"], ["300"]),
}


@pytest.mark.parametrize(("run", "words", "said"), BAD.values(), ids=BAD.keys())
def test_a_mistake_is_one_line_and_exit_2(run, words, said, runs, place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    before = (runs[run] / "evaluation.json").read_bytes() if (runs[run] / "evaluation.json").exists() else b""
    assert main(["evaluate", str(runs[run]), *words, *QUICK]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("wellcond: ") and captured.err.count("\n") == 1, captured.err
    assert all(word in captured.err for word in said), captured.err
    after = (runs[run] / "evaluation.json").read_bytes() if (runs[run] / "evaluation.json").exists() else b""
    assert after == before


def test_the_page_of_several_runs_is_tried_before_the_work(runs, tmp_path, capsys, monkeypatch):
    (tmp_path / "evaluation.html").mkdir()
    monkeypatch.chdir(tmp_path)
    before = [Run(runs[name]).evaluations() for name in ("plain", "cut")]
    assert main(["evaluate", str(runs["plain"]), str(runs["cut"]), "--with", "pca", *QUICK, "--pictures=2"]) == 2
    assert "html is 'evaluation.html', which is a folder" in capsys.readouterr().err
    assert before == [Run(runs[name]).evaluations() for name in ("plain", "cut")]


def test_a_run_that_may_not_be_written_is_told_before_the_work(runs, capsys, monkeypatch):
    def refused(**_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    monkeypatch.setattr("wellcond.judging.subjects.examine", None)
    assert main(["evaluate", str(runs["plain"])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "evaluation.json', where you may not write (Read-only file system)" in line


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("full", ["evaluation.json", "evaluation.html"])
def test_on_a_full_disk_what_was_found_is_printed(full, as_json, runs, tmp_path, capsys, monkeypatch):
    """Of both judges where the page fails; else of the first, whose row does not get into the file."""
    run = tmp_path / "run"
    shutil.copytree(runs["plain"], run)
    (run / "evaluation.json").unlink(missing_ok=True)
    replaced = os.replace

    def out_of_space(source, target):
        if Path(target).name == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        replaced(source, target)

    monkeypatch.setattr("wellcond.atomic.os.replace", out_of_space)
    words = ["evaluate", str(run), "--with", "knn", "pca", *QUICK]
    assert main([*words, "--json"] if as_json else words) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert f"{full}' cannot be written (No space left on device); make room" in line
    kept = [row["judge"] for row in Run(run).evaluations()]
    judged = ["knn", "pca"] if full == "evaluation.html" else ["knn"]
    assert kept == (judged if full == "evaluation.html" else [])
    if as_json:
        assert [row["judge"] for row in json.loads(out)] == judged and "top1" in json.loads(out)[0]["values"]
    else:
        assert all(judge in out for judge in judged) and "top1" in out
        assert ("→" in out) == (full == "evaluation.html")


def test_a_backbone_without_keys_has_neighbours_and_maps(runs, capsys):
    words = ["evaluate", str(runs["mixer"]), "--with", "knn", "segmentation", "pca", *QUICK]
    assert main(words) == 0
    assert (runs["mixer"] / "evaluation.html").is_file()
    assert {"knn", "segmentation", "pca"} <= set(values(runs["mixer"]))


def test_the_recorded_command_says_every_option_that_was_given(runs, tmp_path, capsys):
    options = ["--with", "discovery", "--void", "7", "9", "--boxes", "sizes", "--k", "3", "--temperature", "0.1",
               "--pool", "mean", "--probe-epochs", "2", "--segmentation-epochs", "3", "--pictures", "2",
               "--size", "64", "--batch-size", "5", "--device", "cpu", "--html", str(tmp_path / "a b")]  # fmt: skip
    assert main(["evaluate", str(runs["cut"]), *options]) == 0
    row = Run(runs["cut"]).evaluations()[-1]
    _, verb, *words = shlex.split(row["command"])
    assert verb == "evaluate" and parse(words) == parse([str(runs["cut"]), *options])
    assert (row["settings"]["void"], row["settings"]["boxes"], row["settings"]["size"]) == ([7, 9], "sizes", 64)


def test_other_settings_stand_beside_and_the_same_in_its_place(runs, tmp_path, capsys):
    file = tmp_path / "run/evaluation.json"
    shutil.copytree(runs["plain"], file.parent)
    old = {"judge": "pca", "data": "procedural:12", "step": 5, "values": {}, "settings": {"layers": "last"}}
    file.write_text(json.dumps({"evaluations": [old]}))  # of a version that did not say all of them
    for size in ("32", "64", "32"):
        assert main(["evaluate", str(file.parent), "--with", "pca", "--size", size, "--device=cpu"]) == 0
    first, *rows = Run(file.parent).evaluations()
    assert first == old and [row["settings"]["size"] for row in rows] == [64, 32]


def test_json_holds_no_nan(runs, capsys):
    main(["evaluate", str(runs["plain"]), "--with", "segmentation", *QUICK])
    text = (runs["plain"] / "evaluation.json").read_text()
    assert "NaN" not in text and json.loads(text)
    assert to_json(config(runs["plain"]))


def test_stdout_is_only_json_where_that_was_asked(runs, capsys):
    assert main(["evaluate", str(runs["plain"]), "--with", "knn", "accuracy", "--json", *QUICK]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["run"], row["judge"]) for row in rows] == [(str(runs["plain"]), j) for j in ("knn", "accuracy")]
    assert [row["values"] for row in rows] == [values(runs["plain"])[judge] for judge in ("knn", "accuracy")]
    assert all({"step", "data", "settings", "command", "versions"} <= set(row) for row in rows)


@pytest.mark.gpu
def test_the_gpu_finds_what_the_cpu_finds(runs, capsys):
    found = {}
    for device in ("cpu", "cuda"):
        words = ["evaluate", str(runs["plain"]), "--with", "knn", "segmentation", "discovery", "pca"]
        assert main([*words, "--layers", "all", "--device", device, "--segmentation-epochs", "1"]) == 0
        found[device] = values(runs["plain"])
    for judge in ("knn", "discovery", "pca", "segmentation"):
        assert found["cuda"][judge] == pytest.approx(found["cpu"][judge], abs=10)  # bf16 here and there


def test_tables_of_a_deep_model_fit_a_narrow_window(capsys):
    """Layers run downwards: no number is cut off in 80 columns, whatever the depth."""
    deep = {"top1": 12.34, **{f"top1@{layer}": 50 + layer / 8 for layer in range(23)}, "k": 20}
    found = {"knn": deep, "accuracy": {"top1": 43.21}}
    Console(width=80, highlight=False).print(*_tables(Album(name="a", data="b", num_layers=24, values=found)))
    out = capsys.readouterr().out
    assert "…" not in out and all(f"{50 + layer / 8:.2f}" in out for layer in range(23))
    assert "12.34" in out and "43.21" in out and max(map(len, out.splitlines())) <= 80


def test_what_a_model_found_is_drawn_on_its_own_picture():
    """Two runs may look at pictures of two sizes, or of two sets."""
    albums = []
    for name, side in (("small", 32), ("large", 64)):
        album = Album(name=name, data="procedural", num_layers=1, patch_size=(8, 8))
        album.scenes.append(Sight(name="a", pixels=procedural(0, size=side).image, boxes=np.zeros((0, 4))))
        mask = np.zeros((side, side), bool)
        mask[: side // 2, : side // 2] = True
        album.show("object", 0, 0, ([0, 0, side // 2, side // 2], mask))
        albums.append(album)
    (section,) = [section for section in build(albums).sections if section.title == "Objects found"]
    gallery: Any = section.items[0]
    for picture in gallery.pictures[1:]:
        rows, columns = (picture.pixels == FOUND).all(-1).nonzero()
        assert (rows.max() + 1, columns.max() + 1) == (80, 80)


def test_a_pca_map_lies_over_its_picture_not_over_the_padding():
    """A picture of 20 × 12 px, in patches of 8: three columns cover 24 px, two rows 16."""
    colours = np.zeros((2, 3, 3))
    colours[0, 0], colours[1, 2] = (1, 0, 0), (0, 0, 1)
    shown = as_colours(colours, np.zeros((12, 20, 3), np.uint8), (8, 8))
    assert shown.shape == (96, 160, 3)  # eight times the picture
    assert (shown[:64, :64] == (255, 0, 0)).all() and (shown[64:, 128:] == (0, 0, 255)).all()
    assert not shown[:64, 64:].any() and not shown[64:, :128].any()
