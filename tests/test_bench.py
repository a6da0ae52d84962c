"""The benchmarks run, say where their numbers come from, and their arithmetic is right on fake clocks."""

import io
import json
import sys

import numpy as np
import pyarrow
import pytest
import scipy.fft
import torch
from PIL import Image
from pyarrow import parquet

from wellcond.bench import bars, record, timing, variants
from wellcond.bench.bars import Bar
from wellcond.config import BenchConfig

ORIGIN = {
    "what",
    "command",
    "commit",
    "hardware",
    "versions",
    "date",
    "seeds",
    "images",
    "parts",
    "rows",
    "bars",
}
TIMED = {"part", "device", "name", "median_ms", "iqr", "ratio", "ratio_ci", "samples_ms", "baseline"}


class FakeTime:
    """Seconds that pass only when a call says so."""

    def __init__(self):
        self.seconds, self.order = 0.0, []

    def call(self, name, *milliseconds):
        turns = iter(milliseconds)

        def run():
            self.order.append(name)
            self.seconds += next(turns) / 1e3

        return run

    def clock(self):
        return timing.HostClock(now=lambda: self.seconds)


def test_interleave_rotates_and_takes_medians():
    fake = FakeTime()
    calls = {"plain": fake.call("plain", 99, 10, 10, 40), "gray": fake.call("gray", 99, 11, 12, 13)}
    timings = timing.interleave(calls, rounds=3, warmup=1, clock=fake.clock())
    assert fake.order == ["plain", "gray", "plain", "gray", "gray", "plain", "gray", "plain"]
    assert timings["plain"].median == pytest.approx(10)
    assert timings["gray"].quartiles == pytest.approx((11.5, 12.5))
    row = timing.timing_row(timings["gray"], timings["plain"])
    assert row["ratio"] == pytest.approx(1.2)
    assert row["ratio_ci"][0] <= row["ratio"] <= row["ratio_ci"][1]


def test_interleave_changes_who_comes_before_whom():
    fake = FakeTime()
    calls = {name: fake.call(name, *[1] * 7) for name in "abc"}
    timing.interleave(calls, rounds=6, warmup=0, clock=fake.clock())
    rounds = ["".join(fake.order[first : first + 3]) for first in range(0, 18, 3)]
    assert rounds == ["abc", "bca", "cab", "cba", "acb", "bac"]


def test_calls_in_a_row_are_one_sample():
    fake = FakeTime()
    calls = {"plain": fake.call("plain", 1, 2, 3, 8, 8, 8)}
    clock = timing.HostClock(now=lambda: fake.seconds, in_a_row=3)
    assert timing.interleave(calls, rounds=2, warmup=0, clock=clock)["plain"].samples == pytest.approx([2, 8])


def test_slow_variants_take_part_in_some_rounds():
    fake = FakeTime()
    calls = {"slow": fake.call("slow", *[50] * 9), "quick": fake.call("quick", *[1] * 9)}
    timings = timing.interleave(calls, rounds=6, warmup=2, clock=fake.clock(), every={"slow": 3})
    assert timings["slow"].rounds == [0, 3]
    assert len(timings["quick"].samples) == 6
    value, interval = timing.ratio(timings["quick"], timings["slow"])
    assert value == pytest.approx(0.02)
    assert interval == pytest.approx((0.02, 0.02))


def test_drift_shared_by_all_variants_cancels_in_the_ratio():
    drift = np.linspace(1, 2, 40)
    base = timing.Timing(name="plain", samples=list(100 * drift), rounds=list(range(40)))
    gray = timing.Timing(name="gray", samples=list(105 * drift), rounds=list(range(40)))
    value, (low, high) = timing.ratio(gray, base)
    assert value == pytest.approx(1.05)
    assert (low, high) == pytest.approx((1.05, 1.05))


def test_no_rounds_is_refused():
    with pytest.raises(ValueError, match="not 0"):
        timing.interleave({}, rounds=0, clock=timing.HostClock())


def test_variants_are_read_in_any_order():
    assert variants.parse_variant("ahead exact svd").name == "svd exact ahead"
    names = [v.name for v in variants.parse_variants("svd, dct exact, plain")]
    assert names == ["plain", "plain again", "svd fast inside", "dct exact inside"]
    for wrong in ("haar", "svd svd", "fast", "svd slow"):
        with pytest.raises(ValueError, match=wrong):
            variants.parse_variant(wrong)


BAR = bars.Bar(name="b", part="a", device="cuda", quantity="ratio", limit=1.1, best=True, where={"method": "svd"})
ROWS = [
    {"part": "a", "device": "cuda", "method": "svd", "name": "wrong", "ratio": 1.0, "meets_error": False},
    {"part": "a", "device": "cuda", "method": "svd", "name": "right", "ratio": 1.08, "meets_error": True},
    {"part": "a", "device": "cuda", "method": "svd", "name": "slow", "ratio": 1.3, "meets_error": True},
    {"part": "a", "device": "cuda", "method": "svd", "name": "broken", "failed": "RuntimeError"},
]


def test_a_bar_counts_only_rows_that_are_exact_enough():
    part = {"quick": False, "images": "parquet:set"}
    verdict = BAR.judge(ROWS, {"a-cuda": part})
    assert (verdict["row"], verdict["value"], verdict["met"]) == ("right", 1.08, True)
    assert BAR.judge(ROWS[:1], {"a-cuda": part})["met"] is False
    assert BAR.judge(ROWS[2:], {"a-cuda": part})["met"] is False
    assert BAR.judge(ROWS, {"a-cuda": part | {"images": "procedural"}})["met"] is None
    assert BAR.judge(ROWS, {})["met"] is None


def test_a_record_merges_parts_and_keeps_measurements(tmp_path):
    common = {"what": "graying", "out": tmp_path, "device": "cpu", "command": "x", "bars": (BAR,)}
    full = record.Record(quick=False, **common)
    settings = {"images": "parquet:set", "seeds": {}}
    full.add("a", [{"name": "old", "ratio": float("inf")}], settings)
    full.add("b", [{"name": "other", "ratio": 2.0}], settings)
    full.add("a", [{"name": "new", "ratio": float("nan")}], settings)
    written = json.loads(full.path.read_text())
    assert [(r["name"], r["ratio"]) for r in written["rows"]] == [("new", None), ("other", 2.0)]
    with pytest.raises(ValueError, match="--out"):
        record.Record(quick=True, **common).refuse_overwriting(["b"])


def test_pictures_come_from_parquet_or_folder(tmp_path):
    from wellcond.bench.images import load_pictures, normalise

    encoded = []
    for index, mode in enumerate(("RGB", "L", "RGB")):
        buffer = io.BytesIO()
        Image.new(mode, (40, 24), 80 * index).save(buffer, "PNG")
        (tmp_path / f"{index}.png").write_bytes(buffer.getvalue())
        encoded.append({"bytes": buffer.getvalue(), "path": f"{index}.png"})
    from_folder = load_pictures(tmp_path, count=5, size=16)
    parquet.write_table(pyarrow.table({"image": encoded, "label": [0, 1, 2]}), tmp_path / "a.parquet")
    pictures = load_pictures(tmp_path, count=5, size=16)
    assert pictures.pixels.shape == (5, 16, 16, 3)
    assert pictures.pixels.dtype == np.uint8
    assert (pictures.num_distinct, pictures.source) == (3, f"parquet:{tmp_path.name}")
    assert from_folder.source == f"folder:{tmp_path.name}"
    assert normalise(pictures.pixels, "cpu").shape == (5, 3, 16, 16)
    with pytest.raises(ValueError, match="nowhere"):
        load_pictures(tmp_path / "nowhere", count=1, size=16)


def test_the_float64_reference_grays_as_the_paper_says():
    from wellcond.bench import oracle

    X = torch.randn(2, 6, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    D = oracle.dct_matrix(6)
    assert torch.allclose(D @ D.T, torch.eye(6, dtype=torch.float64))
    sigma, grayed = torch.linalg.svdvals(X), torch.linalg.svdvals(oracle.gray(X, "svd", 0.5))
    assert torch.allclose(grayed, sigma[:, :1] * (sigma / sigma[:, :1]) ** 0.5)
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(oracle.images_of(oracle.tokens_of(images, 4), 8, 4).float(), images)
    expected = oracle.shrink(torch.from_numpy(scipy.fft.dctn(X.numpy(), axes=(1, 2), norm="ortho")), 0.9)
    expected = torch.from_numpy(scipy.fft.idctn(expected.numpy(), axes=(1, 2), norm="ortho"))
    assert torch.allclose(oracle.gray(X, "dct", 0.9), expected)


def check_result(result, path):
    assert json.loads(path.read_text()) == result
    assert set(result) >= ORIGIN
    assert result["images"] == "procedural"
    for row in result["rows"]:
        assert "failed" in row or set(row) >= TIMED
    for bar in result["bars"]:
        assert bar["met"] is None  # neither quick nor procedural numbers count
        assert bar["why"]


def test_quick_graying(tmp_path, capsys):
    from wellcond.bench import graying

    result = graying.run(BenchConfig(what="graying", out=tmp_path, quick=True))
    check_result(result, tmp_path / "bench-graying.json")
    rows = {(r["part"], r["name"]): r for r in result["rows"]}
    assert {part for part, _ in rows} == {"a", "b", "c", "d"}
    for method in ("dct", "svd"):
        for precision in ("fast", "exact"):
            row = rows["a", f"{method} {precision} inside"]
            assert row["meets_error"], row
            assert row["error_embedding"] < 1e-3
    assert not any("ahead" in name for _, name in rows)
    printed = capsys.readouterr().out
    assert printed.count("side-stream variants need CUDA: left out") == 1
    assert printed.count("95 % interval") == 1
    assert printed.count("a quick run shows") == 1


def test_quick_spectral_in_parts(tmp_path):
    from wellcond.bench import spectral

    config = BenchConfig(what="spectral", out=tmp_path, quick=True)
    spectral.run(config, parts="map")
    result = spectral.run(config, parts="condition,eigen")
    check_result(result, tmp_path / "bench-spectral.json")
    assert {r["part"] for r in result["rows"]} == {"condition", "map", "eigen"}
    with pytest.raises(ValueError, match="qr"):
        spectral.run(config, parts="qr")


def test_quick_diagnose(tmp_path):
    from wellcond.bench import diagnose

    result = diagnose.run(BenchConfig(what="diagnose", out=tmp_path, quick=True))
    check_result(result, tmp_path / "bench-diagnose.json")
    rows = {r["name"]: r for r in result["rows"]}
    assert rows["probe"]["error_log_kappa"] < 1e-3 and rows["probe"]["num_checked"] > 0
    assert rows["all sites"]["peak_memory_gib"] > 0


def test_quick_soap(tmp_path):
    from wellcond.bench import soap

    result = soap.run(BenchConfig(what="soap", out=tmp_path, quick=True))
    assert result == json.loads((tmp_path / "bench-soap.json").read_text())
    rows = {(r["part"], r["name"]): r for r in result["rows"]}
    ours = rows["optimizer", "SOAP"]
    assert ours["speedup"] > 0 and ours["worst_step_ms"] > 0
    assert rows["optimizer", "SOAP, all bases in one step"]["error_loss"] < 1e-4  # as theirs does
    assert ours["error_loss"] < 0.1
    assert rows["optimizer", "SOAP, float32 products"]["error_update"] < 1e-3
    refreshed = [r for (part, name), r in rows.items() if part == "refresh" and "ours" in name]
    assert refreshed and all(r["error_orthogonality"] < 1e-5 for r in refreshed)
    assert rows["training", "soap"]["ratio"] > 0 and rows["training", "soap"]["optimizer"] == "soap"
    assert all(bar["met"] is None for bar in result["bars"])


def test_soap_alone_where_the_other_is_not_installed(tmp_path, monkeypatch):
    from wellcond.bench import soap

    monkeypatch.setitem(__import__("sys").modules, "pytorch_optimizer", None)
    result = soap.run(BenchConfig(what="soap", out=tmp_path, quick=True), parts="optimizer")
    rows = {r["name"]: r for r in result["rows"]}
    assert "pip install pytorch-optimizer" in rows["pytorch-optimizer"]["failed"]
    assert "speedup" not in rows["SOAP"] and rows["SOAP"]["step_ms"] > 0


def test_quick_tokencut(tmp_path):
    from wellcond.bench import tokencut

    result = tokencut.run(BenchConfig(what="tokencut", out=tmp_path, quick=True))
    check_result(result, tmp_path / "bench-tokencut.json")
    assert {row["tokens"] for row in result["rows"]} == {16, 64}
    for row in result["rows"]:
        if row["ours"]:
            assert row["error_boxes"] in (0, None)
            assert row["num_checked"] + row["num_tied"] == 2
    assert len({bar["name"] for bar in result["bars"]}) == 6


def test_tokencut_without_scipy_is_a_line(tmp_path, monkeypatch):
    from wellcond.bench import tokencut

    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    with pytest.raises(ValueError, match="scipy"):
        tokencut.run(BenchConfig(what="tokencut", out=tmp_path, quick=True))


def test_quick_knn(tmp_path):
    from wellcond.bench import knn

    result = knn.run(BenchConfig(what="knn", out=tmp_path, quick=True))
    check_result(result, tmp_path / "bench-knn.json")
    theirs, ours = result["rows"]
    assert ours["ours"] and ours["error_top1"] == theirs["error_top1"] == 0 and ours["num_checked"] == 20


def test_knn_without_scikit_learn_is_a_line(tmp_path, monkeypatch):
    from wellcond.bench import knn

    monkeypatch.setitem(sys.modules, "sklearn.neighbors", None)
    with pytest.raises(ValueError, match="scikit-learn"):
        knn.run(BenchConfig(what="knn", out=tmp_path, quick=True))


@pytest.mark.gpu
def test_quick_graying_on_cuda(tmp_path):
    from wellcond.bench import graying

    result = graying.run(BenchConfig(what="graying", device="cuda", out=tmp_path, quick=True), parts="a,b")
    for row in result["rows"]:
        assert "failed" not in row, row
        assert row.get("error_handover", 0) < 1e-3, row  # a race would read half a batch
        assert row["peak_memory_ratio"] > 0


@pytest.mark.gpu
def test_quick_train_on_cuda(tmp_path):
    from wellcond.bench import train

    result = train.run(BenchConfig(what="train", device="cuda", out=tmp_path, quick=True))
    assert [row for row in result["rows"] if "failed" in row] == []
    assert {row["step"] for row in result["rows"] if "step" in row} == {"CUDA graph"}


@pytest.mark.parametrize("wrong", [{"ratio": float("nan")}, {"ratio": None}, {"failed": "out of memory"}], ids=str)
def test_a_row_that_is_no_number_misses_a_bar_for_all_rows(wrong):
    bar = Bar(name="x", part="a", device="cpu", quantity="ratio", limit=1.0)
    rows = [{"part": "a", "device": "cpu", "name": "good", "ratio": 0.5}]
    parts = {"a-cpu": {"quick": False, "images": "photographs"}}
    assert bar.judge(rows, parts)["met"] is True
    assert bar.judge([*rows, {"part": "a", "device": "cpu", "name": "bad", **wrong}], parts)["met"] is False


@pytest.mark.parametrize("content", [b"{}", b"[]", b"", b"no JSON", b"\xff\xfe"], ids=repr)
def test_a_file_that_holds_no_results_is_named(content, tmp_path, capsys):
    from wellcond.cli import main

    (tmp_path / "bench-spectral.json").write_bytes(content)
    assert main(["bench", "spectral", "--quick", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "bench-spectral.json" in captured.err and "--out" in captured.err
    assert (tmp_path / "bench-spectral.json").read_bytes() == content


@pytest.mark.parametrize("option", ["--out", "--data"])
def test_paths_are_checked_before_anything_is_timed(option, tmp_path, capsys):
    from wellcond.cli import main

    (tmp_path / "file").write_text("neither a folder nor data")
    arguments = ["bench", "spectral", "--quick", "--out", str(tmp_path / "out"), option, str(tmp_path / "file")]
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "file" in captured.err
    assert not (tmp_path / "out").exists()


def test_a_damaged_picture_in_a_parquet_file_is_told_like_any_other(tmp_path):
    from wellcond.bench.images import load_pictures

    table = pyarrow.table({"image": [{"bytes": b"no picture", "path": "x.png"}]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="not an image that Pillow knows"):
        load_pictures(tmp_path, count=1, size=16)


@pytest.fixture(scope="module")
def quick_train(tmp_path_factory):
    from wellcond.bench import train

    out = tmp_path_factory.mktemp("train")
    return train.run(BenchConfig(what="train", out=out, quick=True)), out / "bench-train.json"


def test_quick_train(quick_train):
    result, path = quick_train
    check_result(result, path)
    rows = {(r["part"], r["name"]): r for r in result["rows"]}
    assert {part for part, _ in rows} == {"vit-tiny-32", "vit-tiny-64", "vit-base-224", "dino-64", "pipeline"}
    assert not any("failed" in row for row in rows.values())
    for part in ("vit-tiny-32", "vit-tiny-64", "vit-base-224", "dino-64"):
        bare, loop = rows[part, "constant batch"], rows[part, "loop"]
        assert loop["share"] == pytest.approx(bare["median_ms"] / loop["median_ms"])
    for method in ("dct", "svd"):
        row = rows["vit-base-224", f"loop, {method} fast inside"]
        assert row["meets_error"] and row["error_embedding"] < 1e-3, row
        assert row["baseline"] == "loop, not grayed"
    ours, theirs = rows["pipeline", "wellcond"], rows["pipeline", "timm"]
    assert ours["speedup"] == pytest.approx(ours["images_per_s"] / theirs["images_per_s"])
    assert len(theirs["first_batch_s"]) == len(theirs["samples_ms"])


def test_every_bar_of_training_finds_its_row(quick_train):
    from wellcond.bench import train

    result, _ = quick_train
    rows = [{**row, "device": "cuda"} for row in result["rows"]]
    parts = {f"{part}-cuda": {"quick": False, "images": "parquet:x"} for part in train.PARTS}
    judged = {bar.name: bar.judge(rows, parts) for bar in train.BARS}
    assert all(verdict["met"] is not None for verdict in judged.values())
    assert len({verdict["name"] for verdict in judged.values()}) == len(train.BARS) == 14
    lost = [{"name": "loop, svd fast inside", "failed": "out of memory", "method": "svd", "kind": "grayed"}]
    lost = [{"part": "vit-base-224", "device": "cuda", **row} for row in lost]
    kept = [row for row in rows if (row["part"], row["name"]) != ("vit-base-224", lost[0]["name"])]
    missed = [bar.name for bar in train.BARS if bar.judge(kept + lost, parts)["met"] is False]
    assert any("ViT-B" in name and "SVD" in name for name in missed)
    assert [bar.judge(kept + lost, parts)["row"] for bar in train.BARS if bar.quantity == "share"] == [
        judged[bar.name]["row"] for bar in train.BARS if bar.quantity == "share"
    ]


def test_a_full_training_benchmark_asks_for_a_gpu_and_pictures(tmp_path, monkeypatch):
    from wellcond.bench import train

    with pytest.raises(ValueError, match="GPU"):
        train.run(BenchConfig(what="train", out=tmp_path))
    monkeypatch.setattr(train, "check_device", lambda device: None)
    with pytest.raises(ValueError, match="--cifar"):
        train.run(BenchConfig(what="train", device="cuda", out=tmp_path))
    with pytest.raises(ValueError, match="--data"):
        train.run(BenchConfig(what="train", device="cuda", out=tmp_path), parts="vit-base-224")
    with pytest.raises(ValueError, match="bench graying"):
        BenchConfig(what="graying", cifar=tmp_path)


def test_a_part_that_fails_leaves_the_others(tmp_path, monkeypatch):
    from wellcond.bench import loops, train

    config = BenchConfig(what="train", out=tmp_path, quick=True)
    monkeypatch.setattr(loops, "GrayingConfig", None)
    result = train.run(config, parts="vit-tiny-64")
    failed = {row["name"]: row["method"] for row in result["rows"] if "failed" in row and "method" in row}
    assert failed == {"loop, dct fast inside": "dct", "loop, svd fast inside": "svd"}
    assert any(row["name"] == "loop" and "share" in row for row in result["rows"])
    monkeypatch.setattr(loops, "open_stock", None)
    with pytest.raises(ValueError, match="part vit-tiny-32 failed: TypeError"):
        train.run(config, parts="vit-tiny-32,pipeline")
    written = json.loads((tmp_path / "bench-train.json").read_text())
    assert {row["part"] for row in written["rows"]} == {"vit-tiny-64", "pipeline"}


def test_some_pictures_of_a_source_enlarged(tmp_path):
    from wellcond.bench.stock import open_stock

    encoded = []
    for shade in range(5):
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), (40 * shade, 0, 0)).save(buffer, "PNG")
        encoded.append({"bytes": buffer.getvalue(), "path": f"{shade}.png"})
    parquet.write_table(pyarrow.table({"image": encoded, "label": list(range(5))}), tmp_path / "val-0.parquet")
    cache = open_stock(tmp_path, count=3, image_size=14, side=16, folder=tmp_path / "cache")  # no train half: val
    assert cache.images.shape == (3, 3, 16, 16)
    assert cache.labels.tolist() == [0, 2, 4]
    assert cache.images[:, 0].reshape(3, -1).tolist() == [[40 * shade] * 256 for shade in (0, 2, 4)]


def test_timm_asks_for_no_bits_and_gets_a_picture():
    from wellcond.bench.baseline import posterize

    picture = Image.new("RGB", (2, 2), (200, 100, 0))
    assert posterize(picture, 0).getpixel((0, 0)) == (128, 0, 0)
