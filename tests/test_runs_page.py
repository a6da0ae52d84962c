"""The page of training runs: grouped by config, whole or torn, with and without probes."""

import json
import statistics
from pathlib import Path
from typing import TypeVar

import pytest
from run_cases import BLOCKS, EPOCHS, STEPS, config, grayed, without_attention_skip, write_run
from training_cases import run as train_tiny
from training_cases import tiny

from wellcond import recipes, report, runs_page
from wellcond.cli import main
from wellcond.data.procedural import procedural
from wellcond.runs_page import build, gather
from wellcond.runs_page.groups import group
from wellcond.runs_page.reading import read

CUT = "--model.cut-attention-skips"
Kind = TypeVar("Kind", report.Table, report.Figure, report.Cards, report.Gallery)


def page_of(*paths: Path) -> tuple[report.Report, list[str]]:
    stories, troubles = gather(paths)
    return build(stories, troubles)


def item(page: report.Report, title: str, kind: type[Kind]) -> Kind:
    return next(i for s in page.sections if s.title == title for i in s.items if isinstance(i, kind))


def tables(page: report.Report, title: str = "Runs") -> list[report.Table]:
    return [i for s in page.sections if s.title == title for i in s.items if isinstance(i, report.Table)]


def titles(page: report.Report) -> list[str]:
    return [section.title for section in page.sections]


def drawn(figure: report.Figure, **choice: int) -> list:
    """The traces that are drawn with this choice; others at their start."""
    state = {c.name: c.start for c in figure.choices} | choice
    return [t for t in figure.data if all(state.get(name, value) == value for name, value in t["when"].items())]


@pytest.fixture
def family(tmp_path: Path) -> list[Path]:
    """Two seeds with all skips, one run without attention's, one grayed."""
    base = config()
    return [
        write_run(tmp_path / "a0", base, top1=60),
        write_run(tmp_path / "a1", config(seed=1), top1=64),
        write_run(tmp_path / "cut", without_attention_skip(base), top1=12, collapsed=True, typed=CUT),
        write_run(tmp_path / "dct", grayed(base, "dct", 0.95), top1=63, typed="--model.graying.method dct"),
    ]


def test_seeds_of_a_config_are_one_group(family):
    groups = group([read(path) for path in family])
    assert [(g.name, len(g.stories)) for g in groups] == [
        ("a", 2), ("cut: cut attention", 1), ("dct: graying.method dct", 1)
    ]  # fmt: skip
    assert len({(g.colour, g.dash) for g in groups}) == 3


def test_what_does_not_decide_the_result_does_not_part_runs(tmp_path):
    data = config().data
    paths = [
        write_run(tmp_path / "a", config()),
        write_run(tmp_path / "b", config(seed=1, device="cpu", data=type(data)(**{**vars(data), "cache": tmp_path}))),
    ]
    assert len(group([read(path) for path in paths])) == 1


def test_many_configs_have_names_and_styles_of_their_own(tmp_path):
    optim = config().optim
    paths = [
        write_run(tmp_path / f"run{n}", config(optim=type(optim)(lr=n * 1e-3)), probes=False, typed="--optim.lr=x")
        for n in range(1, 31)
    ]
    groups = group([read(path) for path in paths])
    assert len({g.name for g in groups}) == 30 and groups[1].name == "run2: optim.lr 0.002"
    assert len({(g.colour, g.dash) for g in groups}) >= 25


def named(*paths: Path) -> list[str]:
    return [g.name for g in group([read(path) for path in paths])]


def test_a_name_says_what_was_typed_and_nothing_that_follows_from_it(tmp_path):
    """Fewer epochs shorten the warm-up with them; another recipe brings dozens of fields along."""
    plain = write_run(tmp_path / "vit-seed0", recipes.get("procedural-vit"))
    short = write_run(tmp_path / "short", recipes.get("procedural-vit", epochs=3), typed="--epochs 3")
    assert named(plain, short) == ["vit-seed0: epochs 6", "short: epochs 3"]
    mae = write_run(tmp_path / "procedural-mae-seed0", recipes.get("procedural-mae"))
    assert named(plain, mae) == ["vit-seed0: procedural-vit", "procedural-mae-seed0"]
    assert named(plain) == ["vit-seed0"]


def test_a_name_where_no_command_tells_what_was_typed(tmp_path):
    """A script of somebody's own: all that differs between runs of one recipe, but no more than three of it."""
    optim = config().optim
    changes = {"lr": 0.5, "weight_decay": 0.1, "clip": 1.0, "warmup_epochs": 1.0}
    paths = [
        write_run(tmp_path / "a", config()),
        write_run(tmp_path / "b", config(optim=type(optim)(**{**vars(optim), **changes}))),
    ]
    (paths[1] / "env.json").write_text(json.dumps({"starts": [{"command": "python mine.py --optim.lr"}]}))
    said = "b: optim.lr 0.5, optim.weight_decay 0.1, optim.clip 1, 1 more"
    assert named(*paths) == ["a: optim.lr 0.001, optim.weight_decay 0.05, optim.warmup_epochs 0", said]
    (paths[1] / "env.json").unlink()
    assert named(*paths)[1] == said


def test_folders_of_one_name_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / place / "run", what) for place, what in (("one", config()), ("two", config(epochs=9)))]
    assert named(*runs) == ["one/run", "two/run"]


def test_the_table_shows_only_what_differs(family):
    page, troubles = page_of(*family)
    assert troubles == []
    means, runs = tables(page)
    columns = list(runs.columns)
    assert columns[-3:] == ["cut_attention_skips", "graying.method", "seed"]
    cut = dict(zip(columns, runs.rows[2], strict=True))
    assert (cut["run"], cut["recipe"], cut["top-1"], cut["cut_attention_skips"]) == ("cut", "procedural-vit", 12, "yes")
    assert (cut["skipped steps"], cut["img/s"], cut["time"], cut["state"]) == (0, 250.0, "2.0 min", "done")
    sample = f"{statistics.fmean([60, 64]):.1f} ± {statistics.stdev([60, 64]):.2f}"
    assert list(means.rows[0])[:3] == ["a", 2, sample]


def test_curves_are_means_over_seeds_with_their_spread(family):
    figure = item(page_of(*family)[0], "Accuracy", report.Figure)
    band, line = drawn(figure)[:2]
    assert line["name"] == "a (2 seeds)"
    assert line["x"] == [1, 2, 3, 4] and line["y"][-1] == 62
    deviation = statistics.stdev([60, 64])
    assert band["fill"] == "toself" and band["y"][EPOCHS - 1] == pytest.approx(62 + deviation, rel=1e-4)
    assert band["y"][EPOCHS] == pytest.approx(62 - deviation, rel=1e-4)
    assert [t["name"] for t in drawn(figure, view=1)][:2] == ["a, seed 0", "a, seed 1"]
    loss = item(page_of(*family)[0], "Training", report.Figure)
    assert drawn(loss)[1]["x"][:3] == [0.5, 1, 1.5]


def test_kappa_by_block_epoch_and_site(family):
    page, _ = page_of(*family)
    lines = {t.get("name"): t for t in drawn(item(page, "κ by block, at the end", report.Figure))}
    assert lines["a (2 seeds)"]["y"] == pytest.approx([5.4, 6.4, 7.4])
    assert lines["cut: cut attention"]["y"] == [5.4, None, None]
    assert lines[None]["text"] == ["∞", "∞"] and lines[None]["x"] == [1, 2]  # no number, and told so
    over = item(page, "κ over epochs", report.Figure)
    first = drawn(over, block=0)[0]
    assert first["x"] == [1, 2, 3, 4] and first["y"] == pytest.approx([6.1, 6.2, 6.3, 6.4])
    lost = [t for t in drawn(over, block=0) if t.get("text")]
    assert len(lost) == 2 and lost[0]["text"] == ["∞"] * EPOCHS  # two of three blocks have none: no mean of the third
    assert drawn(over, block=3)[0]["y"] == pytest.approx([7.1, 7.2, 7.3, 7.4])
    maps = item(page, "Every epoch and block", report.Figure)
    (cells,) = drawn(maps, config=0, site=2, quantity=0)
    assert len(cells["z"]) == BLOCKS and len(cells["z"][0]) == EPOCHS and cells["z"][2][3] == 7.4
    cells, signs = drawn(maps, config=1, site=2, quantity=0)
    assert cells["z"][1] == [None] * EPOCHS and len(signs["text"]) == 2 * EPOCHS


def test_collapse_is_told_with_its_epoch(family):
    (card,) = item(page_of(*family)[0], "Warnings", report.Cards).items
    assert "Rank collapse at block 1" in card.text
    assert card.label.startswith("cut · epoch 1")


def test_skipped_steps_and_rollbacks_are_told(tmp_path):
    path = write_run(tmp_path / "x", config(), probes=False)
    summary = json.loads((path / "summary.json").read_text()) | {"skipped": 3}
    (path / "summary.json").write_text(json.dumps(summary))
    with (path / "timings.jsonl").open("a") as file:
        file.write('{"event":"rollback","step":20,"to":10,"why":"the weight is not finite"}\n')
    texts = [card.text for card in item(page_of(path)[0], "Warnings", report.Cards).items]
    assert texts[0].startswith("3 steps skipped") and texts[1].startswith("Went back to step 10: the weight")


def test_pictures_before_and_after(family):
    gallery = item(page_of(*family)[0], "Pictures", report.Gallery)
    assert [p.title for p in gallery.pictures[:2]] == ["image 1", "DCT 0.95"]
    before, after = (p.pixels for p in gallery.pictures[:2] if isinstance(p, report.Picture))
    assert before.shape == after.shape == (96, 96, 3) and (before != after).any()
    assert (before[::3, ::3] == procedural(0, size=32, seed=1).image).all()  # the run's own validation image


def test_data_that_is_gone_costs_no_page(tmp_path):
    what = grayed(config(), "svd", 0.7)
    gone = type(what.data)(**{**vars(what.data), "val": str(tmp_path / "gone")})
    path = write_run(tmp_path / "x", type(what)(**{**vars(what), "data": gone}))
    page, troubles = page_of(path)
    assert "Pictures" not in titles(page) and "gone" in troubles[0]
    assert "What is missing" in titles(page)


def test_a_run_without_labels_has_no_accuracy_and_shows_its_teacher(tmp_path):
    path = write_run(tmp_path / "dino", config(), probes=False)
    rows = [
        {
            "kind": "train",
            "step": 5,
            "epoch": 1,
            "lr": 0.1,
            "loss": 5.0,
            "teacher_spread": 0.25,
            "teacher_entropy": 4.0,
        },
        {"kind": "eval", "step": 10, "epoch": 1, "val_loss": 4.5, "images": 20},
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page, _ = page_of(path)
    assert "Accuracy" not in titles(page) and item(page, "Validation", report.Figure).data[0]["y"] == [4.5]
    drawn = [line["y"] for line in item(page, "Training", report.Figure).data]
    assert [0.25] in drawn and [4.0] in drawn


def test_runs_without_probes_and_without_an_epoch(tmp_path):
    plain = write_run(tmp_path / "plain", config(), probes=False)
    page, _ = page_of(plain)
    assert titles(page) == ["Runs", "Accuracy", "Training", "How it was made"]
    young = write_run(tmp_path / "young", config(seed=1), epochs=0, finished=False)
    (young / "metrics.jsonl").write_text('{"kind":"train","step":5,"epoch":1,"lr":0.1,"loss":2.0,"skipped":0}\n')
    page, _ = page_of(plain, young)
    figure = item(page, "Training", report.Figure)
    assert figure.layout["xaxis"]["title"]["text"] == "images seen"
    assert drawn(figure, view=1)[-1]["x"] == [5 * 8]
    means, runs = tables(page)
    assert means.rows[0][1] == "1 of 2" and means.rows[0][2] == "60.0"  # over what is done
    assert list(runs.rows[1])[:3] == ["young", "procedural-vit", None] and "step 5" in runs.rows[1]
    page.to_html()


def test_an_unfinished_run_says_how_far_it_is(tmp_path):
    story = read(write_run(tmp_path / "x", config(), epochs=2))
    assert story.state == f"epoch 2 of {EPOCHS}" and story.step == 2 * STEPS
    assert story.last("top1") == 60 and story.best("top1") == 60


def test_broken_files_are_named_and_skipped(tmp_path):
    path = write_run(tmp_path / "x", config())
    lines = (path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = b'{"kind": "ev\xff\n'
    lines[5] = b'{"kind":"probe","step":"ten","epoch":1}\n'
    (path / "metrics.jsonl").write_bytes(b"".join(lines) + b'{"kind":"tra')  # torn by a kill: no news
    (path / "env.json").write_text("{")
    (path / "timings.jsonl").unlink()
    (path / "summary.json").write_text("[]")
    page, troubles = page_of(path)
    assert [line.split(": ")[0].rsplit("/")[-1] for line in troubles] == [
        "metrics.jsonl", "env.json", "timings.jsonl", "summary.json"
    ]  # fmt: skip
    assert "line 4 and 1 more" in troubles[0]
    html = page.to_html()
    assert "What is missing" in html and "timings.jsonl" in html


def test_what_is_no_run_is_left_out_and_named(tmp_path):
    good = write_run(tmp_path / "runs" / "good", config())
    bad = write_run(tmp_path / "runs" / "bad", config())
    (bad / "config.json").write_text('{"model": 3}')
    (tmp_path / "runs" / "note.txt").write_text("hello")
    stories, troubles = gather(sorted((tmp_path / "runs").iterdir()))
    assert [s.path for s in stories] == [good]
    assert len(troubles) == 2 and "bad" in troubles[0] and "note.txt" in troubles[1]
    assert [s.path for s in gather([tmp_path / "runs"])[0]] == [good]  # a folder of runs stands for them
    (good / "config.json").unlink()
    with pytest.raises(ValueError, match="no run to report"):
        gather([good, bad])


def test_the_verb(family, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", *map(str, family), "--out", "all.html"]) == 0
    assert "4 runs → all.html" in capsys.readouterr().out
    assert "wellcond report" in Path("all.html").read_text()
    assert main(["report", "a0"]) == 0  # its own page, in its own folder
    assert Path("a0/report.html").is_file()
    assert main(["report"]) == 2
    assert "runs/*" in capsys.readouterr().err
    assert main(["report", "nothing-here"]) == 2
    assert "'nothing-here' does not exist" in capsys.readouterr().err


def test_names_of_the_user_are_text(tmp_path):
    evil = "<script>alert(1)</script>"
    page, _ = page_of(write_run(tmp_path / "x", config(recipe=evil)))
    assert evil not in page.to_html()


def test_a_real_run(tmp_path):
    train_tiny(tiny(monitor_every=1), tmp_path / "real")
    path = runs_page.write_page(tmp_path / "real")
    assert path == tmp_path / "real" / "report.html"
    page, troubles = page_of(tmp_path / "real")
    assert troubles == []
    assert {"Runs", "Accuracy", "Training", "κ by block, at the end", "κ over epochs"} <= set(titles(page))
