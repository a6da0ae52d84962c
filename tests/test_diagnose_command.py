"""`wellcond diagnose`: what it writes, its exit status, and that every mistake is one line."""

import errno
import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
import timm
import torch
from PIL import Image
from pyarrow import parquet
from safetensors.torch import save_file

import wellcond.diagnosis
from wellcond import atomic, parsing
from wellcond.cli import main
from wellcond.config import DiagnoseConfig, to_command
from wellcond.data.procedural import procedural
from wellcond.probes.rows import SITE_WORDS

SMALL = ["diagnose", "test_vit", "--image-size", "32", "--images", "4", "--no-jacobian"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def png(index: int, size: int = 48) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(procedural(index, size=size).image).save(buffer, "PNG")
    return buffer.getvalue()


def written(path: str = "diagnosis/diagnosis.json") -> dict:
    return json.loads(Path(path).read_text())


def test_one_folder_with_page_and_numbers(capsys):
    assert main(SMALL) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "random (seed 0)" in captured.out
    assert "diagnosis/report.html" in captured.out and "diagnosis/diagnosis.json" in captured.out
    assert sorted(p.name for p in Path("diagnosis").iterdir()) == ["diagnosis.json", "report.html"]
    result = written()
    assert (result["num_images"], result["source"], result["weights"]) == (4, "procedural", "random")
    assert result["command"] == "wellcond diagnose test_vit --images 4 --no-jacobian --image-size 32"
    assert {row["site"] for row in result["rows"]} >= {"sab_in", "sab_out", "sab_sum", "ffn_out", "ffn_sum"}
    assert "test_vit" in Path("diagnosis/report.html").read_text()


@pytest.mark.parametrize(("options", "files"), [
    (["--json", "a/x.json"], ["a", "a/x.json"]),
    (["--html", "x.html"], ["x.html"]),
    (["--html", "x.html", "--json", "x.json"], ["x.html", "x.json"]),
    (["--out", "there"], ["there", "there/diagnosis.json", "there/report.html"]),
])  # fmt: skip
def test_only_what_is_named_is_written(options, files, capsys):
    assert main([*SMALL, *options]) == 0
    assert sorted(map(str, Path().rglob("*"))) == files


def test_the_command_gives_the_same_numbers_again():
    assert main([*SMALL, "--seed", "3", "--json", "a.json"]) == 0
    command = shlex.split(written("a.json")["command"])
    assert main([*command[1:], "--json", "b.json"]) == 0
    assert written("a.json")["rows"] == written("b.json")["rows"]


def test_compare_puts_both_on_the_page(capsys):
    assert main([*SMALL, "--json", "before.json"]) == 0
    assert main([*SMALL, "--gray", "svd", "--epsilon", "0.5", "--html", "both.html", "--compare", "before.json"]) == 0
    page = Path("both.html").read_text()
    assert "grayed by SVD 0.5" in page
    assert "→ both.html, beside before.json" in capsys.readouterr().out
    assert page.count("test_vit") > 2


def test_graying_and_cutting_change_the_numbers():
    def log_kappa(*options: str) -> dict:
        assert main([*SMALL, "--json", "x.json", *options]) == 0
        rows = written("x.json")["rows"]
        return {(r["layer"], r["site"]): r["value"] for r in rows if r["quantity"] == "log_kappa"}

    plain = log_kappa()
    assert plain != log_kappa("--gray", "dct")
    cut = log_kappa("--cut", "attention")
    assert cut[2, "sab_sum"] == cut[2, "sab_out"]
    assert plain[2, "sab_sum"] != plain[2, "sab_out"]
    assert log_kappa("--cut", "both")[2, "ffn_sum"] != plain[2, "ffn_sum"]


def test_fail_above_both_ways(capsys):
    assert main([*SMALL, "--fail-above", "1e6", "--json", "a.json"]) == 0  # so κ is nowhere infinite
    rows = [row for row in written("a.json")["rows"] if row["quantity"] == "log_kappa"]
    worst = max(rows, key=lambda row: row["value"])
    capsys.readouterr()
    assert main([*SMALL, "--fail-above", str(worst["value"] - 1e-3), "--json", "b.json"]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert f"block {worst['layer']}, {SITE_WORDS[worst['site']]}" in line and f"{worst['value']:.2f}" in line
    assert Path("b.json").exists()  # after everything was written
    assert main([*SMALL, "--fail-above", str(worst["value"] + 1e-3), "--json", "c.json"]) == 0


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_a_damaged_image_is_named_skipped_counted_and_replaced(kind, capsys):
    Path("set").mkdir()
    contents = [png(i) if i != 2 else png(i)[:100] for i in range(5)]
    if kind == "folder":
        for index, content in enumerate(contents):
            Path(f"set/{index}.png").write_bytes(content)
    else:
        pictures = [{"bytes": content, "path": f"{i}.png"} for i, content in enumerate(contents)]
        parquet.write_table(pyarrow.table({"image": pictures}), "set/a.parquet")
    assert main([*SMALL, "--data", "set"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "2.png" in captured.err
    assert "1 skipped" in captured.out
    result = written()
    assert (result["num_images"], result["source"]) == (4, f"{kind}:set")
    assert len(result["skipped"]) == 1 and "2.png" in result["skipped"][0]


def test_fewer_images_than_asked_for_is_said(capsys):
    Path("set").mkdir()
    Path("set/a.png").write_bytes(png(0))
    assert main([*SMALL, "--data", "set"]) == 0
    assert "1 images of folder:set (all there are that can be read; 4 were asked for)" in capsys.readouterr().out


def test_weights_are_measured_and_named(capsys):
    torch.manual_seed(1)
    save_file(timm.create_model("test_vit", img_size=32, num_classes=3).state_dict(), "w.safetensors")
    assert main([*SMALL, "--json", "random.json"]) == 0
    assert main([*SMALL, "--json", "trained.json", "--weights", "w.safetensors"]) == 0
    assert "weights: w.safetensors" in capsys.readouterr().out
    assert written("trained.json")["weights"] == "w.safetensors"
    assert written("trained.json")["rows"] != written("random.json")["rows"]


def test_double_and_patch_tokens():
    assert main([*SMALL, "--double", "--tokens", "patch"]) == 0
    row = written()["rows"][0]
    assert row["n"] == 4  # 2 × 2 patches, no class token
    assert written()["arithmetic"] == "float64"


BAD = {
    "no model": (["diagnose"], ["needs a model of timm"]),
    "no such run": (["runs/nowhere"], ["'runs/nowhere' is no run", "check the path"]),
    "unknown model": (["vit_tinny_patch16_224"], ["'vit_tinny_patch16_224'", "vit_tiny_patch16_224"]),
    "short of a model": (["vit_tny"], ["'vit_tny'", "did you mean vit_tiny_patch16_224"]),
    "unknown model, nothing near": (["qqqq"], ["'qqqq'"]),
    "unknown tag": (["vit_tiny_patch16_224.foo"], ["'foo'", "vit_tiny_patch16_224.augreg_in21k"]),
    "not a transformer": (["test_resnet"], ["ResNet has no transformer blocks"]),
    "parallel blocks": (["vit_small_patch16_18x2_224"], ["cannot be adapted", "share one sum"]),
    "no data": (["test_vit", "--data", "nowhere"], ["'nowhere'", "parquet"]),
    "a folder without images": (["test_vit", "--data", "EMPTY"], ["no image in 'empty'", ".png"]),
    "a folder of damaged images": (["test_vit", "--data", "BROKEN"], ["no readable image", "1 skipped", "x.png"]),
    "no images": (["test_vit", "--images", "0"], ["images is 0", "1 or more"]),
    "no batch": (["test_vit", "--batch-size", "-2"], ["batch size is -2"]),
    "size not divisible": (["test_vit", "--image-size", "50"], ["50", "16", "48"]),
    "size that the model refuses": (["xcit_nano_12_p16_224", "--image-size", "40"], ["40", "patch_size"]),
    "threshold nan": (["test_vit", "--fail-above", "nan"], ["nan", "log κ"]),
    "threshold in words": (["test_vit", "--fail-above", "high"], ["--fail-above is 'high', not a number"]),
    "target infinite": (["test_vit", "--target", "inf"], ["target is inf"]),
    "epsilon without graying": (["test_vit", "--epsilon", "0.5"], ["0.5", "--gray"]),
    "epsilon out of range": (["test_vit", "--gray", "dct", "--epsilon", "2"], ["2", "(0, 1]"]),
    "seed": (["test_vit", "--seed", "-1"], ["seed is -1"]),
    "unknown device": (["test_vit", "--device", "tpu"], ["tpu", "cuda"]),
    "misspelt option": (["test_vit", "--batchsize", "2"], ["--batchsize", "--batch-size"]),
    "no weights there": (["test_vit", "--weights", "nowhere.pth"], ["no weights at 'nowhere.pth'"]),
    "weights of nothing": (["test_vit", "--weights", "TEXT"], ["text.txt", "no checkpoint"]),
    "weights and pretrained": (["test_vit", "--weights", "TEXT", "--pretrained"], ["text.txt", "one of them"]),
    "weights of another model": (["test_vit", "--weights", "OTHER"], ["keys missing", "keys unexpected"]),
    "html is a folder": (["test_vit", "--html", "EMPTY"], ["html is 'empty'", "folder"]),
    "html under a file": (["test_vit", "--html", "TEXT/a.html"], ["text.txt", "is a file"]),
    "out is a file": (["test_vit", "--out", "TEXT"], ["text.txt", "is a file"]),
    "one file for both": (["test_vit", "--html", "x", "--json", "x"], ["both 'x'"]),
    "compare with nothing": (["test_vit", "--compare", "nowhere.json"], ["compare is 'nowhere.json'", "no file"]),
    "compare with text": (["test_vit", "--compare", "TEXT"], ["compare", "'text.txt'", "no JSON"]),
    "compare with other JSON": (["test_vit", "--compare", "LIST"], ["compare", "'list.json'", "no diagnosis"]),
    "compare without a page": (["test_vit", "--compare", "LIST", "--json", "x.json"], ["--html"]),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD.keys())
def test_a_mistake_is_one_line_and_exit_2(arguments: list[str], words: list[str], capsys):
    Path("text.txt").write_text("no weights, no JSON")
    Path("list.json").write_text("[1]")
    Path("empty").mkdir()
    Path("broken").mkdir()
    Path("broken/x.png").write_text("no image")
    save_file(timm.create_model("test_resnet").state_dict(), "other.safetensors")
    places = {"EMPTY": "empty", "BROKEN": "broken", "TEXT": "text.txt", "LIST": "list.json"}
    places |= {"OTHER": "other.safetensors", "TEXT/a.html": "text.txt/a.html"}
    before = sorted(Path().rglob("*"))
    verb = [] if arguments == ["diagnose"] else ["diagnose"]
    assert main([*verb, *(places.get(a, a) for a in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("wellcond: ") and captured.err.count("\n") == 1, captured.err
    assert all(word in captured.err for word in words), captured.err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(capsys):
    assert main([*SMALL, "--device", "cuda"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_where_one_may_not_write(capsys):
    Path("closed").mkdir(mode=0o500)
    assert main([*SMALL, "--out", "closed/x"]) == 2
    assert "may not write" in capsys.readouterr().err


def test_pretrained_weights_that_cannot_be_had(capsys, monkeypatch):
    def offline(*args, **kwargs):
        raise ConnectionError("Name or service not known\nRetrying")

    monkeypatch.setattr(timm, "create_model", offline)
    assert main(["diagnose", "test_vit", "--pretrained"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "Name or service not known" in captured.err and "--weights" in captured.err


def test_an_interrupt_leaves_nothing(capsys, monkeypatch):
    def interrupted(model, batches, **options):
        next(iter(batches))
        raise KeyboardInterrupt

    monkeypatch.setattr(wellcond.diagnosis, "diagnose", interrupted)
    assert main(SMALL) == 130
    assert capsys.readouterr().err == ""
    assert list(Path().iterdir()) == []


def test_an_interrupt_while_writing_leaves_nothing(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic.os, "replace", interrupted)
    assert main(SMALL) == 130
    assert [path for path in Path().rglob("*") if path.is_file()] == []


def test_a_full_disk_is_one_line(capsys, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, "replace", full)
    assert main(SMALL) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "diagnosis" in line and "free some space" in line
    assert [path for path in Path().rglob("*") if path.is_file()] == []


def test_out_of_memory_names_the_batch_size(capsys, monkeypatch):
    def exhausted(model, batches, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmuch")

    monkeypatch.setattr(wellcond.diagnosis, "diagnose", exhausted)
    assert main([*SMALL, "--batch-size", "7"]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "--batch-size below 7" in line


def test_the_help_fits_a_screen_and_shows_an_example(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["diagnose", "--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 48
    assert "wellcond diagnose vit_tiny_patch16_224 --data" in text
    assert "MODEL" in text


@pytest.mark.parametrize("config", [
    DiagnoseConfig(model="a"),
    DiagnoseConfig(model="a", data="b c", weights=Path("w x.pth"), no_jacobian=True, fail_above=1.5, target=-1.0),
    DiagnoseConfig(model="a", gray="svd", epsilon=0.5, cut="both", device="cpu", double=True, seed=4, image_size=64),
])  # fmt: skip
def test_a_config_to_its_command_and_back(config):
    _, verb, *arguments = shlex.split(to_command("diagnose", config))
    assert (verb, parsing.parse(DiagnoseConfig, verb, arguments)) == ("diagnose", config)


def test_the_installed_command_is_quiet_in_a_pipe():
    done = subprocess.run([sys.executable, "-m", "wellcond", *SMALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout


MEASURE = """
import resource, sys
from wellcond.cli import main
peaks = []
for count in (1000, 10000):
    arguments = ["diagnose", "test_vit", "--image-size", "32", "--data", "set", "--images", str(count)]
    assert main([*arguments, "--batch-size", "50", "--no-jacobian", "--json", "x.json"]) == 0
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print("peaks", *peaks, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
def test_ten_thousand_images_take_no_more_memory_than_one_thousand():
    Path("set").mkdir()
    pictures = [{"bytes": png(i, size=32), "path": f"{i}.png"} for i in range(10)] * 1000
    for shard in range(2):
        parquet.write_table(pyarrow.table({"image": pictures[shard::2]}), f"set/{shard}.parquet", row_group_size=5000)
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before, after = map(float, done.stderr.split("peaks")[1].split())
    assert after - before < 40, f"{before:.0f} → {after:.0f} MiB"  # all decoded would be 29 MiB, as floats 117
    assert written("x.json")["num_images"] == 10000
