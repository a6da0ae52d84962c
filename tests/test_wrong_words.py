"""Every verb of `wellcond --help` with a typo, a missing file and no arguments, and places that cannot be written.

One table: what is typed → words of the one line that answers it. A new verb without its rows fails the first test.
Mistakes that need a verb's own data are in that verb's tests.
"""

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from run_cases import config, write_run

from wellcond import recipes
from wellcond.cli import VERBS, main
from wellcond.recipes.starting import parse
from wellcond.runs import Run
from wellcond.training.beginning import check_resume

NEEDS_NOTHING = {"recipes", "demo", "app", "doctor"}  # whose bare command is a whole one
QUICK = ["--quick", "--count", "1", "--size", "64"]

TYPOS = {  # verb: (typed, option meant); every verb's own name is misspelt by the test itself
    "gray": (["gray", "photo.png", "--methd", "svd"], "--method"),
    "diagnose": (["diagnose", "test_vit", "--wieghts", "x"], "--weights"),
    "recipes": (["recipes", "--jsn"], "--json"),
    "train": (["train", "procedural-vit", "--optim.lrx", "1"], "--optim.lr"),
    "evaluate": (["evaluate", "run", "--wiht", "knn"], "--with"),
    "report": (["report", "run", "--otu", "x.html"], "--out"),
    "push": (["push", "run", "me/x", "--dyr-run"], "--dry-run"),
    "demo": (["demo", "--qiuck"], "--quick"),
    "app": (["app", "--prot", "1"], "--port"),
    "bench": (["bench", "graying", "--devcie", "cpu"], "--device"),
    "reproduce": (["reproduce", "asa-kappa", "--sedes", "3"], "--seeds"),
    "doctor": (["doctor", "--josn"], "--json"),
    "completion": (["completion", "bash", "--hlep"], "--help"),
}
MISSING = {  # verb: (typed, words)
    "gray": (["gray", "nowhere.jpg"], ["'nowhere.jpg'", "check the path"]),
    "diagnose": (["diagnose", "test_vit", "--weights", "nowhere.pth"], ["'nowhere.pth'", "check the path"]),
    "recipes": (["recipes", "nowhere"], ["'nowhere'", "wellcond recipes"]),
    "train": (["train", "nowhere.json"], ["'nowhere.json'", "wellcond recipes"]),
    "evaluate": (["evaluate", "nowhere", "--with", "knn"], ["'nowhere'", "name the --out"]),
    "report": (["report", "nowhere"], ["'nowhere'", "name run directories"]),
    "push": (["push", "nowhere", "me/x", "--dry-run"], ["'nowhere'", "name the --out"]),
    "demo": (["demo", "--out", "text"], ["'text/report.html'", "name another folder"]),  # it reads no file
    "app": (["app", "--runs", "nowhere"], ["'nowhere'", "name the one that holds run directories"]),
    "bench": (["bench", "tokencut", "--data", "nowhere"], ["'nowhere'", "a folder of images"]),
    "reproduce": (["reproduce", "asa-kappa", "--collect", "nowhere"], ["nowhere/asa-kappa.json", "name the folder"]),
    "doctor": (["doctor", "nowhere"], ["'nowhere'", "wellcond doctor --help"]),  # it reads no file
    "completion": (["completion", "nowhere"], ["'nowhere'", "choose one of bash, zsh, fish"]),  # nor does it
}
CHOICES = {
    "claim": (["reproduce", "cts-tabel1"], ["'cts-tabel1'", "did you mean 'cts-table1'?"]),
    "judge": (["evaluate", "run", "--with", "discovry"], ["--with is 'discovry'", "did you mean 'discovery'?"]),
    "after a bare --": (["gray", "photo.png", "--", "--out"], ["unknown argument '--out'", "see wellcond gray --help"]),
    "bench": (["bench", "tokncut"], ["'tokncut'", "did you mean 'tokencut'?"]),
    "recipe": (["train", "procedurl-vit"], ["'procedurl-vit'", "procedural-vit"]),
    "capitals": (["gray", "photo.png", "--method", "SVD"], ["'SVD'", "did you mean 'svd'?"]),
    "nothing near": (["gray", "photo.png", "--method", "fft"], ["'fft'", "choose one of svd, dct"]),
}
TRAIN = ["train", "procedural-vit", "--out", "new"]
VALUES = {
    "frequency": (
        [*TRAIN, "--optim.name", "soap", "--optim.precondition-frequency", "0"],
        "precondition_frequency is 0",
    ),
    "pretrained": ([*TRAIN, "--pretrained", "nowhere"], "pretrained is 'nowhere', which is no run"),
    "annealing": ([*TRAIN, "--model.anneal-skips", "2"], "model.anneal_skips is 2.0; choose it in [0, 1]"),
    "c": ([*TRAIN, "--model.init.c", "-1"], "init.c is -1.0; choose a positive number"),
    "a seed of 80 bits": ([*TRAIN, "--seed", "9" * 24], f"--seed is {'9' * 24}, too large a number"),
    "images without end": (["diagnose", "test_vit", "--images", "9" * 400], "--images is 999999999999999999999999999…"),
    "a side without end": (["gray", "photo.png", "--resize", "9" * 400], "too large a number"),
    "a short option": (["push", "run", "-x"], "push needs a run directory and a name"),
    "half a pair": ([*TRAIN, "--optim.betas", "0.9"], "--optim.betas needs 2 values"),
    "no number": ([*TRAIN, "--model.init.c", "x"], "--model.init.c is 'x', which cannot be read"),
    "mask": (["train", "procedural-mae", "--out", "new", "--mae.mask", "1.5"], "mae.mask is 1.5; choose it in (0, 1)"),
    "crop": (
        ["train", "procedural-dino", "--out", "new", "--dino.local-size", "3"],
        "dino.local_size is 3, which patches of 8 do not divide",
    ),
    "a head without end": (
        ["train", "procedural-dino", "--out", "new", "--data", "procedural:8", "--dino.out-dim", "1" + "0" * 15],
        "look at the --model and --dino options",
    ),
    "options of another model": (
        [*TRAIN, "--data", "procedural:8", "--model.name", "swin_tiny_patch4_window7_224"],
        "give those that it has, --model.options NAME VALUE",
    ),
    "no run": (["evaluate"], "evaluate needs a run directory: wellcond evaluate runs/x"),
    "layers of accuracy": (["evaluate", "run", "--layers", "99"], "leave layers out"),
    "talking heads": (
        ["diagnose", "cait_xxs24_224", "--init", "--initialize", "skipless", "--images", "1", "--device", "cpu"],
        "use a ViT",
    ),
}
PLACES = {  # (typed before the place, a name for it); each is tried as a file, under one, and where nobody may write
    "gray": (["gray", "photo.png", "--out"], "x.png"),
    "diagnose": (["diagnose", "test_vit", "--out"], "x"),
    "diagnose, the page": (["diagnose", "test_vit", "--html"], "x.html"),
    "diagnose, the numbers": (["diagnose", "test_vit", "--json"], "x.json"),
    "train": (["train", "procedural-vit", "--out"], "x"),
    "evaluate": (["evaluate", "run", "--html"], "x.html"),
    "report": (["report", "run", "--out"], "x.html"),
    "demo": (["demo", *QUICK, "--out"], "x"),
    "bench": (["bench", "graying", "--quick", "--out"], "x"),
    "reproduce": (["reproduce", "asa-proxy", "--quick", "--out"], "x"),
    "reproduce, the page": (["reproduce", "asa-proxy", "--quick", "--out", "results", "--html"], "x.html"),
}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A picture, a run without weights, and a file of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Image.fromarray(np.full((64, 64, 3), 128, np.uint8)).save("photo.png")
    write_run(Path("run"), config())
    Path("text").write_text("mine")
    return tmp_path


def answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line; nothing else is said, written, replaced or left behind."""
    before = files()
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("wellcond: ") and captured.err.count("\n") == 1, captured.err
    assert "Error parsing" not in captured.err and "Traceback" not in captured.err
    assert files() == before
    return captured.err


def files() -> dict[Path, bytes]:
    return {p: p.read_bytes() if p.is_file() else b"" for p in Path().rglob("*")}


def test_every_verb_is_in_the_tables():
    assert set(TYPOS) == set(MISSING) == set(VERBS)
    assert {name.split(",")[0] for name in PLACES} == set(VERBS) - {"recipes", "push", "app", "doctor", "completion"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_misspelt_verb(verb, place, capsys):
    assert f"did you mean {verb!r}?" in answer([f"{verb}x"], capsys)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in NEEDS_NOTHING])
def test_no_arguments(verb, place, capsys):
    assert f"{verb} needs " in (line := answer([verb], capsys)) and f"wellcond {verb}" in line


@pytest.mark.parametrize(("words", "meant"), TYPOS.values(), ids=TYPOS)
def test_a_misspelt_option(words, meant, place, capsys):
    assert f"did you mean {meant!r}?" in answer(words, capsys)


@pytest.mark.parametrize(("words", "said"), [*MISSING.values(), *CHOICES.values()], ids=[*MISSING, *CHOICES])
def test_a_missing_file_or_a_misspelt_choice(words, said, place, capsys):
    line = answer(words, capsys)
    assert all(word in line for word in said), line


@pytest.mark.parametrize(("words", "said"), VALUES.values(), ids=VALUES)
def test_a_wrong_value(words, said, place, capsys):
    assert said in answer(words, capsys)


@pytest.mark.parametrize(("words", "name"), PLACES.values(), ids=PLACES)
def test_places_that_cannot_be_written(words, name, place, capsys, monkeypatch):
    """Said before the work: nothing is measured, so each costs no more than its imports."""
    for where in ("text", f"text/{name}"):
        line = answer([*words, where], capsys)
        assert "'text" in line and any(word in line for word in ("folder", "ends in", "end it in")), line

    def closed(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("wellcond.atomic.tempfile.TemporaryFile", closed)
    monkeypatch.setattr("wellcond.atomic.tempfile.mkstemp", closed)
    line = answer([*words, name], capsys)
    assert f"'{name}" in line or "'results/" in line, line
    assert "Permission denied" in line and "place" in line, line


def test_a_page_of_a_run_is_not_replaced_by_another(place, capsys):
    Path("run/report.html").write_text("the run's")
    for words in (["diagnose", "test_vit", "--out", "run"], ["demo", *QUICK, "--out", "run"]):
        assert "report.html would be lost" in answer(words, capsys)


def test_a_changed_config_names_what_the_user_changed(tmp_path):
    """Epochs, and not the warm-up that follows them."""
    command = parse(["procedural-vit", "--epochs", "12"])
    run = Run(tmp_path / "run")
    assert command is not None
    write_run(run.path, recipes.get("procedural-vit"))
    with pytest.raises(ValueError, match=r"is a run with epochs 6, not 12 \(and 1 more\)"):
        check_resume(run, command.config)
    (run.path / "config.json").rename(run.path / "lost.json")
    with pytest.raises(ValueError, match="holds files and no run"):
        check_resume(run, command.config)


@pytest.mark.parametrize("content", ["{", "[1]", "\xff"])
def test_damaged_small_files_are_named(content, tmp_path):
    run = Run(write_run(tmp_path / "run", config()))
    for name, read in (("summary", run.read_summary), ("env", run.starts), ("evaluation", run.evaluations)):
        (run.path / f"{name}.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(ValueError, match=rf"{name}\.json' is damaged; move it away"):
            read()
    (run.path / "config.json").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"config\.json' cannot be read"):
        run.read_config()


def test_a_warning_is_one_line_without_its_place(capsys, monkeypatch):
    monkeypatch.setattr("wellcond.recipes.showing.run", lambda _: warnings.warn("this\nand that", stacklevel=1))
    assert main(["recipes"]) == 0
    assert capsys.readouterr().err == "warning: this and that\n"
