"""The command: what it writes, and that every mistake is one line and exit status 2."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wellcond import __version__, photos
from wellcond.cli import VERBS, main


def test_overview_lists_the_verbs(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help(verb, capsys):
    assert main([verb, "--help"]) == 0
    assert f"usage: wellcond {verb}" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"wellcond {__version__}\n"


def test_gray_writes_picture_and_strip_and_prints_kappa(photo, tmp_path, capsys):
    out = tmp_path / "new" / "grayed.png"
    assert main(["gray", str(photo), "--method", "svd", "--epsilon", "0.6", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "16 × 768" in captured.out
    assert captured.err == ""
    assert Image.open(out).size == (64, 64)
    assert Image.open(out.with_name("grayed-strip.png")).height > 200
    assert not np.array_equal(np.asarray(Image.open(out)), np.asarray(Image.open(photo)))


def test_gray_writes_beside_the_photo_by_default(photo):
    assert main(["gray", str(photo), "--patch-size", "8"]) == 0
    assert sorted(p.name for p in photo.parent.iterdir()) == [
        "photo-grayed.png",
        "photo-strip.png",
        "photo.png",
    ]


def test_epsilon_one_gives_the_picture_back(photo, tmp_path):
    out = tmp_path / "same.png"
    assert main(["gray", str(photo), "--epsilon", "1", "--out", str(out)]) == 0
    difference = np.asarray(Image.open(out)).astype(int) - np.asarray(Image.open(photo))
    assert np.abs(difference).max() <= 1


def test_gray_a_folder_skips_and_counts_the_damaged(photo, tmp_path, capsys):
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    shutil.copy(photo, folder / "a.png")
    Image.open(photo).save(folder / "a.jpg")  # same stem: both must survive
    shutil.copy(photo, folder / "deep" / "b.png")
    (folder / "broken.jpg").write_bytes(b"no image")
    (folder / "cut.jpg").write_bytes((folder / "a.jpg").read_bytes()[:700])
    (folder / "notes.txt").write_text("not looked at")
    out = tmp_path / "out"
    assert main(["gray", str(folder), "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "3 grayed, 2 skipped" in captured.out
    assert "broken.jpg" in captured.err
    assert "cut.jpg" in captured.err
    assert len(captured.err.splitlines()) == 2
    rows = json.loads((out / "kappa.json").read_text())
    assert len(rows) == 3
    assert len([p for p in out.rglob("*.png") if "strip" not in p.name]) == 3
    assert (out / "deep" / "b.png").exists()


def test_a_folder_inside_its_own_output_is_not_grayed_twice(photo, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    shutil.copy(photo, folder)
    for _ in range(2):
        assert main(["gray", str(folder), "--out", str(folder / "out")]) == 0
    assert len(json.loads((folder / "out" / "kappa.json").read_text())) == 1


def test_crop_and_resize_are_the_remedies(tmp_path, capsys):
    photo = tmp_path / "odd.png"
    Image.new("RGB", (100, 70), "red").save(photo)
    assert main(["gray", str(photo)]) == 2
    line = capsys.readouterr().err
    assert all(word in line for word in ("100×70", "16", "--crop", "--resize", "96×64"))
    assert main(["gray", str(photo), "--crop"]) == 0
    assert Image.open(tmp_path / "odd-grayed.png").size == (96, 64)
    assert main(["gray", str(photo), "--resize", "48"]) == 0
    assert Image.open(tmp_path / "odd-grayed.png").size == (48, 48)


BAD = {
    "no verb": ([], ["gray", "--help"]),
    "unknown verb": (["grey"], ["'grey'", "'gray'"]),
    "unknown verb, nothing near": (["frobnicate"], ["frobnicate", "--help"]),
    "unknown option before the verb": (["--verbose"], ["--verbose"]),
    "missing argument": (["gray"], ["gray needs a photo or a folder: wellcond gray photo.jpg"]),
    "misspelt help": (["gray", "--hlep"], ["--hlep", "'--help'"]),
    "misspelt help before the verb": (["--hlep"], ["'--help'"]),
    "verb in capitals": (["GRAY"], ["'GRAY'", "'gray'"]),
    "option cut short": (["gray", "PHOTO", "--eps", "0.5"], ["--eps", "'--epsilon'"]),
    "empty source": (["gray", ""], ["empty"]),
    "empty out": (["gray", "PHOTO", "--out="], ["empty"]),
    "no such rescale": (["gray", "PHOTO", "--rescale", "no"], ["--rescale", "'no'", "contrast"]),
    "resize to nothing": (["gray", "PHOTO", "--resize", "0"], ["resize is 0; choose a positive multiple", "224"]),
    "resize to a typing error": (["gray", "PHOTO", "--resize", "1000000"], ["1000000", "at most 10000"]),
    "demo of a typing error": (["demo", "--size", "1600000"], ["1600000", "at most 10000"]),
    "a folder is no model": (["diagnose", "EMPTY"], ["'empty' is no run (no config.json), nor a model of timm"]),
    "help of no verb": (["help", "grey"], ["'grey'", "'gray'"]),
    "missing choice": (["bench"], ["graying", "spectral"]),
    "unknown option": (["gray", "PHOTO", "--epsilom", "0.5"], ["--epsilom", "--epsilon"]),
    "one argument too many": (["gray", "PHOTO", "other.png"], ["other.png"]),
    "option without its value": (["gray", "PHOTO", "--epsilon"], ["--epsilon"]),
    "not a number": (["gray", "PHOTO", "--epsilon", "half"], ["--epsilon is 'half', not a number"]),
    "not an integer": (["gray", "PHOTO", "--resize", "big"], ["--resize is 'big', not a whole number"]),
    "epsilon too large": (["gray", "PHOTO", "--epsilon", "1.5"], ["1.5", "(0, 1]"]),
    "epsilon zero": (["gray", "PHOTO", "--epsilon", "0"], ["0", "(0, 1]"]),
    "epsilon nan": (["gray", "PHOTO", "--epsilon", "nan"], ["nan", "(0, 1]"]),
    "unknown method": (["gray", "PHOTO", "--method", "fft"], ["fft", "svd", "dct"]),
    "unknown benchmark": (["bench", "speed"], ["speed", "graying"]),
    "patch of no size": (["gray", "PHOTO", "--patch-size", "0"], ["0", "16"]),
    "sides not divisible": (["gray", "PHOTO", "--patch-size", "24"], ["64×64", "24", "--crop", "--resize"]),
    "patch larger than the photo": (
        ["gray", "PHOTO", "--patch-size", "128", "--crop"],
        ["64×64", "--patch-size"],
    ),
    "patch of absurd size": (["gray", "PHOTO", "--patch-size", "1000"], ["1000", "--patch-size of at most 64"]),
    "resize not divisible": (["gray", "PHOTO", "--resize", "100"], ["100", "96"]),
    "missing file": (["gray", "nowhere.jpg"], ["nowhere.jpg", "path"]),
    "not an image": (["gray", "TEXT"], ["text.jpg", "not an image"]),
    "truncated image": (["gray", "CUT"], ["cut.jpg", "damaged"]),
    "empty folder": (["gray", "EMPTY"], ["empty", ".jpg"]),
    "folder of broken images": (["gray", "BROKEN"], ["broken", "1 skipped"]),
    "out is the photo": (["gray", "PHOTO", "--out", "PHOTO"], ["photo.png", "another name"]),
    "out without a format": (["gray", "PHOTO", "--out", "grayed"], ["'grayed'", ".png"]),
    "out under a file": (["gray", "PHOTO", "--out", "TEXT/a.png"], ["a.png", "folder"]),
    "out of a folder is a file": (["gray", "BROKEN", "--out", "TEXT"], ["text.jpg", "folder"]),
    "demo of nothing": (["demo", "--count", "0"], ["0"]),
    "demo of odd size": (["demo", "--size", "100"], ["100", "16"]),
}


@pytest.mark.parametrize(("arguments", "words"), BAD.values(), ids=BAD.keys())
def test_a_mistake_is_one_line_and_exit_2(arguments, words, photo, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.jpg").write_text("no image")
    Image.open(photo).save("whole.jpg")
    Path("cut.jpg").write_bytes(Path("whole.jpg").read_bytes()[:700])
    Path("empty").mkdir()
    Path("broken").mkdir()
    Path("broken/x.png").write_text("no image")
    places = {
        "PHOTO": "photo.png",
        "TEXT": "text.jpg",
        "CUT": "cut.jpg",
        "EMPTY": "empty",
        "BROKEN": "broken",
    }
    filled = [places[a] if a in places else a.replace("TEXT/", "text.jpg/") for a in arguments]
    before = sorted(tmp_path.rglob("*"))
    assert main(filled) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("wellcond: ")
    assert captured.err.count("\n") == 1, captured.err
    assert all(word in captured.err for word in words), captured.err
    assert "Traceback" not in captured.err
    assert sorted(tmp_path.rglob("*")) == before  # and nothing was left behind


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EACCES, "may read and write"),
        (errno.EMFILE, "ulimit -n"),
    ],
)
def test_a_full_or_closed_disk_is_one_line(number, words, photo, capsys, monkeypatch):
    def fail(path: Path, content: bytes) -> None:
        raise OSError(number, "the disk says no", str(path))

    monkeypatch.setattr(photos, "write_bytes", fail)
    assert main(["gray", str(photo)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert "photo-grayed.png" in line
    assert words in line


def test_too_little_memory_is_one_line(photo, capsys, monkeypatch):
    def run(config):
        raise MemoryError("Unable to allocate 18.6 TiB")

    monkeypatch.setattr("wellcond.photos.run", run)
    assert main(["gray", str(photo)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "18.6 TiB" in err and "smaller" in err


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
@pytest.mark.parametrize("arguments", [["--help"], ["recipes"], ["gray", "--help"], ["gray", "PHOTO"]], ids=str)
def test_a_reader_who_has_seen_enough_is_no_finding(arguments, photo):
    """`| head -1`: rich ends with 1 then, which among our exit statuses is a finding over a threshold."""
    read, write = os.pipe()
    os.close(read)
    words = [str(photo) if a == "PHOTO" else a for a in arguments]
    command = [sys.executable, "-m", "wellcond", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_without_a_standard_output(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["gray", "--help"]) == 0


def test_help_of_a_verb_by_the_word_help(capsys):
    assert main(["help", "gray"]) == 0
    by_word = capsys.readouterr().out
    assert main(["gray", "--help"]) == 0
    assert by_word == capsys.readouterr().out and "--epsilon" in by_word


def test_interrupt_is_quiet(monkeypatch, photo, capsys):
    def interrupt(config: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(photos, "run", interrupt)
    assert main(["gray", str(photo)]) == 130
    assert capsys.readouterr().err == ""


def test_bench_goes_to_its_module(monkeypatch):
    import types

    seen = []
    module = types.ModuleType("wellcond.bench.spectral")
    module.run = seen.append  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "wellcond.bench.spectral", module)
    assert main(["bench", "spectral", "--device", "cuda", "--quick", "--data", "x.parquet"]) == 0
    assert (seen[0].what, seen[0].device, seen[0].quick, seen[0].data) == (
        "spectral",
        "cuda",
        True,
        Path("x.parquet"),
    )


def test_the_installed_command(photo, tmp_path):
    script = Path(sys.executable).with_name("wellcond")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "wellcond"]
    out = tmp_path / "grayed.jpg"
    done = subprocess.run(
        [*command, "gray", str(photo), "--out", str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "κ before" in done.stdout
    assert "\x1b" not in done.stdout  # no colours into a pipe
    assert Image.open(out).format == "JPEG"
    wrong = subprocess.run([*command, "gray", "nowhere.jpg"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1


def test_no_color_is_respected(monkeypatch, capsys):
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["gray", "--help"]) == 0
    text = capsys.readouterr().out
    assert "--epsilon" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("arguments", [["gray", "PHOTO"], ["gray", "--help"], ["--help"], ["gray", "κ.jpg"]], ids=str)
def test_a_terminal_without_greek_letters_is_served(encoding, arguments, photo):
    words = [str(photo) if a == "PHOTO" else a for a in arguments]
    done = subprocess.run(
        [sys.executable, "-m", "wellcond", *words],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        check=False,
    )
    assert done.returncode == (2 if "κ.jpg" in arguments else 0), done.stderr
    assert b"Traceback" not in done.stderr


def test_help_says_what_graying_does_and_whose_kappa_it_is(capsys):
    main(["gray", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "shrink" not in text
    assert "svd raises small singular values" in text
    assert "unclipped tokens" in text and "saved picture is clipped" in text
    assert "Default:" not in text
