"""Claims that train, through the command line: small stand-ins, portions, other machines, interrupts, verdicts."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
import torch
from claim_cases import reproduce
from PIL import Image

import wellcond
from wellcond import recipes
from wellcond.bench.table import render
from wellcond.cli import main
from wellcond.config import MAY_CHANGE, ReproduceConfig, TrainConfig, from_json
from wellcond.data.splits import open_split
from wellcond.report import Figure
from wellcond.reproduction import (
    claim_of,
    comparing,
    family_claim,
    graying_claim,
    jacobian_claim,
    layer_claims,
    layer_page,
    loss_claim,
    mixer_claim,
    pictures,
    skip_claim,
    step_time,
    sweep_claim,
    training_runs,
)
from wellcond.reproduction.experiments import essence, identity
from wellcond.training import Diverged, feeding, trainer

TRAINING = [
    skip_claim.CLAIM,
    loss_claim.CLAIM,
    mixer_claim.CLAIM,
    graying_claim.CLAIM,
    sweep_claim.CLAIM,
    family_claim.CLAIM,
    layer_claims.FIG1B,
    layer_claims.FIG3TO5,
    jacobian_claim.CLAIM,
]
SKIPS = ["cifar10/all-skips", "cifar10/no-ffn-skip", "cifar10/no-sab-skip"]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """asa-fig1c in one go: two seeds of three variants."""
    out = tmp_path_factory.mktemp("straight")
    status, content = reproduce("asa-fig1c", out, "--html", out / "page.html", seeds=2)
    assert status == 0
    return out, content


def keys(content):
    return [(run["variant"], run["seed"]) for run in content["runs"]]


def numbers(content):
    """Everything that does not depend on the clock or the machine."""
    clock = {"seconds", "images_per_s", "date", "commit", "hardware", "taken_from"}
    return [{k: v for k, v in run.items() if k not in clock} for run in content["runs"]]


# ---- a claim in one go


def test_variants_by_seeds_with_means_and_student_intervals(straight):
    _, content = straight
    assert keys(content) == [(variant, seed) for seed in (0, 1) for variant in SKIPS]
    rows = {row["name"]: row for row in content["rows"]}
    for variant, name in zip(SKIPS, ("all skips", "no FFN skip", "no SAB skip"), strict=True):
        values = [run["top1"] for run in content["runs"] if run["variant"] == variant]
        row = rows[f"CIFAR-10, {name}"]
        assert row["values"] == pytest.approx(values, rel=1e-4) and row["value"] == pytest.approx(np.mean(values), 1e-4)
        if np.std(values):
            want = scipy.stats.t.interval(0.95, 1, np.mean(values), scipy.stats.sem(values))
            assert row["interval"] == pytest.approx(want, rel=1e-3, abs=1e-3)
    top1 = {(run["variant"], run["seed"]): run["top1"] for run in content["runs"]}
    lost = [top1[SKIPS[2], seed] - top1[SKIPS[0], seed] for seed in (0, 1)]
    assert rows["CIFAR-10, no SAB skip, difference"]["values"] == pytest.approx(lost, abs=1e-3)
    assert rows["CIFAR-10, no SAB skip, difference"]["paper"] == "-22"
    assert content["settings"]["cifar10/no-sab-skip"]["model.cut_attention_skips"] is True
    assert "Epochs: 2 on cifar10." in content["scaled_down"]


def test_a_run_says_what_its_directory_says(straight):
    out, content = straight
    run = next(run for run in content["runs"] if run["variant"] == SKIPS[1] and run["seed"] == 1)
    (folder,) = (out / "runs").glob(f"quick-cifar10-vit-tiny-{run['config']}-seed1")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if row["kind"] == "eval"]
    assert run["top1"] == round(evaluations[-1]["top1"], 4) and run["best_top1"] == max(run["accuracy"]["top1"])
    assert [round(row["top1"], 4) for row in evaluations] == run["accuracy"]["top1"] and len(evaluations) == 2
    for epoch, loss in zip(run["loss"]["epoch"], run["loss"]["value"], strict=True):
        want = np.mean([row["loss"] for row in rows if row["kind"] == "train" and row["epoch"] == epoch])
        assert loss == pytest.approx(want, abs=1e-4)
    probes = [r for r in rows if r["kind"] == "probe" and r["quantity"] == "log_kappa" and r["site"] == "sab_sum"]
    last = [None if r["value"] is None else round(r["value"], 3) for r in probes if r["epoch"] == 2]
    assert run["kappa"]["sab_sum"][-1] == last and len(last) == 2 and run["kappa"]["epoch"] == [1, 2]
    config = from_json((folder / "config.json").read_text(), TrainConfig)
    assert config.model.cut_mlp_skips and not config.model.cut_attention_skips and config.seed == 1
    assert {"commit", "hardware", "date", "seconds"} <= set(run) and run["seconds"] > 0
    assert run["data"] == {"train": 48, "val": 48, "labels": run["data"]["labels"]} and run["diverged"] is None


def test_the_page_and_the_table(straight, tmp_path):
    out, content = straight
    page = (out / "page.html").read_text()
    assert "Top-1 by epoch: cifar10" in page and "cifar10/no-sab-skip" in page
    content = {**content, "quick": False, "gpu_minutes": 17.25}
    (tmp_path / "asa-fig1c.json").write_text(json.dumps(content))
    text = render(tmp_path)
    for row in content["rows"]:
        assert re.search(rf"\| {re.escape(row['name'])} \| {re.escape(row['paper'])} \| {row['value']:.3g} \|", text)
    assert "2 seeds, 17.25 GPU-minutes, `wellcond reproduce asa-fig1c --seeds 2" in text and content["verdict"] in text


def test_finished_runs_are_kept_and_need_no_directories(straight, tmp_path, capsys, monkeypatch):
    out, content = straight
    shutil.copy(out / "asa-fig1c.json", tmp_path)
    monkeypatch.setattr(training_runs, "train", pytest.fail)
    status, later = reproduce("asa-fig1c", tmp_path, seeds=2)
    assert status == 0 and later == content
    assert "seed 0" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("claim", TRAINING, ids=lambda claim: claim.name)
def test_every_claim_runs_small(claim, tmp_path):
    status, content = reproduce(claim.name, tmp_path, "--html", tmp_path / "page.html")
    assert status == 0 and keys(content) == [(variant, 0) for variant in claim.experiments if variant in claim.quick]
    assert (tmp_path / "page.html").stat().st_size > 1000


# ---- portions


def test_portions_add_up_to_the_same(straight, tmp_path, capsys):
    """--only, an interrupt in the middle of a run, then the rest; the results file of a lost machine is enough."""
    _, content = straight
    assert reproduce("asa-fig1c", tmp_path, "--only", "no-sab-skip", SKIPS[0])[0] == 0
    told = capsys.readouterr().out
    assert re.search(r"asa-fig1c cifar10/no-sab-skip seed 0: top-1 \d+\.\d\d, \d+ s\n", told) and SKIPS[1] not in told
    advance = trainer.Trainer.advance

    def cut(self, stop):
        if self.tally.step == 4:
            raise KeyboardInterrupt
        return advance(self, stop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Trainer, "advance", cut)
        assert reproduce("asa-fig1c", tmp_path, seeds=2)[0] == 130
    (stopped,) = (
        p.parent for p in (tmp_path / "runs").glob("*/config.json") if not (p.parent / "summary.json").exists()
    )
    assert list(stopped.glob("checkpoints/step-*"))
    status, whole = reproduce("asa-fig1c", tmp_path, seeds=2)
    assert status == 0 and numbers(whole) == numbers(content)
    events = [json.loads(line) for line in (stopped / "timings.jsonl").read_text().splitlines()]
    assert [event["resumed"] for event in events if event["event"] == "start"] == [False, True]
    assert {k: whole[k] for k in ("rows", "verdict", "settings")} == {
        k: content[k] for k in ("rows", "verdict", "settings")
    }


def test_runs_of_another_machine(straight, tmp_path, capsys):
    out, content = straight
    reproduce("asa-fig1c", tmp_path, "--only", SKIPS[0])
    status, merged = reproduce("asa-fig1c", tmp_path, "--collect", out, seeds=2)
    assert status == 0 and numbers(merged) == numbers(content)
    assert "5 of 6 runs taken over" in capsys.readouterr().out
    status, _ = reproduce("asa-fig1c", tmp_path / "other", "--collect", out, "--epochs", "3")
    assert status == 2 and "epochs 2, not 3" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_changed_settings_are_refused(straight, tmp_path, capsys):
    out, _ = straight
    shutil.copy(out / "asa-fig1c.json", tmp_path)
    before = (tmp_path / "asa-fig1c.json").read_bytes()
    assert reproduce("asa-fig1c", tmp_path, "--epochs", "3")[0] == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "cifar10/all-skips epochs 2, not 3" in captured.err
    assert (tmp_path / "asa-fig1c.json").read_bytes() == before


def test_runs_whose_settings_are_not_in_the_file_are_refused(straight, tmp_path, capsys):
    _, content = straight
    settings = {name: of for name, of in content["settings"].items() if name != "cifar10/no-ffn-skip"}
    (tmp_path / "asa-fig1c.json").write_text(json.dumps({**content, "settings": settings}))
    assert reproduce("asa-fig1c", tmp_path)[0] == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "cifar10/no-ffn-skip epochs None, not 2" in captured.err


@pytest.mark.parametrize("field", ["top1", "best_top1", "hardware", "accuracy"])
def test_a_run_that_lacks_a_number_is_named(field, straight, tmp_path, capsys):
    _, content = straight
    runs = [{k: v for k, v in run.items() if k != field or i != 2} for i, run in enumerate(content["runs"])]
    (tmp_path / "asa-fig1c.json").write_text(text := json.dumps({**content, "runs": runs}))
    for out, words in ((tmp_path, ()), (tmp_path / "new", ("--collect", tmp_path))):
        assert reproduce("asa-fig1c", out, *words, seeds=2)[0] == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1 and "asa-fig1c.json' is damaged" in line
        assert f"{field} of run 3 of 6 is missing; restore it" in line
    assert (tmp_path / "asa-fig1c.json").read_text() == text and not (tmp_path / "new").exists()


def test_other_pictures_are_refused(straight, tmp_path, capsys):
    out, _ = straight
    shutil.copy(out / "asa-fig1c.json", tmp_path)
    assert reproduce("asa-fig1c", tmp_path, "--data", "cifar10=procedural:64", seeds=3)[0] == 2
    assert "cifar10 has 64 + 64 pictures here, but cifar10/all-skips, seed 0 was" in capsys.readouterr().err


def test_max_minutes_tells_what_is_missing(straight, tmp_path, capsys):
    out, _ = straight
    content = json.loads((out / "asa-fig1c.json").read_text())
    content["runs"] = [{**run, "seconds": 1000.0} for run in content["runs"][:1]]
    (tmp_path / "asa-fig1c.json").write_text(json.dumps(content))
    assert reproduce("asa-fig1c", tmp_path, "--max-minutes", "10")[0] == 0
    assert "Still missing: cifar10/no-ffn-skip, seed 0; cifar10/no-sab-skip, seed 0." in capsys.readouterr().out
    assert reproduce("asa-fig1c", tmp_path, "--max-minutes", "0")[0] == 2


def test_a_finished_run_that_does_not_say_where_it_was_trained_is_named(straight, tmp_path, capsys):
    runs = tmp_path / "runs"
    shutil.copytree(straight[0] / "runs", runs)
    for start in runs.glob("*/env.json"):
        start.unlink()
    assert reproduce("asa-fig1c", tmp_path, "--runs", runs, "--only", SKIPS[0], seeds=1)[0] == 2
    assert "env.json' does not say the commit of a finished run" in capsys.readouterr().err


def test_again_does_not_take_a_finished_directory_for_a_new_run(straight, tmp_path, capsys):
    out, content = straight
    shutil.copy(out / "asa-fig1c.json", tmp_path)
    assert reproduce("asa-fig1c", tmp_path, "--again", "--runs", out / "runs")[0] == 2
    assert "give another --runs" in capsys.readouterr().err
    status, anew = reproduce("asa-fig1c", tmp_path, "--again", "--only", SKIPS[0], seeds=2)
    assert status == 0 and numbers(anew) == numbers(content)


def test_claims_share_runs(straight, tmp_path, monkeypatch):
    """asa-table3 takes from asa-table2 what has the same config; asa-fig7-8 needs more than that and trains."""
    reproduce("asa-table2", tmp_path)
    called = []
    train = training_runs.train
    monkeypatch.setattr(
        training_runs, "train", lambda config, *rest, **more: called.append(config) or train(config, *rest, **more)
    )
    _, content = reproduce("asa-table3", tmp_path)
    assert len(called) == 1 and called[0].model.graying.epsilon == 0.5
    assert [run.get("taken_from") for run in content["runs"]] == ["asa-table2", "asa-table2", None, "asa-table2"]
    _, content = reproduce("asa-fig7-8", tmp_path)
    assert len(called) == 2 and set(content["runs"][0]["jacobian"]["spectra"]) == set(jacobian_claim.SWEEP)
    assert content["runs"][0]["jacobian"]["n"] == 17
    table2 = json.loads((tmp_path / "asa-table2.json").read_text())
    elsewhere = {"commit": "abc", "hardware": {"gpu": "another"}}
    table2 |= {"device": "cuda", "runs": [run | elsewhere for run in table2["runs"]]}
    (tmp_path / "asa-table2.json").write_text(json.dumps(table2))
    for name in ("asa-table3", "asa-fig7-8"):
        (tmp_path / f"{name}.json").unlink()
    _, content = reproduce("asa-table3", tmp_path, "--only", "none", "dct/0.95")
    found = elsewhere | {"device": "cuda"}
    assert len(called) == 2 and found.items() <= content.items(), "nothing was measured here"
    assert content["command"].startswith("wellcond reproduce asa-table3 ")
    _, content = reproduce("asa-table3", tmp_path, "--max-minutes", "0.0001")
    assert len(called) == 2 and found.items() <= content.items(), "nor was there time for it"


def test_pictures_are_opened_once(tmp_path, monkeypatch):
    opened = []
    open_images = training_runs.open_images
    monkeypatch.setattr(training_runs, "open_images", lambda *words: opened.append(words) or open_images(*words))
    reproduce("asa-fig6", tmp_path, seeds=2)
    assert len(opened) == 1


def test_who_only_asks_which_pictures_there_are_puts_none_on_the_device(monkeypatch):
    """With --jobs that is a process that trains nothing: a set would have taken its share of the GPU once more."""
    monkeypatch.setattr(feeding, "open_feed", lambda *_, **__: pytest.fail("opened"))
    claim = claim_of(ReproduceConfig(claim="asa-fig6", quick=True))
    admit: Any = claim.admit
    admit(claim.quick_variants[0], [])


def test_a_run_that_diverges_is_a_result(tmp_path, monkeypatch, capsys):
    train = training_runs.train

    def failing(config, out, **more):
        train(config, out, **more)
        if config.model.cut_attention_skips:
            raise Diverged("no finite loss")

    monkeypatch.setattr(training_runs, "train", failing)
    status, content = reproduce("asa-fig2", tmp_path)
    assert status == 0 and "no finite loss after step 6" in capsys.readouterr().out
    assert {run["variant"]: run["diverged"] for run in content["runs"]}["tiny-imagenet/no-sab-skip"] == 6
    assert "fails in 1 of 1 (no finite loss)" in [row["verdict"] for row in content["rows"]]


# ---- data


def parquet_set(folder: Path, count: int) -> Path:
    """train-* and test-* shards of the hub's schema."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ("train-0.parquet", "test-0.parquet"):
        images = []
        for i in range(count):
            path = folder / "picture.png"
            Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
            images.append({"bytes": path.read_bytes(), "path": f"{i}.png"})
        path.unlink()
        pq.write_table(pa.table({"image": images, "label": [i % 10 for i in range(count)]}), folder / name)
    return folder


def test_a_folder_of_sets(tmp_path, capsys):
    parquet_set(tmp_path / "data" / "cifar10", 40)
    status, content = reproduce("asa-fig6", tmp_path, "--data", tmp_path / "data")
    assert status == 0 and content["runs"][0]["data"]["train"] == 40 and content["images"] == "cifar10"
    assert content["command"] == "wellcond reproduce asa-fig6 --seeds 1 --data data --quick"
    assert str(tmp_path) not in json.dumps(content)
    status, _ = reproduce("asa-fig2", tmp_path, "--data", tmp_path / "data")
    assert status == 2 and "asa-fig2 needs tiny-imagenet; give --data" in capsys.readouterr().err


def test_sets_that_are_not_given_are_left_out_and_said_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        skip_claim.CLAIM.__class__, "_sources", lambda *_: {"cifar10": "procedural:48", "tiny-imagenet": None}
    )
    assert reproduce("asa-fig1c", tmp_path, "--only", "all-skips")[0] == 0
    assert "Left out, for the pictures are not given: tiny-imagenet." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--data", "nowhere"], "data is 'nowhere', which is no folder"),
     (["--data", "mnist=x"], "the sets are cifar10, cifar100, fashion-mnist, tiny-imagenet, voc2012"),
     (["--data", "cifar10=nowhere"], "data cifar10: there is no data at 'nowhere'"),
     (["--only", "no-sab-skp"], "did you mean no-sab-skip"),
     (["--epochs", "0"], "epochs is 0"),
     (["--collect", "nowhere"], "there is no 'nowhere/asa-fig1c.json' to collect from"),
     (["--device", "cuda"], "torch sees no GPU")],
)  # fmt: skip
def test_mistakes_are_one_line(words, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert reproduce("asa-fig1c", tmp_path / "out", *words)[0] == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and told in captured.err
    assert not (tmp_path / "out").exists()


def test_claims_that_train_nothing_take_no_data(tmp_path, capsys):
    assert main(["reproduce", "asa-kappa", "--epochs", "3", "--out", str(tmp_path)]) == 2
    assert "asa-kappa trains no recipe" in capsys.readouterr().err


def test_cifar_files_are_named_through_their_set(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert pictures.find("cifar10", [str(tmp_path)], image_size=32) == f"cifar10:{tmp_path}"
    assert pictures.find("tiny-imagenet", [str(tmp_path)], image_size=64) is None


@pytest.mark.parametrize("given", ["cifar10=cifar10", "."])
def test_a_folder_called_as_a_source_is_the_folder(given, tmp_path, monkeypatch):
    """So the commands in results/ name it; the bare word was taken for torchvision's set, which was not there."""
    for split in ("train", "val"):
        for number in ("0", "1"):
            (tmp_path / "cifar10" / split / number).mkdir(parents=True)
            Image.new("RGB", (32, 32)).save(tmp_path / "cifar10" / split / number / "a.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = pictures.find("cifar10", [given], image_size=32)
    assert found is not None and len(open_split(found, "train", image_size=32)) == 2


# ---- configs


@pytest.mark.parametrize("claim", TRAINING, ids=lambda claim: claim.name)
def test_variants_of_a_claim_differ_in_what_they_say_alone(claim):
    """One set of hyper-parameters for all rows of a claim on one set, the recipe's."""
    options = ReproduceConfig(claim=claim.name)
    settings = claim.settings(options)
    assert set(claim.quick) <= set(settings)
    for variant, experiment in claim.experiments.items():
        epochs = experiment.changes.get("epochs") or claim.epochs or recipes.get(experiment.recipe).epochs
        base = essence(recipes.get(experiment.recipe, epochs=epochs))
        own = {name for name in {*settings[variant], *base} if settings[variant].get(name) != base.get(name)}
        assert own <= set(experiment.changes)
        assert all(name.startswith("model.") for name in own)


def test_identity_is_of_what_decides_a_run():
    config = recipes.get("cifar10-vit-tiny")
    same = recipes.get("cifar10-vit-tiny", seed=3, device="cpu", compile=False, **{"data.train": "elsewhere"})
    assert identity(config) == identity(same)
    for changes in ({"epochs": 20}, {"optim.lr": 2e-3}, {"model.cut_mlp_skips": True}, {"data.augment.mixup": 0.1}):
        assert identity(recipes.get("cifar10-vit-tiny", **changes)) != identity(config)
    assert not MAY_CHANGE & set(essence(config)) and "seed" not in essence(config)


# ---- verdicts on made-up runs


def made_up(variant, values, **more):
    base = {"top5": 80.0, "best_top1": 90.0, "diverged": None, "dataset": "x", "loss": {"epoch": [1], "value": [1.0]}}
    return [{"variant": variant, "seed": seed, "top1": value, **base, **more} for seed, value in enumerate(values)]


def test_skip_verdicts():
    good = made_up(SKIPS[0], [76, 77, 76]) + made_up(SKIPS[1], [74, 75, 74.1]) + made_up(SKIPS[2], [54, 55, 53.5])
    judgement = skip_claim.judge_skips(good)
    rows = {row.name: row for row in judgement.rows}
    assert judgement.verdict == "CIFAR-10: reproduced, the SAB skip is the one that matters."
    assert rows["CIFAR-10, no FFN skip, difference"].verdict == "as in the paper"
    lost = rows["CIFAR-10, no SAB skip, difference"]
    values: Any = lost.values
    want = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert lost.verdict == "as in the paper" and lost.interval == pytest.approx(want, rel=1e-4)
    assert "too few seeds" in skip_claim.judge_skips([run for run in good if run["seed"] == 0]).verdict
    better = made_up(SKIPS[0], [50, 51, 50]) + made_up(SKIPS[1], [74, 75, 74]) + made_up(SKIPS[2], [60, 61, 60])
    assert skip_claim.judge_skips(better).verdict == "CIFAR-10: not reproduced."
    unclear = made_up(SKIPS[0], [50, 80]) + made_up(SKIPS[1], [74, 75]) + made_up(SKIPS[2], [60, 61])
    assert (
        skip_claim.judge_skips(unclear).verdict
        == "CIFAR-10: not shown that the SAB skip matters more than the FFN skip."
    )
    uneven = [*good, *made_up(SKIPS[2], [1, 1, 1, 1])[3:]]  # a seed that the others have not
    assert skip_claim.judge_skips(uneven).rows[-1].values == lost.values


def losses(*values):
    return {"loss": {"epoch": list(range(len(values))), "value": list(values)}}


@pytest.mark.parametrize(
    ("run", "why"),
    [(losses(5.2, 4.0, 3.0), ""), (losses(5.2, 5.0, 4.9), "never learns"), (losses(5.2, 3.0, 3.6), "rises again"),
     (losses(5.2, 3.0, 3.4), ""), ({**losses(5.0), "diverged": 7}, "no finite loss"), (losses(), "no finite loss")],
)  # fmt: skip
def test_when_training_fails(run, why):
    assert loss_claim.fails({"diverged": None, **run}) == why
    assert math.log(200) == pytest.approx(5.2983, abs=1e-4)  # so 0.9 of it is 4.77, and a tenth 0.53


def test_loss_verdicts():
    names = [f"tiny-imagenet/{skips}" for skips in skip_claim.SKIPS]
    good = made_up(names[0], [1, 1], **losses(5, 2)) + made_up(names[1], [1, 1], **losses(5, 2.5))
    assert loss_claim.judge_losses(good).verdict.startswith("Not decided")
    failing = made_up(names[2], [1, 1], **losses(5.3, 5.2))
    assert loss_claim.judge_losses(good + failing).verdict.startswith("Reproduced")
    slower = made_up(names[2], [1], **losses(5, 3.5)) + made_up(names[2], [1, 1], **losses(5, 3.6))[1:]
    verdict = loss_claim.judge_losses(good + slower).verdict
    assert (
        verdict
        == "Not reproduced: without the SAB skip training fails in 0 of 2 runs; it learns less, its loss ends higher."
    )


def test_mixer_verdicts():
    def verdict(differences):
        runs = made_up("cifar10/skip", [90.0] * len(differences))
        return mixer_claim.judge_mixers(runs + made_up("cifar10/no-skip", [90 + d for d in differences])).verdict

    assert verdict([0.1, -0.1, 0.05]) == "CIFAR-10: reproduced." and verdict([3, -3, 1]) == "CIFAR-10: not decided."
    assert verdict([-2, -2.1, -1.9]) == "CIFAR-10: not reproduced." and verdict([0.1]) == "CIFAR-10: one seed."


def test_graying_verdicts():
    runs = made_up("softmax/none", [43.0, 43.2, 43.1]) + made_up("softmax/svd", [44.7, 44.8, 44.7])
    runs += made_up("softmax/dct", [44.8, 44.9, 45.0]) + made_up("softmax/dct-contrast", [43.1, 43.0, 43.2])
    runs += made_up("softmax/svd-contrast", [44.5, 44.6, 44.6])
    judgement = graying_claim.judge_table2(runs)
    rows = {row.name: row for row in judgement.rows}
    assert (
        rows["softmax/svd, gain"].paper == "+1.7"
        and rows["softmax/dct-contrast, gain"].verdict == "no difference shown"
    )
    assert "softmax/svd reproduced; softmax/dct reproduced" in judgement.verdict
    assert "the gain of svd is there also at the same contrast" in judgement.verdict
    assert "the gain of dct is there but not shown at the same contrast" in judgement.verdict
    assert rows["softmax/none, top-1"].paper == "43" and rows["softmax/none, top-5"].value == 80


def kappas(**sites):
    return {"kappa": {"epoch": [1, 2], **{site: [[9.0, 9.0], values] for site, values in sites.items()}}}


def test_sweep_verdicts():
    runs = []
    for i, variant in enumerate(sweep_claim.PAPER3):
        lower = [6 - 0.1 * i, 8 - 0.1 * i, None]
        runs += made_up(variant, [43 + i, 43.5 + i], **kappas(sab_in=lower, sab_sum=lower))
    judgement = sweep_claim.judge_table3(runs)
    assert "svd: κ_in falls with every ε, reproduced; dct: κ_in falls with every ε, reproduced" in judgement.verdict
    rows = {row.name: row for row in judgement.rows}
    assert rows["none, κ_in"].value == 7.0 and rows["svd/0.5, κ_in"].value == 6.5 and rows["svd/0.5, gain"].value == 5
    for run in runs:
        if run["variant"] == "svd/0.6":
            run["kappa"]["sab_in"][-1] = [9.0]
    assert "svd: κ_in does not fall with every ε, not reproduced" in sweep_claim.judge_table3(runs).verdict


def test_the_sweep_compares_seeds_that_every_epsilon_has():
    """A second seed of two ε alone, whose κ lies higher, must not turn their order about."""
    runs = []
    for i, variant in enumerate(sweep_claim.PAPER3):
        runs += made_up(variant, [43 + i], **kappas(sab_in=[6 - 0.1 * i], sab_sum=[6.0]))
    for variant in ("none", "svd/0.7"):
        runs.append({**made_up(variant, [43], **kappas(sab_in=[9.0], sab_sum=[9.0]))[0], "seed": 1})
    assert "svd: κ_in falls with every ε, reproduced" in sweep_claim.judge_table3(runs).verdict
    apart = [run for run in runs if run["variant"] != "svd/0.9" or run["seed"]]
    apart.append({**made_up("svd/0.9", [43], **kappas(sab_in=[5.9], sab_sum=[6.0]))[0], "seed": 2})
    assert "svd: κ not decided" in sweep_claim.judge_table3(apart).verdict


def test_layer_verdicts():
    sites = {"sab_in": [3.0], "sab_out": [6.0], "sab_sum": [3.1], "ffn_out": [3.5], "ffn_sum": [3.0]}
    runs = made_up("softmax/none", [1, 1], trained=sites)
    runs[1]["trained"] = {**sites, "sab_out": [6.1, None]}
    assert layer_claims.judge_sums(runs).verdict.endswith(": reproduced.")
    assert layer_claims.judge_sums(runs[:1]).verdict.endswith(": not decided.")
    flat = made_up("softmax/none", [1, 1], trained={**sites, "sab_out": [3.6]})
    assert layer_claims.judge_sums(flat).verdict.endswith(": not reproduced.")
    rows = {row.name: row for row in layer_claims.judge_sums(runs).rows}
    assert list(rows) == [
        *(f"log κ of {site}" for site in ("attention alone", "attention + skip", "MLP alone", "MLP + skip")),
        *(f"attention alone less {site}" for site in ("attention + skip", "MLP alone", "MLP + skip")),
    ]
    gap = rows["attention alone less MLP alone"]
    assert (gap.paper, gap.verdict, gap.value) == ("≈ 3", "far above", pytest.approx(2.55))
    assert layer_claims.judge_sums(flat).rows[-1].verdict == "not shown"  # 0.6 of 1
    near, name = layer_claims.judge_layers(flat).rows, "softmax: attention alone less attention + skip"
    assert [(row.paper, row.verdict) for row in near if row.name == name] == [("≈ 3", "above")]  # Fig. 3 asks for 0
    gray = made_up("softmax/dct", [1, 1], trained={**sites, "sab_sum": [2.5]})
    gray[1]["trained"] = {**sites, "sab_sum": [2.52]}
    assert layer_claims.judge_layers(runs + gray).verdict == (
        "Fig. 3, softmax: reproduced; Figs. 4 and 5, softmax, dct: reproduced."
    )
    infinite = made_up("softmax/none", [1, 1], trained={**sites, "sab_out": [None]})
    assert layer_claims.judge_sums(infinite).rows[0].value is None


def test_quick_on_real_pictures_has_their_classes():
    def classes(*data: str) -> int:
        options = ReproduceConfig(claim="asa-table2", quick=True, data=data)
        return graying_claim.CLAIM.config("softmax/none", options).model.num_classes

    assert classes() == 10 and classes("tiny-imagenet=somewhere") == 200


def test_grayings_are_drawn_side_by_side():
    sites = {site: [3.0, 5.0] for site in layer_page.STYLE}
    curves = {"epoch": [1, 2], **{site: [[2.0, None], [4.0, 6.0]] for site in layer_page.STYLE}}
    runs = made_up("softmax/none", [1, 1], trained=sites, kappa=curves)
    lower = made_up("softmax/svd", [1], trained={**sites, "sab_sum": [1.0, 2.0]}, kappa={"epoch": []})
    first, *others = layer_page.sections({"runs": runs + lower})
    assert first.title == "softmax: log κ of attention + skip, with and without graying" and len(others) == 2
    by_epoch, by_block = (item.data for item in first.items if isinstance(item, Figure))
    assert [(line["name"], line["x"], line["y"]) for line in by_epoch] == [("none", [1, 2], [2.0, 5.0])]
    assert [(line["name"], line["y"]) for line in by_block] == [("none", [3.0, 5.0]), ("svd", [1.0, 2.0])]
    assert len(layer_page.sections({"runs": runs})) == 1  # nothing to set beside


def test_kappa_of_a_trained_model_is_numpys(tmp_path):
    """SA(X) of the last block, on tensors that are computed here."""
    _, content = reproduce("asa-fig1b", tmp_path)
    found = content["runs"][0]["trained"]["sab_out"]
    (folder,) = (tmp_path / "runs").iterdir()
    model, images = trained_in_float64(folder, layer_claims.NUM_IMAGES)
    with torch.no_grad():
        x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(images))))
        block = model.blocks[1]
        X = block.attn(block.norm1(model.blocks[0](x))).numpy()
    sigma = np.linalg.svd(X, compute_uv=False)
    full = sigma[:, -1] > np.finfo(float).eps * max(X.shape[1:]) * sigma[:, 0]
    assert full.all() and len(found) == 2
    assert found[1] == pytest.approx(np.mean(np.log(sigma[:, 0] / sigma[:, -1])), abs=1e-3)


def trained_in_float64(folder: Path, count: int) -> tuple[Any, torch.Tensor]:
    """A run's model, and the first validation pictures as it takes them."""
    config = from_json((folder / "config.json").read_text(), TrainConfig)
    source = open_split("procedural:48", "val", image_size=16)
    indices = range(min(count, len(source)))
    pixels = np.stack([record.read() for record in source.records(indices)])
    mean, std = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (config.data.mean, config.data.std))
    return wellcond.load(folder).double(), (torch.from_numpy(pixels).permute(0, 3, 1, 2).double() / 255 - mean) / std


def test_the_jacobian_of_a_trained_model_is_numpys(tmp_path):
    _, content = reproduce("asa-fig7-8", tmp_path)
    found = content["runs"][0]["jacobian"]["spectra"]["none"]
    (folder,) = (tmp_path / "runs").iterdir()
    model, image = trained_in_float64(folder, 1)
    with torch.no_grad():
        x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(image))))
        x = model.blocks[0](x)
        Y = model.blocks[1].norm1(x)[0]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        J = torch.func.jacrev(lambda y: model.blocks[1].attn(y[None])[0])(Y).detach().reshape(Y.numel(), -1)
    sigma = np.linalg.svd(J.numpy(), compute_uv=False)
    assert found["log_kappa"] == pytest.approx(math.log(sigma[0] / sigma[-1]), rel=1e-3)
    assert found["log_sigma"][50] == pytest.approx(np.log(np.median(sigma) / sigma[0]), abs=1e-2)


def test_jacobian_rules():
    """Without graying κ may be infinite in float64: then 99 % of the spectrum decides, by the same rule."""

    def run(seed, worst):
        logs = {name: -18.0 - i / 10 - seed / 100 for i, name in enumerate(("svd/0.5", "svd/0.7", "none"))}
        logs |= {"dct/0.95": -18.2, "dct/0.85": -18.2 + (-1) ** seed}
        spectra = {name: {"log_kappa": 25.0, "log_sigma": [0.0] * 99 + [value, -30.0]} for name, value in logs.items()}
        spectra["none"]["log_kappa"] = worst
        return {"variant": "softmax/none", "seed": seed, "jacobian": {"spectra": spectra}}

    judged = jacobian_claim.judge([run(seed, None) for seed in range(3)])
    rows = {row.name: row.verdict for row in judged.rows}
    assert rows["none, log κ of the Jacobian"] == "infinite in 3 of 3", "not: one seed"
    assert rows["svd/0.5, log κ of the Jacobian"] == "–"
    assert rows["svd/0.5 less none, log κ of the Jacobian"] == "infinite without graying"
    infinite = "not decided, infinite without graying"
    assert judged.verdict == (
        f"The Jacobian is better conditioned — log κ of the Jacobian: svd {infinite}, dct {infinite}; "
        "log κ of 99 % of it: svd reproduced, dct not shown."
    )
    assert (
        "log κ of the Jacobian: svd reproduced" in jacobian_claim.judge([run(s, 26.0 + s / 9) for s in (0, 1)]).verdict
    )


def test_step_time_reads_the_benchmark(tmp_path, capsys):
    assert main(["reproduce", "asa-table1", "--out", str(tmp_path)]) == 2
    assert "run wellcond bench graying" in capsys.readouterr().err
    source = Path(__file__).parents[1] / "results" / step_time.SOURCE
    shutil.copy(source, tmp_path)
    assert main(["reproduce", "asa-table1", "--out", str(tmp_path)]) == 0
    content = json.loads((tmp_path / "asa-table1.json").read_text())
    bench = json.loads(source.read_text())
    svd = next(r for r in bench["rows"] if (r["part"], r["device"], r["name"]) == ("a", "cuda", "svd fast inside"))
    row = next(row for row in content["rows"] if row["name"].startswith("ViT-B/16, SVD"))
    assert row["value"] == pytest.approx(svd["ratio"], rel=1e-4) and row["interval"] == svd["ratio_ci"]
    assert row["verdict"] == "costs less" and len(content["runs"]) == 2
    assert all("gpu" in run["hardware"] for run in [content, *content["runs"]])
    assert content["commit"] == bench["parts"]["a-cuda"]["commit"]
    of_steps = [r for r in bench["rows"] if (r["part"], r["device"]) in {("a", "cuda"), ("b", "cuda")}]
    assert content["gpu_minutes"] == pytest.approx(sum(sum(r["samples_ms"]) for r in of_steps) / 6e4, abs=0.06)


def test_statistics_without_values():
    row = comparing.mean_row("x", "–", [])
    assert row.value is None and row.interval is None and row.verdict == "one seed"
    assert comparing.against(0.3, (0.1, 0.5)) == "as in the paper" and comparing.against(None, (-2, -1)) == "lower"


def test_seeds_share_compiled_code_and_variants_do_not(monkeypatch):
    resets: list[int] = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(len(seen)))
    runner: Any = training_runs.Runner(skip_claim.CLAIM, ReproduceConfig(claim="asa-fig1c"), {}, "cpu")
    seen: list[str] = []
    for own in "aaabbbbbba":
        runner._keep_compiled(own)
        seen.append(own)
    assert resets == [0, 3, 3 + training_runs.MANY, 9]


@pytest.mark.parametrize("name", ["asa-fig6", "asa-table2", "cts-table1"])
def test_a_finished_claim_keeps_its_order_without_the_pictures(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pictures, "find", lambda *_, **__: None)
    ours = Path(__file__).parents[1] / "results" / f"{name}.json"
    shutil.copy(ours, tmp_path)
    assert main(["reproduce", name, "--out", str(tmp_path)]) == 0
    before, after = (json.loads(path.read_text()) for path in (ours, tmp_path / ours.name))
    for part in ("verdict", "rows", "runs"):
        assert after[part] == before[part]
    assert before["verdict"] in " ".join(capsys.readouterr().out.split())
