"""Claims that pre-train without labels, small, through the command line; their cells; their rules on made-up runs."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from claim_cases import reproduce
from PIL import Image
from pyarrow import parquet
from scipy.stats import mannwhitneyu

from wellcond import recipes
from wellcond.cli import main
from wellcond.config import ReproduceConfig
from wellcond.data.splits import open_split
from wellcond.evaluation import JUDGES
from wellcond.report import Figure
from wellcond.reproduction import (
    along_claims,
    dense_claim,
    dino_cells,
    dino_judged,
    dino_page,
    layers_claim,
    mae_claim,
    pca_claim,
    training_runs,
)
from wellcond.reproduction.experiments import essence
from wellcond.reproduction.pictures import PETS, VOC
from wellcond.training import Diverged

DINO = [dense_claim.DENSE, along_claims.FIG2, along_claims.FIG3, layers_claim.DEPTH, pca_claim.PCA]
CELLS = ["skip/adamw", "skip/soap", "skipless-init/adamw", "skipless-init/soap"]
LAYERED = {"top1", "miou", "corloc", "foreground_iou"}
pytestmark = pytest.mark.usefixtures("own_cache")


def with_page(claim: str, out: Path, *words):
    return reproduce(claim, out, "--html", out / f"{claim}.html", *words)


# ---- small, through the command line


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    """cts-dense of the four cells of ViT-Tiny: pre-trained, judged along the way and after it."""
    out = tmp_path_factory.mktemp("dense")
    status, content = with_page("cts-dense", out)
    assert status == 0
    return out, content


def test_dense(dense):
    out, content = dense
    assert [run["variant"] for run in content["runs"]] == [f"vit-tiny/{cell}" for cell in CELLS]
    for run in content["runs"]:
        assert run["top1"] is None and run["val_loss"] > 0
        assert set(run["judged"]) == {"tiny-imagenet", VOC, PETS}
        judged = run["judged"]
        assert {"knn", "linear", "discovery"} == set(judged["tiny-imagenet"])
        assert {"segmentation", "discovery"} == set(judged[VOC])
        for of_set in judged.values():
            for values in of_set.values():
                assert all(f"{name}@0" in values for name in LAYERED & set(values)), "two blocks, so layers 0 and last"
        (folder,) = (out / "runs").glob(f"quick-*-{run['config']}-seed0")
        config = json.loads((folder / "config.json").read_text())
        skipless = "skipless" in run["variant"]
        assert config["model"]["cut_attention_skips"] is config["model"]["cut_mlp_skips"] is skipless
        assert config["model"]["init"]["method"] == ("skipless" if skipless else "default")
        assert config["model"]["init"]["alpha"] == ([1.8] if skipless else [2.0])
        assert config["optim"]["name"] == run["variant"].rpartition("/")[2]
        assert config["along"]["judges"][:2] == ["knn", "linear"]
    rows = {row["name"]: row for row in content["rows"]}
    runs = {run["variant"]: run["judged"] for run in content["runs"]}
    name = "VOC animals, mIoU of one layer: ViT-Tiny, skipless, initialized, AdamW"
    assert rows[name]["value"] == runs["vit-tiny/skipless-init/adamw"][VOC]["segmentation"]["miou"]
    assert rows[name]["paper"] == "62.3 (VOC 2012)"
    ahead = rows["VOC animals, CorLoc: ViT-Tiny, SOAP, without skips less with them"]
    corloc = [runs[f"vit-tiny/{model}/soap"][VOC]["discovery"]["corloc"] for model in ("skipless-init", "skip")]
    assert ahead["value"] == pytest.approx(corloc[0] - corloc[1], abs=1e-3) and ahead["paper"] == "+13.8 (VOC 2012)"
    assert "by layer: oxford-pets" in (out / "cts-dense.html").read_text()


def test_what_was_judged_is_what_evaluate_says(dense):
    out, content = dense
    run = content["runs"][2]
    (folder,) = (out / "runs").glob(f"quick-*-{run['config']}-seed0")
    words = ["evaluate", str(folder), "--with", "knn", "discovery", "--layers", "all", "--device", "cpu"]
    assert main(words) == 0
    for row in json.loads((folder / "evaluation.json").read_text())["evaluations"]:
        found = run["judged"]["tiny-imagenet"][row["judge"]]
        assert found == {name: pytest.approx(value, abs=6e-4) for name, value in row["values"].items()}
    along, last = run["along"], run["judged"]["tiny-imagenet"]["knn"]["top1"]
    assert along["epoch"] == [1, 2] and along["knn top1"][-1] == pytest.approx(last, abs=6e-4)


@pytest.mark.parametrize("claim", ["cts-fig2", "cts-fig3", "cts-depth", "cts-pca"])
def test_the_others_are_of_the_same_runs(claim, dense, monkeypatch):
    out, content = dense
    monkeypatch.setattr(training_runs, "train", pytest.fail)
    status, other = with_page(claim, out)
    assert status == 0 and {run["taken_from"] for run in other["runs"]} == {"cts-dense"}
    assert [run["judged"] for run in other["runs"]] == [run["judged"] for run in content["runs"]]
    assert other["rows"] and "one seed" in other["verdict"] and "Tiny-ImageNet at 64 px" in other["scaled_down"]
    page = (out / f"{claim}.html").read_text()
    title = {"cts-depth": "by layer", "cts-pca": "Maps, not chosen"}.get(claim, "along pre-training")
    assert title in page
    if claim == "cts-pca":
        assert page.count("<img") == dino_judged.KEPT * (1 + len(CELLS))


@pytest.mark.parametrize(("commits", "again"), [("aa", []), ("ab", ["knn", "linear"]), ("++", ["knn", "linear"])])
def test_a_look_goes_on_where_it_was_cut_off(commits, again, tmp_path, monkeypatch):
    """Two judges have spoken when the portion ends. The next asks the others, and these if the code is not the same."""
    asked = []

    def told(name, judge):
        def judged(subject):
            if len(asked) == 2 and not (tmp_path / "cut").exists():
                (tmp_path / "cut").touch()
                raise KeyboardInterrupt
            asked.append(name)
            yield from judge(subject)

        return judged

    for name in ("knn", "linear", "segmentation", "discovery"):
        monkeypatch.setitem(JUDGES, name, told(name, JUDGES[name]))
    monkeypatch.setattr(dino_cells, "along", lambda sources, options: {})
    words = tmp_path, "--only", "vit-tiny/skip/adamw"
    found = []
    for commit in commits:
        monkeypatch.setenv("WELLCOND_COMMIT", commit)
        found.append(reproduce("cts-depth", *words))
    assert [status for status, _ in found] == [130, 0]
    # the pictures of all three sets are the same stand-in, so discovery is asked once
    assert asked == ["knn", "linear", *again, "discovery", "segmentation"]
    (run,), (whole,) = (
        content["runs"]
        for content in (found[1][1], reproduce("cts-pca", *words, "--again", "--runs", tmp_path / "b")[1])
    )
    assert whole["judged"] == run["judged"] and whole["maps"] == run["maps"]


@pytest.mark.parametrize("claim", ["cts-fig2", "cts-fig3", "cts-depth", "cts-pca"])
def test_each_alone(claim, tmp_path):
    status, content = with_page(claim, tmp_path, "--only", "vit-tiny/skip/adamw")
    assert status == 0 and len(content["runs"]) == 1 and content["verdict"].startswith("Not decided")


def test_maps_are_of_the_first_pictures(dense):
    """And the number is the area under a ROC curve, by scipy's U statistic, against masks counted patch by patch."""
    _, content = dense
    maps = content["runs"][0]["maps"]
    assert len(maps["png"]) == len(maps["names"]) == dino_judged.KEPT
    records = list(open_split("procedural:48", "val", image_size=16).records(range(dino_judged.KEPT)))
    assert maps["names"] == [record.name for record in records]
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(maps["png"][0]))))
    assert image.shape == (4, 4, 3) and image.min() == 0 and image.max() == 255


def test_separation_is_an_area_under_a_curve():
    rng = np.random.default_rng(0)
    component, mask = rng.random((5, 7)), (rng.random((18, 27)) < 0.5).astype(np.uint8)  # the last patches are cut off
    mask[:4, :4] = 255
    mask[4:8, 4:7] = 255
    truth, score = [], []
    for i in range(5):
        for j in range(7):
            patch = mask[4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
            known = patch[patch != 255]
            if known.size:
                truth.append(known.mean() > 0.5)
                score.append(component[i, j])
    truth, score = np.array(truth), np.array(score)
    area = mannwhitneyu(score[truth], score[~truth]).statistic / truth.sum() / (~truth).sum()
    assert dino_judged.separation(component, mask, 4) == pytest.approx(max(area, 1 - area), abs=1e-12)
    assert dino_judged.separation(1 - component, mask, 4) == pytest.approx(max(area, 1 - area), abs=1e-12)
    assert dino_judged.separation(component, np.zeros((18, 27), np.uint8), 4) is None


def write_set(folder: Path, rows: dict[str, int], **columns):
    """Parquet in the hub's schema, with noise for pictures; columns of name=function of the row's number."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for half, count in rows.items():
        content = {
            "image": [{"bytes": _png(rng.integers(0, 255, (40, 48, 3))), "path": f"{half}{i}"} for i in range(count)]
        }
        content |= {name: [value(i) for i in range(count)] for name, value in columns.items()}
        parquet.write_table(pyarrow.table(content), folder / f"{half}-0.parquet")


def _png(pixels) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _mask(*values):
    mask = np.zeros((40, 48), np.uint8)
    mask[8:24, 8:40], mask[24:, :], mask[:, :4] = values
    return {"bytes": _png(mask)}


def test_sets_that_the_user_gives(tmp_path, capsys):
    """As they are laid out: VOC's pictures without official boxes are left out, the border of pets does not count."""
    data = tmp_path / "data"
    write_set(data / "tiny-imagenet", {"train": 32, "val": 8}, label=lambda i: i % 10, bbox=lambda i: [4, 4, 30, 30])
    words = ["--data", data, "--only", "vit-tiny/skip/adamw"]
    assert with_page("cts-dense", tmp_path / "none", *words)[0] == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and VOC in error and PETS in error and "--data" in error
    assert with_page("cts-fig2", tmp_path / "none", *words)[0] == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and VOC in error and PETS not in error
    write_set(
        data / VOC, {"train": 8, "val": 8},
        mask=lambda i: _mask(8, 255, 0), objects=lambda i: {"bbox": [[8.0, 8.0, 40.0, 24.0]], "category": ["cat"]},
        bbox_source=lambda i: "mask" if i == 0 else "voc2012",
    )  # fmt: skip
    write_set(data / PETS, {"train": 4, "test": 4}, label=lambda i: i, mask=lambda i: _mask(1, 2, 3))
    status, content = with_page("cts-dense", tmp_path / "all", *words)
    assert status == 0
    (run,) = content["runs"]
    assert run["judged"][VOC]["discovery"]["images"] == 7 and run["judged"][PETS]["discovery"]["images"] == 4
    assert run["judged"][VOC]["segmentation"]["images"] == 7 and "(val1)" in run["maps"]["names"][0]
    assert "corloc" in run["judged"]["tiny-imagenet"]["discovery"]
    assert str(tmp_path) not in json.dumps({k: v for k, v in content.items() if k != "runs"})


@pytest.fixture(scope="module")
def table5(tmp_path_factory):
    out = tmp_path_factory.mktemp("table5")
    status, content = with_page("asa-table5", out)
    assert status == 0
    return out, content


def test_fine_tuned_in_the_same_call(table5):
    out, content = table5
    assert [run["variant"] for run in content["runs"]] == ["none", "dct", "dct-visible"]
    for run in content["runs"]:
        (folder,) = (out / "runs").glob(f"quick-*-{run['config']}-seed0")
        before, after = (json.loads((path / "config.json").read_text()) for path in (folder, Path(f"{folder}-tuned")))
        assert before["objective"] == "mae" and before["mae"]["visible"] is (run["variant"] == "dct-visible")
        assert after["objective"] == "supervised" and after["pretrained"] == str(folder)
        assert after["model"]["graying"] == before["model"]["graying"]
        assert (before["model"]["graying"]["method"] == "none") is (run["variant"] == "none")
        assert dict(after["model"]["options"])["global_pool"] == "avg"
        summary = json.loads((Path(f"{folder}-tuned") / "summary.json").read_text())
        assert run["top1"] == pytest.approx(summary["top1"], abs=1e-4)
        assert run["val_loss"] == pytest.approx(json.loads((folder / "summary.json").read_text())["val_loss"], abs=1e-4)
    page = (out / "asa-table5.html").read_text()
    assert "Top-1 by epoch" in page and "Training loss by epoch" in page


def test_seconds_are_those_of_all_portions(table5, tmp_path):
    """Also where this one found both trainings finished."""
    out, content = table5
    _, again = reproduce("asa-table5", tmp_path, "--runs", out / "runs")
    assert [run["seconds"] for run in again["runs"]] == [run["seconds"] for run in content["runs"]]


def test_other_fine_tuning_is_other_runs(table5, monkeypatch, capsys):
    out, _ = table5
    small = mae_claim.small
    monkeypatch.setattr(mae_claim, "small", lambda recipe: small(recipe) | {"optim.layer_decay": 0.5})
    assert with_page("asa-table5", out)[0] == 2
    assert "tuned optim.layer_decay" in capsys.readouterr().err


def test_a_pretraining_that_diverges_is_told_and_not_fine_tuned(tmp_path, monkeypatch):
    train = training_runs.train

    def failing(config, out, **more):
        train(config, out, **more)
        raise Diverged("no finite loss")

    monkeypatch.setattr(training_runs, "train", failing)
    status, content = with_page("asa-table5", tmp_path, "--only", "dct")
    (run,) = content["runs"]
    assert status == 0 and run["diverged"] == run["steps"] > 0
    assert run["top1"] is None and not list((tmp_path / "runs").glob("*-tuned"))
    assert "Runs that diverged: DCT, before masking in 1." in content["verdict"]


# ---- cells


@pytest.mark.parametrize("claim", DINO, ids=lambda claim: claim.name)
def test_cells_differ_in_model_and_optimizer_alone(claim):
    settings = claim.settings(ReproduceConfig(claim=claim.name))
    assert len(settings) == 12 and set(claim.quick) <= set(settings)
    for variant, experiment in claim.experiments.items():
        base = essence(recipes.get(experiment.recipe, epochs=dino_cells.EPOCHS))
        own = {name for name in {*settings[variant], *base} if settings[variant].get(name) != base.get(name)}
        assert all(name in ("optim.name", "optim.betas") or name.startswith("model.") for name in own), variant
    assert settings == dense_claim.DENSE.settings(ReproduceConfig(claim="cts-dense"))


def test_judged_at_two_thirds():
    for epochs, every in ((None, 4), (60, 10), (3, 1)):
        options = ReproduceConfig(claim="cts-fig3", epochs=epochs)
        changes = dino_cells.along({VOC: "somewhere"}, options)
        assert changes["along.every"] == every and changes["along.where"] == ("bbox_source=voc2012",)
    for epochs in range(1, 301):
        moments = {e for e in range(1, epochs + 1) if e % dino_cells.interval(epochs) == 0} | {epochs}
        assert min(abs(3 * e - 2 * epochs) for e in moments) < 3, epochs  # less than an epoch from it
        assert min(epochs, 3) <= len(moments) <= 12, epochs
        if epochs % 6 == 0:
            assert sorted(moments) == [epochs // 6 * part for part in range(1, 7)]
    number = along_claims.at(2 / 3, "discovery corloc")
    assert number({"along": {"epoch": [5, 10, 15, 20, 25, 30], "discovery corloc": [1, 2, 3, 4, 5, 6]}}) == 4


def test_a_judge_of_two_sources_is_refused():
    """Else the numbers of one would stand for the other."""

    def rows(*sources):
        own = [{} if source is None else {"data": source} for source in sources]
        return [{"kind": "judge", "step": 1, "epoch": 1, "judge": "knn", "top1": 5.0, **data} for data in own]

    assert training_runs._along(rows("a", "a")) == {"along": {"epoch": [1], "knn top1": [5.0]}}
    for sources in (("a", "b"), (None, "b")):
        with pytest.raises(ValueError, match=r"knn was asked on ('a'|the run's own pictures) and 'b' along the way"):
            training_runs._along(rows(*sources))


# ---- rules on made-up runs


def made_up(variant, numbers, **names):
    """A run for each seed; `names` are functions of its number."""
    return [{"variant": variant, "seed": s, **{k: f(x) for k, f in names.items()}} for s, x in enumerate(numbers)]


def judged(value):
    layers = {f"@{layer}": value - 11 + layer for layer in range(11)} | {"": value}
    return {
        VOC: {
            "segmentation": {f"miou{at}": number for at, number in layers.items()} | {"miou_multi_scale": value},
            "discovery": {f"corloc{at}": number + 10 for at, number in layers.items()},
        }
    }


def test_dense_rules():
    runs = []
    for optimizer, ours in (("adamw", [30.0, 30.2]), ("soap", [20.0, 26.0])):
        runs += made_up(f"vit-s/skip/{optimizer}", [25.0, 25.1], judged=judged)
        runs += made_up(f"vit-s/skipless-init/{optimizer}", ours, judged=judged)
    judgement = dense_claim.judge_dense(runs)
    assert judgement.verdict == (
        "ViT-S: VOC animals, mIoU of one layer, AdamW reproduced; VOC animals, CorLoc, SOAP not shown."
    )
    rows = {row.name: row for row in judgement.rows}
    row = rows["VOC animals, mIoU of one layer: ViT-S, AdamW, without skips less with them"]
    assert row.value == pytest.approx(5.05) and row.verdict == "reproduced" and row.paper == "+6.0 (VOC 2012)"
    for better, verdict in ((31.0, "reproduced"), (11.0, "not reproduced")):
        runs = [run for run in runs if run["variant"] != "vit-s/skipless-init/soap"]
        runs += made_up("vit-s/skipless-init/soap", [better, better + 0.1], judged=judged)
        if verdict == "not reproduced":
            runs = [run for run in runs if run["variant"] != "vit-s/skipless-init/adamw"]
            runs += made_up("vit-s/skipless-init/adamw", [better, better + 0.1], judged=judged)
        expected = f"ViT-S: better dense features without skips {verdict}."
        assert dense_claim.judge_dense(runs).verdict == expected
    extended = [*runs, *made_up("vit-s/skipless-ours/adamw", [40.0, 40.1], judged=judged)]
    assert dense_claim.judge_dense(extended).verdict == expected  # ours has rows, and decides nothing
    rows = {row.name: row for row in dense_claim.judge_dense(extended).rows}
    row = rows["VOC animals, mIoU of one layer: ViT-S, AdamW, α = 0.5, without skips less with them"]
    assert row.value == pytest.approx(15) and row.paper == "–"
    assert dense_claim.judge_dense(runs[:1]).verdict.startswith("Not decided")


def test_layer_rules():
    """Layer 9 of 12 is three under the last: 5 ahead at the end is 2 ahead there."""
    runs = made_up("vit-s/skip/soap", [25.0, 25.1], judged=judged)
    runs += made_up("vit-s/skipless-init/soap", [30.0, 30.2], judged=judged)
    judgement = layers_claim.judge_layers(runs)
    rows = {row.name: row for row in judgement.rows}
    row = rows["VOC animals, mIoU of one layer: ViT-S, SOAP, ¾ without skips less all with them"]
    assert row.value == pytest.approx(2.05) and row.verdict == "reproduced"
    assert rows["VOC animals, CorLoc: ViT-S, skipless, initialized, SOAP, best layer"].value == 12
    assert "VOC animals, CorLoc, ViT-S, SOAP: reproduced" in judgement.verdict


def test_along_rules():
    def along(shift):
        return {
            "epoch": [1, 2, 3],
            "segmentation miou": [shift, shift + 1, shift + 2],
            "discovery corloc": [shift, shift + 6, shift + 9],
        }

    runs = made_up("vit-tiny/skip/soap", [10.0, 10.1], along=along)
    runs += made_up("vit-tiny/skipless-init/soap", [12.0, 12.2], along=along)
    fig2, fig3 = along_claims.judge_fig2(runs), along_claims.judge_fig3(runs)
    assert fig2.verdict == "ViT-Tiny, SOAP, one layer: reproduced."
    rows = {row.name: row for row in (*fig2.rows, *fig3.rows)}
    assert rows["ViT-Tiny, with skips, SOAP, mIoU of one layer along the way"].value == pytest.approx(11.05)
    assert fig3.verdict == "ViT-Tiny, SOAP: at the end reproduced, already at two thirds not reproduced."
    early = rows["ViT-Tiny, SOAP, CorLoc already at two thirds, less with skips at the end"]
    assert early.value == pytest.approx(2.05 - 3)
    assert along_claims.judge_fig3(runs[:2]).verdict.startswith("Not decided")
    diverged = {"variant": "vit-tiny/skip/soap", "seed": 2}  # before anything was judged
    assert along_claims.judge_fig2([diverged, *runs]).rows == fig2.rows
    assert along_claims.judge_fig3([diverged, *runs]).rows == fig3.rows
    figures = [section.items[0] for section in dino_page.along_sections({"runs": [diverged, *runs]})]
    assert [len(figure.data) for figure in figures if isinstance(figure, Figure)] == [4, 4]


def test_map_rules():
    def maps(auc):
        return {"auc": auc, "explained": 60.0}

    runs = made_up("vit-s/skip/adamw", [70.0, 70.1], maps=maps)
    runs += made_up("vit-s/skipless-init/adamw", [69.0, 71.0], maps=maps)
    assert pca_claim.judge_maps(runs).verdict.startswith("ViT-S, AdamW: not shown.")


def test_table5_rules():
    def runs_of(variant, numbers):
        more = {"top5": lambda x: x + 20, "top1": lambda x: x, "val_loss": lambda x: 0.5}
        return made_up(variant, numbers, **more)

    runs = runs_of("none", [50.0, 50.1]) + runs_of("dct", [50.5, 50.6]) + runs_of("dct-visible", [49.0, 49.1])
    judgement = mae_claim.judge_table5(runs)
    assert judgement.verdict == "Gains: DCT, before masking reproduced; DCT, visible patches not reproduced."
    rows = {row.name: row for row in judgement.rows}
    assert rows["DCT, before masking, gain in top-1"].paper == "+0.2" and rows["not grayed, top-5"].paper == "96.4"
    assert rows["DCT, before masking, gain in top-1"].value == pytest.approx(0.5)
