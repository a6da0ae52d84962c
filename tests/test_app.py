"""`wellcond app` from inside: what its tabs show, the port, and mistakes in one line."""

import errno
import html
import json
import math
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from run_cases import config, write_run
from safetensors.torch import save_file

pytest.importorskip("gradio", reason="gradio is not installed")

from wellcond import report
from wellcond.app import catalogue, figures, model, photo, serving, watch
from wellcond.blocks import find_blocks
from wellcond.cli import main
from wellcond.config import AppConfig
from wellcond.data.procedural import procedural

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def log_kappa(pixels: np.ndarray, patch: int) -> float:
    """By numpy in float64, patch by patch."""
    normal = (pixels / 255.0 - MEAN) / STD
    rows = [
        normal[y : y + patch, x : x + patch].ravel()
        for y in range(0, pixels.shape[0], patch)
        for x in range(0, pixels.shape[1], patch)
    ]
    sigma = np.linalg.svd(np.stack(rows), compute_uv=False)
    return float(np.log(sigma[0] / sigma[-1]))


def test_a_built_in_picture_has_its_own_kappa_and_epsilon_times_that():
    shown = photo.grayed(None, photo.BUILT_IN[3], "svd", 0.6, 16)
    expected = log_kappa(procedural(3, size=photo.SIDE).image, 16)
    assert shown.spectrum_before.log_kappa == pytest.approx(expected, rel=1e-4)
    assert shown.spectrum_after.log_kappa == pytest.approx(0.6 * expected, rel=1e-3)
    text = photo.pictures(shown, "svd", 0.6)
    assert text.count("data:image/png;base64,") == 2 and f"log κ {expected:.2f}" in text
    assert 'src="data:' in text and "file=" not in text
    drawn = json.loads(figures.plot(photo.spectra(shown, "svd", 0.6)).plot)
    assert [trace["name"] for trace in drawn["data"]] == ["original", "SVD 0.6"]
    assert drawn["data"][0]["y"][-1] == pytest.approx(math.exp(-expected), rel=1e-3)


def test_an_uploaded_photo_is_turned_made_smaller_and_cut(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (500, 1000, 3), np.uint8)
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6  # lies on its side
    image.save(tmp_path / "wide.jpg", exif=exif)
    shown = photo.grayed(str(tmp_path / "wide.jpg"), "", "dct", 0.9, 32)
    assert shown.before.shape == (384, 192, 3)
    assert shown.spectrum_before.log_kappa == pytest.approx(log_kappa(shown.before, 32), rel=1e-4)


def test_flat_pictures_have_no_kappa_and_no_error(tmp_path):
    for value in (0, 127):
        Image.new("RGB", (64, 64), (value,) * 3).save(tmp_path / "flat.png")
        shown = photo.grayed(str(tmp_path / "flat.png"), "", "svd", 0.7, 16)
        assert "rank-deficient" in photo.pictures(shown, "svd", 0.7)
        assert figures.plot(photo.spectra(shown, "svd", 0.7)).type == "plotly"


@pytest.mark.parametrize(
    "values",
    [("svd", 0.0, 16), ("svd", 1.5, 16), ("svd", math.nan, 16), ("svd", True, 16), ("svd", "x", 16), ("fft", 0.7, 16),
     ("svd", 0.7, 7), ("svd", None, 16), (None, 0.7, 16)],
)  # fmt: skip
def test_odd_settings_are_told(values):
    with pytest.raises(ValueError, match="choose"):
        photo.grayed(None, photo.BUILT_IN[0], *values)


def test_odd_photos_are_told(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "small.png")
    Image.fromarray(procedural(0, size=64).image).save(tmp_path / "torn.png")
    (tmp_path / "torn.png").write_bytes((tmp_path / "torn.png").read_bytes()[:900])
    for name in ("small.png", "torn.png"):
        with pytest.raises(ValueError, match=r"smaller|damaged") as told:
            photo.grayed(str(tmp_path / name), "", "svd", 0.7, 16)
        assert str(tmp_path) not in str(told.value) and "\n" not in str(told.value)
    with pytest.raises(ValueError, match="list"):
        photo.grayed(None, "../x", "svd", 0.7, 16)


def test_a_diagnosis_is_the_table_and_the_report():
    diagnosis = model.diagnosis_of("test_vit", None, False, 2, False)
    assert diagnosis.num_images == 2 and not diagnosis.jacobians and diagnosis.weights == "random"
    page = model.page_of(diagnosis)
    table = page.split("<iframe")[0]
    first = {row.site: row for row in diagnosis.rows if row.layer == 0 and row.quantity == "log_kappa"}
    assert table.count("<tr>") == 1 + 6 and "<th>sab_out</th>" in table
    assert f"<td>0</td><td>{first['sab_in'].value:.2f}</td><td>∞</td>" in table
    frame = html.unescape(page.split('srcdoc="')[1].rsplit('"></iframe>', 1)[0])
    assert frame.startswith("<!doctype html>") and "Conditioning of test_vit" in frame
    assert 'sandbox="allow-scripts"' in page


def test_uploaded_weights_are_measured_as_they_were_trained(tmp_path):
    torch.manual_seed(1)
    weights = timm.create_model("test_vit", num_classes=7).state_dict()
    path = tmp_path / "mine.safetensors"
    save_file(weights, path, metadata={"wellcond": json.dumps({"cut": "both"})})
    diagnosis = model.diagnosis_of("test_vit", str(path), False, 2, False)
    assert diagnosis.weights == "mine.safetensors" and "without skips" in diagnosis.model
    with pytest.raises(ValueError, match=r"'mine\.safetensors' holds no weights of vit_tiny") as told:
        model.diagnosis_of("vit_tiny_patch16_224", str(path), False, 2, False)
    assert str(tmp_path) not in str(told.value)
    with pytest.raises(ValueError, match="pretrained"):
        model.diagnosis_of("test_vit", str(path), True, 2, False)


def test_models_too_large_and_too_many_images_are_refused():
    with pytest.raises(ValueError, match="wellcond diagnose vit_giant"):
        model.diagnosis_of("vit_giant_patch14_224", None, False, 2, False)
    for count in (0, 33, True, None, math.nan):
        with pytest.raises(ValueError, match="number of images"):
            model.diagnosis_of("test_vit", None, False, count, False)  # pyright: ignore[reportArgumentType]


def test_the_list_holds_what_can_be_diagnosed():
    names = catalogue.diagnosable()
    assert catalogue.DEFAULT in names and "resnet50" not in names
    left_out = sorted(set(timm.list_models(module="vision_transformer")) - set(names))
    firsts = [next(n for n in timm.list_models(module=module) if n in names) for module in catalogue.MODULES]
    with torch.device("meta"):
        for name in firsts:
            assert find_blocks(timm.create_model(name))
        for name in (left_out[0], left_out[-1]):
            with pytest.raises(ValueError, match="cannot be adapted"):
                find_blocks(timm.create_model(name))


def test_a_run_is_shown_while_it_grows(tmp_path):
    run = write_run(tmp_path / "runs" / "a", config(), epochs=2, finished=False)
    root, metrics = tmp_path / "runs", run / "metrics.jsonl"
    whole = metrics.read_bytes()
    metrics.write_bytes(whole[: len(whole) // 2])  # torn in the middle of a line
    path = watch.locate(root, "a")
    early, first = watch.story(path), watch.signature(path)
    assert early.step < 20 and watch.story(path) is early
    metrics.write_bytes(whole + b'{"kind":"train","step":25,"ep')
    assert watch.signature(path) != first
    told = watch.story(path)
    assert told.step == 20
    assert watch.headline(told, "a") == "a: epoch 2 of 4 · step 20 · loss 1.55 · top-1 60.0 %"
    drawn = {name: f for name, f in watch.figures(told).items() if f is not None}
    assert list(drawn) == ["loss", "top-1", "κ"]
    curves = {
        n: json.loads(figures.plot(f, **figures.option(f, "quantity", "top-1 (%)")).plot) for n, f in drawn.items()
    }
    assert curves["loss"]["data"][0]["y"][-1] == pytest.approx(2.3 - 1.5 * 20 / 40, rel=1e-4)
    assert curves["top-1"]["data"][0]["y"] == [30.0, 60.0]
    assert curves["top-1"]["layout"]["yaxis"]["title"]["text"] == "top-1 (%)"
    assert curves["κ"]["data"][0]["y"] == pytest.approx([6.1, 6.2])


def test_a_run_that_has_just_begun(tmp_path):
    run = write_run(tmp_path / "a", config(), epochs=0, finished=False)
    (run / "metrics.jsonl").unlink()
    told = watch.story(watch.locate(tmp_path, "a"))
    line = watch.headline(told, "a")
    assert line.startswith("a: begun") and "no κ yet" in line and str(tmp_path) not in line
    assert set(watch.figures(told).values()) == {None}


def test_runs_are_found_the_last_changed_first(tmp_path):
    assert watch.find_runs(tmp_path / "none") == []
    for number, name in enumerate(("old", "deep/er/new", ".hidden", "a/b/c/too-deep")):
        run = write_run(tmp_path / name, config(), epochs=1)
        for file in run.iterdir():
            os.utime(file, (1000 + number, 1000 + number))
    assert watch.find_runs(tmp_path) == ["deep/er/new", "old"]


def test_of_a_figure_with_choices_only_the_chosen_is_drawn():
    data = [{"y": [1.0, math.nan], "when": {"a": 0}}, {"y": [2.0], "when": {"a": 1}}, {"y": [3.0]}]
    figure = report.Figure(
        data=data,
        layout={"yaxis": {"type": "log"}},
        layouts=[({"a": 0}, {"yaxis": {"title": {"text": "zero"}}}), ({"a": 1}, {"yaxis": {"title": {"text": "one"}}})],
        choices=[report.Choice(name="a", options=["zero", "one"])],
    )
    drawn = json.loads(figures.plot(figure).plot)
    assert drawn["data"] == [{"y": [1.0, None]}, {"y": [3.0]}]
    drawn = json.loads(figures.plot(figure, **figures.option(figure, "a", "one")).plot)
    assert drawn["data"] == [{"y": [2.0]}, {"y": [3.0]}]
    assert drawn["layout"]["yaxis"]["title"]["text"] == "one" and drawn["layout"]["yaxis"]["type"] == "log"
    assert figures.option(figure, "a", "two") == {}


@pytest.fixture
def not_served(monkeypatch):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: None)


def test_a_taken_port_is_said_and_the_next_one_used(not_served, tmp_path, capsys):
    with serving.bound("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["app", "--runs", str(tmp_path), "--port", str(port)]) == 0
        out = capsys.readouterr().out
        assert f"port {port} is taken" in out and f"http://127.0.0.1:{port}" not in out.replace(f"{port}0", "")
        with serving.bound("127.0.0.1", port) as other:
            assert other.getsockname()[1] > port


def test_listening_to_everyone_is_said(not_served, tmp_path, capsys):
    assert main(["app", "--runs", str(tmp_path), "--port", "0", "--host", "0.0.0.0"]) == 0
    assert "no password" in capsys.readouterr().out
    assert main(["app", "--runs", str(tmp_path), "--port", "0"]) == 0
    out = capsys.readouterr().out
    assert "no password" not in out and "http://127.0.0.1:" in out


def test_nothing_is_left_behind(tmp_path):
    before = dict(os.environ)
    with serving.listening(AppConfig(runs=tmp_path, port=0)) as (server, _):
        folder = Path(os.environ["GRADIO_TEMP_DIR"])
        assert folder.is_dir() and folder.stat().st_mode & 0o077 == 0
        assert server.config.app.uploads == folder.resolve()  # pyright: ignore
    assert not folder.exists()
    assert {k: v for k, v in os.environ.items() if k.startswith("GRADIO")} == {
        k: v for k, v in before.items() if k.startswith("GRADIO")
    }


MISTAKES = {
    "no such address": (["--host", "192.0.2.1", "--port", "0"], "192.0.2.1"),
    "no such name": (["--host", "no such host"], "no such host"),
    "empty host": (["--host", " "], "host"),
    "port": (["--port", "70000"], "70000"),
    "size": (["--max-upload", "0"], "max upload is 0"),
    "runs is a file": (["--runs", __file__], "test_app.py"),
    "runs is nowhere": (["--runs", "nowhere"], "'nowhere', and there is no such folder; name"),
    "typo": (["--prot", "1"], "'--port'"),
}


@pytest.mark.parametrize(("arguments", "said"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_one_line(arguments, said, not_served, capsys):
    assert main(["app", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_before_the_first_run_there_is_no_folder_of_runs(not_served, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["app", "--port", "0"]) == 0
    assert "http://127.0.0.1:" in capsys.readouterr().out


def test_without_gradio_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["app"]) == 2
    error = capsys.readouterr().err
    assert "pip install" in error and "'.[app]'" in error and error.count("\n") == 1


def test_all_ports_taken(monkeypatch):
    def busy(self, where):
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(socket.socket, "bind", busy)
    with pytest.raises(ValueError, match="--port"), serving.bound("127.0.0.1", 7860):
        pass
