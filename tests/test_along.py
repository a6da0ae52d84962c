"""Judges along the way: they say what `wellcond evaluate` says, change nothing of training, survive kill -9."""

import io
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from layout_cases import write_voc
from PIL import Image
from pyarrow import parquet
from training_cases import final, finish, run, start

from wellcond import evaluation, recipes
from wellcond.cli import main
from wellcond.config import AlongConfig, TrainConfig
from wellcond.data.progress import silent
from wellcond.data.splits import open_split
from wellcond.runs import Run
from wellcond.runs_page import write_page
from wellcond.training import Diverged, checkpoints, train
from wellcond.training.annotated import Squares, View

JUDGES = ("knn", "linear", "segmentation=procedural:10", "discovery=procedural:10", "discovery", "pca")
SIZES = (("embed_dim", 12), ("depth", 2), ("num_heads", 3))
ALONG = AlongConfig(judges=JUDGES, every=2, probe_epochs=2, segmentation_epochs=2, batch_size=6)


def config(recipe: str, cache: Path, along: AlongConfig = ALONG, **changes: Any) -> TrainConfig:
    """Three epochs of four steps, with dropout, so that torch's own generator decides something."""
    small = {
        "model.options": (*SIZES, ("proj_drop_rate", 0.1)),
        "model.drop_path": 0.3,
        "data.train": "procedural:32",
        "data.val": "procedural:10",
        "data.cache": cache,
        "epochs": 3,
        "batch_size": 8,
        "monitor_every": 0,
        "checkpoint_every": 3,
        "log_every": 2,
        "precision": "float32",
        "device": "cpu",
        "optim.warmup_epochs": 0.0,
    }
    if recipe == "procedural-dino":
        small |= {"dino.out_dim": 16, "dino.hidden": 16, "dino.bottleneck": 8}
    if recipe == "procedural-mae":
        small |= {"mae.decoder_depth": 1, "mae.decoder_width": 12, "mae.decoder_heads": 3}
    return recipes.get(recipe, along=along, **small | changes)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def straight(tmp_path_factory, cache) -> Path:
    out = tmp_path_factory.mktemp("straight") / "run"
    run(config("procedural-dino", cache), out, None)
    return out


def rows(out: Path, kind: str = "judge") -> list[dict]:
    return [row for row in Run(out).rows() if row["kind"] == kind]


def evaluated(out: Path, *words: str) -> dict[str, dict[str, float]]:
    options = ["--device=cpu", "--probe-epochs=2", "--segmentation-epochs=2", "--batch-size=6"]
    assert main(["evaluate", str(out), *options, *words]) == 0
    return {row["judge"]: row["values"] for row in Run(out).evaluations()}


def test_rows_every_second_epoch_and_at_the_end(straight):
    found = [(row["epoch"], row["step"], row["judge"], row.get("data")) for row in rows(straight)]
    asked = [(judge, source or None) for judge, _, source in (word.partition("=") for word in JUDGES)]
    assert found == [(epoch, 4 * epoch, *pair) for epoch in (2, 3) for pair in asked]
    assert all("time" not in row and "seconds" not in row for row in rows(straight))


@pytest.mark.parametrize("kind", ["teacher", "average", "grayed"])
def test_they_say_what_evaluate_says(kind, straight, cache, tmp_path, capsys):
    out = tmp_path / "run"
    if kind == "teacher":
        out = straight
    elif kind == "average":
        run(config("procedural-vit", cache, ema=0.5), out, None)
    else:
        grayed = {"model.graying.method": "svd", "model.graying.epsilon": 0.6, "mae.visible": True}
        run(config("procedural-mae", cache, **grayed), out, None)
    last = {(row["judge"], row.get("data")): row for row in rows(out) if row["epoch"] == 3}
    own = evaluated(out, "--with", "knn", "linear", "discovery")
    for judge, values in own.items():
        assert {name: last[judge, None][name] for name in values} == pytest.approx(values, abs=1e-9), judge
    other = evaluated(out, "--with", "segmentation", "discovery", "--data", "procedural:10")
    for judge in ("segmentation", "discovery"):
        values = other[judge]
        assert {n: last[judge, "procedural:10"][n] for n in values} == pytest.approx(values, abs=1e-9), judge


@pytest.mark.parametrize("recipe", ["procedural-dino", "procedural-vit"])
def test_training_is_the_same_without_them(recipe, straight, cache, tmp_path):
    ema: dict[str, Any] = {} if recipe == "procedural-dino" else {"ema": 0.5}
    with_judges = straight if recipe == "procedural-dino" else tmp_path / "with"
    if recipe != "procedural-dino":
        run(config(recipe, cache, ALONG, **ema), with_judges, None)
    run(config(recipe, cache, AlongConfig(), **ema), tmp_path / "without", None)
    ours, theirs = final(with_judges), final(tmp_path / "without")
    for name in ("model.safetensors", "optimizer.safetensors", "random.safetensors"):
        assert ours[name] == theirs[name], name
    for kind in ("train", "eval"):
        assert rows(with_judges, kind) == rows(tmp_path / "without", kind)


def test_killed_and_resumed_it_is_the_same_run(straight, cache, tmp_path):
    """Right before the judges of epoch 2, and again in the step after them, which is before the next checkpoint."""
    what, out = config("procedural-dino", cache), tmp_path / "run"
    for fault in (("after an evaluation", 2), ("before a step", 3)):
        assert finish(start(what, out, None, fault=fault)) == [-signal.SIGKILL]
    assert finish(start(what, out, None)) == [0]
    assert final(out) == final(straight)


def test_nothing_is_trained_again_where_a_judge_fails(straight, cache, tmp_path, monkeypatch):
    what, out = config("procedural-dino", cache), tmp_path / "run"

    def fail(subject):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setitem(evaluation.JUDGES, "discovery", fail)
        with pytest.raises(ValueError, match=r"with --along\.batch-size 1$"):
            run(what, out, None)
    assert checkpoints.newest_whole(Run(out).checkpoints) == 8  # the end of epoch 2, of which it was to speak
    run(what, out, None)
    assert final(out) == final(straight)


def test_inside_a_run_of_bad_steps_nobody_judges(cache, tmp_path):
    """Features that are not finite ended the run as a mistake; it is to go back once, and to say that it diverged."""
    wild = {"optim.lr": 1e10, "optim.clip": None, "max_bad_steps": 6}
    along = AlongConfig(judges=("knn",), every=1)
    with (
        pytest.warns(UserWarning, match="epoch 1: not judged: the last 3 steps had no finite loss or gradient"),
        pytest.raises(Diverged, match="6 steps in a row"),
    ):
        train(config("procedural-vit", cache, along, **wild), tmp_path / "run")


def test_processes_with_shards_wait_for_the_judges(cache, tmp_path):
    judges = replace(ALONG, judges=("knn", "discovery"))
    what = config("procedural-vit", cache, judges, ema=0.5, parallel="fsdp", **{"model.options": SIZES})
    run(what, tmp_path / "one", None)
    assert finish(start(what, tmp_path / "two", None, world_size=2)) == [0, 0]
    one, two = rows(tmp_path / "one"), rows(tmp_path / "two")
    assert [(row["epoch"], row["judge"]) for row in one] == [(row["epoch"], row["judge"]) for row in two]
    for a, b in zip(one, two, strict=True):
        assert set(a) == set(b)
        if a["judge"] == "knn":
            assert a["top5"] == pytest.approx(b["top5"], abs=10.1)  # of ten pictures at most one goes another way


def test_what_was_decoded_once_is_not_decoded_again(monkeypatch):
    view = View(mean=(0.5,) * 3, std=(0.5,) * 3, size=None, square=None, foreground=(), void=(255,), boxes="corners",
                where=(), progress=silent)  # fmt: skip
    squares = Squares(
        open_split("procedural:9", "train", image_size=16), view, 16, 4, torch.device("cpu"), shuffled=True
    )
    first = [masks for _, masks in squares.anew()]
    monkeypatch.setattr(Squares, "_read", lambda *_: pytest.fail("decoded again"))
    again = [masks for _, masks in squares.anew()]
    assert len(again) == 3 and all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    in_order = torch.cat([images for images, _ in squares.anew()])
    numbers = torch.cat([numbers for numbers, _, _ in squares.anew().numbered()])
    assert sorted(numbers.tolist()) == list(range(squares.num_pictures)) != numbers.tolist()
    for number, image in zip(numbers, in_order, strict=True):
        assert torch.equal(image, view.normalised(squares.kept[number][0]))


def test_generators_and_determinism_are_put_back():
    from wellcond.training.along import untouched

    torch.use_deterministic_algorithms(True)
    try:
        before = torch.get_rng_state()
        with untouched(torch.device("cpu")):
            torch.rand(3)
        assert torch.equal(torch.get_rng_state(), before) and torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_line_of_an_epoch_and_the_page(cache, tmp_path, capsys):
    words = ["train", "procedural-mae", "--data", "procedural:16", "--data.cache", str(cache), "--epochs", "1"]
    words += ["--batch-size", "8", "--out", str(tmp_path / "run"), "--device", "cpu", "--monitor-every", "0"]
    words += ["--along.judges", "knn", "discovery=procedural:6", "--along.every", "1"]
    assert main(words) == 0
    found = {row["judge"]: row for row in rows(tmp_path / "run")}
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch 1/1"))
    assert f"knn {found['knn']['top1']:.4g}" in line and f"discovery {found['discovery']['corloc']:.4g}" in line
    text = write_page(tmp_path / "run").read_text()
    assert "Judges along the way" in text and "CorLoc, % on procedural:6" in text and "cannot be read" not in text


MISTAKES = {
    "no such judge": (["--along.judges", "nearest"], ["'nearest'", "knn"]),
    "its own head": (["--along.judges", "accuracy"], ["'accuracy'"]),
    "no source": (["--along.judges", "knn="], ["'knn='"]),
    "twice": (["--along.judges", "knn", "knn"], ["knn knn", "once"]),
    "nothing there": (["--along.judges", "segmentation=nowhere"], ["along.judges", "nowhere", "JUDGE=SOURCE"]),
    "no such field": (["--along.judges", "discovery", "--along.where", "a=b"], ["a"]),
    "half a patch": (
        ["--along.judges", "segmentation", "--along.size", "20"],
        ["20", "patches", "the nearest --along.size"],
    ),
    "less than a patch": (["--along.judges", "discovery", "--along.size", "4"], ["size is 4", "--along.size"]),
    "no mask value": (["--along.judges", "segmentation", "--along.void", "256"], ["along.void holds 256", "0 … 255"]),
    "none either": (["--along.foreground", "-1"], ["along.foreground holds -1", "0 … 255"]),
    "no keys": (["--along.judges", "discovery", "--model.name", "convmixer_tiny", "--model.options"], ["keys"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_before_there_is_a_run(name, cache, tmp_path, capsys):
    words, needed = MISTAKES[name]
    recipe = "procedural-vit" if name == "no keys" else "procedural-mae"
    common = ["--data", "procedural:16", "--data.cache", str(cache), "--out", str(tmp_path / "run"), "--device", "cpu"]
    common += ["--batch-size", "8"]
    assert main(["train", recipe, *common, *words]) == 2
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(word in err for word in needed), err
    assert not (tmp_path / "run").exists()


def test_a_broken_mask_is_told_before_there_is_a_run(cache, tmp_path, capsys):
    """Not after so many epochs, when the judge first looks at it."""
    root = write_voc(tmp_path / "VOC2012")
    Image.new("L", (7, 9)).save(root / "SegmentationClass" / "2012_000005.png")
    words = ["--data", "procedural:16", "--data.cache", str(cache), "--out", str(tmp_path / "run"), "--device", "cpu"]
    words += ["--batch-size", "8", "--along.judges", f"segmentation={root}"]
    assert main(["train", "procedural-mae", *words]) == 2
    assert "along.judges: the mask of 2012_000005.jpg is 7 × 9 px" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("judge", ["knn", "linear"])
def test_halves_with_other_classes_are_told_before_there_is_a_run(judge, cache, tmp_path):
    for half, names in {"train": "ab", "val": "ac"}.items():
        for name in names:
            folder = tmp_path / "data" / half / name
            folder.mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(folder / "0.png")
    along = replace(ALONG, judges=(f"{judge}={tmp_path / 'data'}",))
    with pytest.raises(ValueError, match=r"along\.judges: .*'b' is not in both; give both halves the same classes"):
        run(config("procedural-mae", cache, along), tmp_path / "run", None)
    assert not (tmp_path / "run" / "config.json").exists()


def test_boxes_that_are_sizes_are_told_in_the_words_of_a_config(cache, tmp_path):
    """Seen when they are read, at the first moment."""
    buffer = io.BytesIO()
    Image.new("RGB", (32, 32)).save(buffer, "PNG")
    table = pyarrow.table({"image": [{"bytes": buffer.getvalue(), "path": "a.png"}], "bbox": [[20, 20, 5, 5]]})
    parquet.write_table(table, tmp_path / "val-0.parquet")
    along = replace(ALONG, judges=(f"discovery={tmp_path}",))
    with pytest.raises(ValueError, match=r"say --along\.boxes sizes for x, y, w, h"):
        run(config("procedural-mae", cache, along), tmp_path / "run", None)


def test_another_interval_is_another_run(straight, cache):
    other = config("procedural-dino", cache, replace(ALONG, every=1))
    with pytest.raises(ValueError, match=r"along\.every 2, not 1"):
        run(other, straight, None)
    assert json.loads((straight / "config.json").read_text())["along"]["judges"] == list(JUDGES)
