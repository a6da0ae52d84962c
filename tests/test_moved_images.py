"""A run goes on with its images in another place, as after a copy to a job's own folder, if they are the same ones."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from training_cases import final, finish, power_cut, run, start, tiny

from wellcond.cli import main
from wellcond.config import DataConfig, TrainConfig, to_json
from wellcond.data.procedural import procedural
from wellcond.runs import Run
from wellcond.training import checkpoints, config_of

SIZE = 16
COUNTS = {"train": 24, "val": 12}


def config(place: Path | str, cache: Path, **changes) -> TrainConfig:
    data = DataConfig(train=str(place), val=str(place), image_size=SIZE, cache=cache)
    return tiny(model=replace(tiny().model, image_size=SIZE), data=data, **changes)


def copy(place: Path, other: Path) -> Path:
    """With other times, as `cp -r` has them."""
    shutil.copytree(place, other)
    for path in other.rglob("*.png"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    return other


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Pictures of four classes in train/ and val/."""
    folder = tmp_path_factory.mktemp("job-1") / "pictures"
    for half, count in COUNTS.items():
        for i in range(count):
            path = folder / half / f"class-{i % 4}" / f"{i:02}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(procedural(i, size=SIZE, seed=count).image).save(path)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def straight(place, cache, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("straight") / "run"
    run(config(place, cache), out, None)
    return out


@pytest.fixture
def stopped(place, cache, tmp_path, monkeypatch) -> Path:
    """A run that broke off before step 4."""
    with power_cut(monkeypatch, at=4):
        run(config(place, cache), tmp_path / "run", None)
    return tmp_path / "run"


def test_a_copy_goes_on_to_the_same_bits(place, cache, straight, stopped, tmp_path, monkeypatch):
    """From one job's folder to the next, each gone when the next begins."""
    second = copy(place, tmp_path / "job-2" / "pictures")
    with power_cut(monkeypatch, at=7):
        run(config(second, cache), stopped, None)
    third = copy(second, tmp_path / "job-3" / "pictures")
    shutil.rmtree(second)
    run(config(third, cache), stopped, None)
    assert final(stopped) == final(straight)
    assert config_of(Run(stopped)) == config(third, cache)  # where `wellcond evaluate` finds them
    changed = [entry["changed"] for entry in Run(stopped).starts()]
    assert changed == [{}, *({f"data.{half}": str(at) for half in COUNTS} for at in (second, third))]
    before = snapshot(stopped)
    assert run(config(copy(third, tmp_path / "job-4"), cache), stopped, None).top1 is not None  # done already
    assert snapshot(stopped) == before


def test_files_with_other_times_in_the_same_place_go_on(place, cache, straight, tmp_path, monkeypatch):
    own = copy(place, tmp_path / "pictures")
    with power_cut(monkeypatch, at=4):
        run(config(own, cache), tmp_path / "run", None)
    shutil.rmtree(own)
    copy(copy(place, tmp_path / "again"), own)
    run(config(own, cache), tmp_path / "run", None)
    ours, theirs = final(tmp_path / "run"), final(straight)
    assert all(ours[name] == theirs[name] for name in ours if name not in ("state.json", "manifest.json"))


def another_pixel(folder: Path) -> None:
    path = folder / "train" / "class-1" / "01.png"
    picture = Image.open(path).copy()
    picture.putpixel((3, 3), (1, 2, 3))
    picture.save(path)


def another_label(folder: Path) -> None:
    """The last of a class is the first of the next one: the pictures keep their order."""
    (folder / "val" / "class-0" / "08.png").rename(folder / "val" / "class-1" / "00.png")


def another_number(folder: Path) -> None:
    (folder / "val" / "class-3" / "11.png").unlink()


def other_names(folder: Path) -> None:
    for half in COUNTS:
        (folder / half / "class-3").rename(folder / half / "class-4")


def another_class(folder: Path) -> None:
    for half in COUNTS:
        shutil.copytree(folder / half / "class-3", folder / half / "class-4")


@pytest.mark.parametrize(
    ("change", "half", "what"),
    [
        (another_pixel, "train", "pixels"),
        (another_label, "val", "labels"),
        (another_number, "val", "number"),
        (other_names, "train", "classes"),
        (another_class, "train", "number"),  # and not that the model has too few
    ],
)
@pytest.mark.parametrize("done", [False, True])
def test_other_images_are_refused_by_their_field(
    change, half, what, done, place, cache, straight, stopped, tmp_path, capsys
):
    out = stopped
    if done:
        shutil.copytree(straight, out := tmp_path / "done")
    other = copy(place, tmp_path / "other")
    change(other)
    before = snapshot(out)
    (tmp_path / "config.json").write_text(to_json(config(other, cache)))
    assert main(["train", str(tmp_path / "config.json"), "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"data.{half}: the images of {str(other)!r} are not those that {str(out)!r} was " in line
    assert f"(not the same {what}); give a copy of those, or another --out" in line
    assert snapshot(out) == before


def test_a_run_that_recorded_nothing_stays_where_it_is(place, cache, straight, stopped, tmp_path):
    """One that an earlier version began: its place may not change, and by its files' times it is known."""
    path = stopped / "env.json"
    starts = [{k: v for k, v in entry.items() if k != "contents"} for entry in Run(stopped).starts()]
    path.write_text(json.dumps({"starts": starts}))
    before = snapshot(stopped)
    with pytest.raises(ValueError, match=r"is a run with data\.train .*pictures', not .*other' \(and 1 more\)"):
        run(config(copy(place, tmp_path / "other"), cache), stopped, None)
    assert snapshot(stopped) == before
    for _ in range(2):  # what it records from now on is not what it began with
        with pytest.raises(ValueError, match=r"is a run with data\.train"):
            run(config(tmp_path / "other", cache), stopped, None)
        run(config(place, cache), stopped, None)
    assert final(stopped) == final(straight)


def test_an_old_checkpoint_is_known_by_its_files(place, cache, stopped, tmp_path):
    for step in checkpoints.steps(stopped / "checkpoints"):
        folder = stopped / "checkpoints" / checkpoints.name_of(step)
        state = checkpoints.read_state(folder)
        del state["contents"]
        (folder / "state.json").write_text(json.dumps({**state, "data": "other files"}))
        manifest = json.loads((folder / "manifest.json").read_text())
        size, digest = (folder / "state.json").stat().st_size, checkpoints._digest(folder / "state.json")
        manifest["state.json"] = {"bytes": size, "sha256": digest}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"was trained on \(not the same contents\); bring them back"):
        run(config(place, cache), stopped, None)


@pytest.mark.parametrize(("name", "same"), [("procedural:040", True), ("procedural:48", False)])
def test_generated_images_are_known_by_content_too(name, same, cache, tmp_path, monkeypatch):
    what = config("procedural:40", cache)
    what = replace(what, model=replace(what.model, num_classes=10))
    with power_cut(monkeypatch, at=4):
        run(what, tmp_path / "run", None)
    other = replace(what, data=replace(what.data, train=name, val=name))
    if same:
        run(other, tmp_path / "run", None)
    else:
        with pytest.raises(ValueError, match=r"data\.train: the images of 'procedural:48' .*\(not the same number\)"):
            run(other, tmp_path / "run", None)


def test_two_processes(place, cache, tmp_path):
    what, other = config(place, cache), copy(place, tmp_path / "other")
    assert finish(start(what, tmp_path / "straight", None, world_size=2)) == [0, 0]
    assert any(finish(start(what, tmp_path / "run", None, world_size=2, fault=("before a step", 5))))
    before = snapshot(tmp_path / "run")
    another_pixel(changed := copy(place, tmp_path / "changed"))
    assert all(finish(start(config(changed, cache), tmp_path / "run", None, world_size=2)))
    assert snapshot(tmp_path / "run") == before
    assert finish(start(config(other, cache), tmp_path / "run", None, world_size=2)) == [0, 0]
    assert final(tmp_path / "run") == final(tmp_path / "straight")
