"""`wellcond gray` on folders and odd files: no photo is written over, nothing is skipped in silence."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from wellcond.cli import main
from wellcond.data import files
from wellcond.data.folders import FolderSource
from wellcond.data.ours import told


@pytest.fixture
def folder(photo: Path) -> Path:
    """A folder with the photo a.png."""
    path = photo.parent / "photos"
    path.mkdir()
    shutil.copy(photo, path / "a.png")
    return path


def test_what_gray_left_beside_a_photo_is_no_photo_to_others(folder, photo, tmp_path):
    assert main(["gray", str(folder / "a.png")]) == 0  # a-grayed.png, a-strip.png
    assert main(["gray", str(folder), "--out", str(tmp_path / "out")]) == 0  # a.png, a-strip.png
    shutil.copy(photo, folder / "b-strip.png")  # beside no b, and not ours
    source = FolderSource(folder)
    assert [path.name for path in source.paths] == ["a.png", "b-strip.png"]
    assert told(source).startswith("ignored 2 of folder:photos that wellcond gray left there")
    assert [path.name for path in FolderSource(tmp_path / "out").paths] == ["a.png"]


def contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("name", ["a.png", "a-strip.png"])
def test_a_photo_in_the_output_folder_survives(folder, name, photo, capsys):
    (folder / "best").mkdir()
    shutil.copy(photo, folder / "best" / name)
    before = contents(folder)
    assert main(["gray", str(folder), "--out", str(folder / "best")]) == 2
    line = capsys.readouterr().err
    assert name in line and "--out" in line
    assert contents(folder) == before


def test_a_photo_behind_a_link_survives(folder, photo, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (folder / "deep").mkdir()
    shutil.copy(photo, folder / "deep" / "b.png")
    (out / "deep").symlink_to(folder / "deep")
    before = contents(folder)
    assert main(["gray", str(folder), "--out", str(out)]) == 2
    assert contents(folder) == before


@pytest.mark.parametrize("out", [".", ".."])
def test_out_may_not_hold_the_photos(folder, out, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["gray", ".", "--out", out]) == 2
    assert "holds the photos themselves" in capsys.readouterr().err


def test_whatever_is_wrong_with_a_file_is_told_and_counted_alike(folder, capsys, monkeypatch):
    (folder / "broken.jpg").write_bytes(b"no image")
    Image.new("RGB", (8, 8)).save(folder / "small.png")
    shutil.copy(folder / "a.png", folder / "secret.png")
    opened = Image.open

    def deny(path, *rest):
        if Path(path).name == "secret.png":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *rest)

    monkeypatch.setattr(files.Image, "open", deny)
    assert main(["gray", str(folder)]) == 0
    captured = capsys.readouterr()
    assert "1 grayed, 3 skipped" in captured.out
    names = [f"skipped {str(folder / name)!r}: " for name in ("broken.jpg", "secret.png", "small.png")]
    assert all(line.startswith(tuple(names)) for line in captured.err.splitlines())
    assert all(name in captured.err for name in names)


def test_a_size_that_does_not_fit_stops_before_work(folder, tmp_path, capsys):
    Image.new("RGB", (70, 64)).save(folder / "odd.png")
    assert main(["gray", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert "--crop" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("closed", ["photos", "deep"])
def test_a_folder_that_may_not_be_read_is_named(folder, closed, capsys, monkeypatch):
    (folder / "deep").mkdir()
    scan = os.scandir

    def deny(path):
        if Path(path).name == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", deny)
    assert main(["gray", str(folder)]) == (2 if closed == "photos" else 0)
    captured = capsys.readouterr()
    assert closed in captured.err and "Permission denied" in captured.err
    assert closed == "photos" or "1 grayed, 1 skipped" in captured.out


def test_what_an_earlier_run_left_beside_a_photo_is_ignored(folder, tmp_path, capsys):
    assert main(["gray", str(folder / "a.png")]) == 0
    shutil.copy(folder / "a.png", folder / "film-strip.png")  # no photo "film" is beside it
    capsys.readouterr()
    out = tmp_path / "out"
    assert main(["gray", str(folder), "--out", str(out)]) == 0
    assert "ignored 2 of an earlier run" in capsys.readouterr().out
    rows = json.loads((out / "kappa.json").read_text())
    assert [Path(row["image"]).name for row in rows] == ["a.png", "film-strip.png"]


def test_a_picture_that_is_not_ours_is_neither_ignored_nor_written_over(folder, tmp_path, capsys):
    """Only our own pictures carry our mark; a name that ends as theirs do says nothing."""
    for name in ("a-strip.png", "b.png"):
        shutil.copy(folder / "a.png", folder / name)
    before, out = contents(folder), tmp_path / "out"
    assert main(["gray", str(folder), "--out", str(out)]) == 0
    assert {Path(row["image"]).name for row in json.loads((out / "kappa.json").read_text())} == {p.name for p in before}
    for arguments, name in (([folder / "a.png"], "a-strip.png"), ([out, "--out", folder], "a-strip.png")):
        assert main(["gray", *map(str, arguments)]) == 2
        assert f"{name}' would be written over" in capsys.readouterr().err
        assert contents(folder) == before
    assert main(["gray", str(folder / "a.png"), "--out", str(folder / "b.png")]) == 0  # named, so meant


def test_a_format_that_cannot_hold_the_picture_is_told(tmp_path, capsys):
    Image.new("RGB", (16400, 16)).save(tmp_path / "wide.png")
    assert main(["gray", str(tmp_path / "wide.png"), "--out", str(tmp_path / "out.webp")]) == 2
    assert "out.webp': WEBP cannot hold 16400×16 pixels" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["wide.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_at_once(tmp_path, capsys, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    monkeypatch.setattr(files.Image, "open", lambda path: pytest.fail("opened, which would wait for ever"))
    assert main(["gray", str(tmp_path / "pipe.jpg")]) == 2
    assert "is a pipe" in capsys.readouterr().err


@pytest.mark.parametrize("width", [30, 50])
def test_a_narrow_terminal_keeps_the_names(folder, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    (folder / "deep").mkdir()
    shutil.copy(folder / "a.png", folder / "deep" / "a.png")
    assert main(["gray", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "log κ" not in text
    assert "κ after" in text and "a.png" in text
    assert ("deep/a.png" in text) == (width == 50)


def test_the_table_says_whose_kappa_it_is_and_what_was_clipped(folder, capsys):
    assert main(["gray", str(folder / "a.png"), "--epsilon", "0.7"]) == 0
    pixels = np.asarray(Image.open(folder / "a-grayed.png"))
    share = np.mean((pixels == 0) | (pixels == 255))
    line = f"κ is that of the ImageNet-normalised, unclipped tokens; the saved picture is clipped ({100 * share:.1f} %"
    assert line in capsys.readouterr().out


def test_infinity_has_one_spelling(tmp_path, capsys):
    Image.new("RGB", (64, 64), "red").save(tmp_path / "flat.png")
    assert main(["gray", str(tmp_path / "flat.png")]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "flat.png" in line)
    assert "inf" not in row
    assert row.count("∞") == 4


def test_no_rescaling_explains_its_uniform_picture(folder, capsys):
    assert main(["gray", str(folder / "a.png"), "--rescale", "false", "--method", "svd"]) == 0
    assert "σ_max is 1, so the picture is nearly uniform" in capsys.readouterr().out
