"""Claims of Cutting the Skip, small, through the command line; their cells, and their rules on made-up runs."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from claim_cases import reproduce

import wellcond as wc
from wellcond import recipes
from wellcond.config import ReproduceConfig
from wellcond.data.splits import open_split
from wellcond.report import Figure
from wellcond.reproduction import (
    beyond_claim,
    depth_claim,
    gap_claim,
    rates_claim,
    skipless_cells,
    skipless_claim,
    skipless_losses,
    training_runs,
)
from wellcond.reproduction.experiments import essence
from wellcond.reproduction.training_page import accuracy_sections, time_sections

TRAINING = [
    rates_claim.CLAIM,
    skipless_claim.CLAIM,
    skipless_losses.CLAIM,
    depth_claim.CLAIM,
    beyond_claim.CLAIM,
    gap_claim.CLAIM,
]
RESULTS = Path(__file__).parents[1] / "results"
CELLS = [
    "skip/adamw",
    "skip/soap",
    "skipless/adamw",
    "skipless/soap",
    "skipless-init/adamw",
    "skipless-init/soap",
]
OURS = ["skipless-ours/adamw", "skipless-ours/soap"]
pytestmark = pytest.mark.usefixtures("own_cache")


def made_up(variant, values, **more):
    base = {"top5": 80.0, "best_top1": 90.0, "diverged": None, "dataset": "x", "loss": {"epoch": [1], "value": [1.0]}}
    return [{"variant": variant, "seed": seed, "top1": value, **base, **more} for seed, value in enumerate(values)]


# ---- small, through the command line


@pytest.fixture(scope="module")
def table1(tmp_path_factory):
    out = tmp_path_factory.mktemp("table1")
    status, content = reproduce("cts-table1", out, "--html", out / "page.html")
    assert status == 0
    return out, content


def test_the_cells(table1):
    out, content = table1
    assert [run["variant"] for run in content["runs"]] == [f"cifar10/{cell}" for cell in CELLS + OURS]
    page = (out / "page.html").read_text()
    assert "Top-1 by epoch: cifar10" in page and "Top-1 by training time: cifar10" in page
    for run in content["runs"]:
        (folder,) = (out / "runs").glob(f"quick-*-{run['config']}-seed0")
        events = [json.loads(line) for line in (folder / "timings.jsonl").read_text().splitlines()]
        speeds = [event["images_per_s"] for event in events if event["event"] == "epoch"]
        assert len(speeds) == 2 and run["images_per_s"] == pytest.approx(sum(speeds) / 2, rel=1e-3)
        config = json.loads((folder / "config.json").read_text())
        model, optimizer = run["variant"].split("/")[1:]
        assert config["optim"]["name"] == optimizer
        assert config["optim"]["betas"] == ([0.95, 0.95] if optimizer == "soap" else [0.9, 0.999])
        assert config["model"]["cut_attention_skips"] is config["model"]["cut_mlp_skips"] is (model != "skip")
        initialized = model in ("skipless-init", "skipless-ours")
        assert config["model"]["init"]["method"] == ("skipless" if initialized else "default")
        assert config["model"]["init"]["alpha"] == ([0.5] if model == "skipless-ours" else [2.0])


def test_the_losses_are_of_the_same_runs(table1, monkeypatch):
    out, content = table1
    monkeypatch.setattr(training_runs, "train", pytest.fail)
    status, losses = reproduce("cts-fig1", out, "--html", out / "losses.html")
    assert status == 0 and {run["taken_from"] for run in losses["runs"]} == {"cts-table1"}
    assert [run["loss"] for run in losses["runs"]] == [run["loss"] for run in content["runs"]]
    assert "Training loss by epoch: cifar10" in (out / "losses.html").read_text()


def test_every_variant_of_a_figure_looks_different():
    """cts-beyond has more on CIFAR-10 than there are colours."""
    names = [name for name in beyond_claim.CLAIM.experiments if name.startswith("cifar10/")]
    curve = {"epoch": [1], "top1": [10.0]}
    (section,) = accuracy_sections({"runs": [run for name in names for run in made_up(name, [1, 2], accuracy=curve)]})
    (figure,) = section.items
    assert isinstance(figure, Figure)
    looks = {(line["name"], line["line"]["color"], line["line"]["dash"]) for line in figure.data}
    assert len(looks) == len({look[1:] for look in looks}) == len(names) > 8


def test_rates_are_looked_for_with_one_seed(tmp_path, capsys):
    status, content = reproduce("cts-rates", tmp_path, seeds=3)
    assert status == 0 and content["seeds"] == [0]
    told = r"Best rates on CIFAR-10: with skips, AdamW [\d.e-]+; skipless, initialized, SOAP"
    assert re.search(told, capsys.readouterr().out)
    top1 = {run["variant"]: run["top1"] for run in content["runs"]}
    best = next(row["name"] for row in content["rows"] if row["verdict"].startswith("best"))
    rate = best.rpartition(" ")[2]
    assert top1[f"skip/adamw/{rate}"] == max(top1[f"skip/adamw/{r:g}"] for r in rates_claim.MIDDLE)


def test_depth_at_the_start_and_after_training(tmp_path):
    status, content = reproduce("cts-init-depth", tmp_path, "--html", tmp_path / "page.html")
    assert status == 0 and "Mass that a token gives to itself, by block" in (tmp_path / "page.html").read_text()
    runs = {run["variant"]: run for run in content["runs"]}
    assert list(runs) == ["skip", "default", "paper", "calibrated", "ours"]
    for run in runs.values():
        for when in ("start", "end"):
            assert {len(values) for values in run["depth"][when].values()} == {2}  # blocks
    default, paper = (runs[name]["depth"]["start"]["attention_diagonal"] for name in ("default", "paper"))
    assert default[1] == pytest.approx(1 / 17, abs=0.01), "attention of timm's weights is uniform over 17 tokens"
    assert paper[0] > 2 * default[0]

    run = runs["paper"]
    (folder,) = (tmp_path / "runs").glob(f"quick-*-{run['config']}-seed0")
    model: Any = wc.load(folder).double()
    source = open_split("procedural:48", "val", image_size=16)
    chosen = np.round(np.linspace(0, 47, 16)).astype(int)
    pixels = np.stack([record.read() for record in source.records(chosen.tolist())])
    config = json.loads((folder / "config.json").read_text())
    mean, std = (torch.tensor(config["data"][name], dtype=torch.float64)[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        x = model.patch_embed((torch.from_numpy(pixels).permute(0, 3, 1, 2).double() / 255 - mean) / std)
        x = model.norm_pre(model.patch_drop(model._pos_embed(x)))
        y = model.blocks[0].norm1(x)
        q, k, _ = model.blocks[0].attn.qkv(y).reshape(16, 17, 3, 3, 4).permute(2, 0, 3, 1, 4)
        A = torch.softmax(q @ k.mT / 2, -1)
        X = model.blocks[0](x).numpy()
    found = run["depth"]["end"]
    assert found["attention_diagonal"][0] == pytest.approx(float(A.diagonal(dim1=-2, dim2=-1).mean()), abs=1e-4)
    sigma = np.linalg.svd(X, compute_uv=False)
    assert found["log_kappa"][0] == pytest.approx(np.mean(np.log(sigma[:, 0] / sigma[:, -1])), abs=1e-3)
    unit = X / np.linalg.norm(X, axis=-1, keepdims=True)
    cosines = [(u @ u.T)[~np.eye(17, dtype=bool)].mean() for u in unit]
    assert found["token_cosine"][0] == pytest.approx(np.mean(cosines), abs=1e-3)


def test_extensions_are_options(tmp_path):
    status, content = reproduce("cts-beyond", tmp_path)
    assert status == 0 and len(content["runs"]) == 1 + len(beyond_claim.EXTENSIONS)
    assert len({run["config"] for run in content["runs"]}) == len(content["runs"])
    rows = {row["name"]: row for row in content["rows"]}
    top1 = {run["variant"]: run["top1"] for run in content["runs"]}
    want = top1["cifar10/adamw/annealed"] - top1["cifar10/adamw/none"]
    assert rows["CIFAR-10, AdamW, annealed, gain"]["value"] == pytest.approx(want, abs=1e-3)


def test_the_gap_of_a_wider_model(tmp_path):
    status, content = reproduce("cts-gap", tmp_path)
    assert status == 0 and len(content["runs"]) == 4
    top1 = {run["variant"]: run["top1"] for run in content["runs"]}
    gap = {scale: top1[f"{scale}/skipless-ours/soap"] - top1[f"{scale}/skip/soap"] for scale in ("base", "wide")}
    rows = {row["name"]: row["value"] for row in content["rows"]}
    assert rows["ViT-S, SOAP, gap"] == pytest.approx(gap["wide"], abs=1e-3)
    assert rows["SOAP, change of the gap with width"] == pytest.approx(gap["wide"] - gap["base"], abs=1e-3)


# ---- cells


@pytest.mark.parametrize("claim", TRAINING, ids=lambda claim: claim.name)
def test_variants_differ_in_model_and_optimizer_alone(claim):
    """Weight decay, clipping, warm-up, epochs, augmentation: the recipe's, in every cell of a set."""
    settings = claim.settings(ReproduceConfig(claim=claim.name))
    assert set(claim.quick) <= set(settings)
    allowed = {"optim.name", "optim.betas", "optim.lr"}
    for variant, experiment in claim.experiments.items():
        epochs = experiment.changes.get("epochs", claim.epochs)  # cts-gap's long runs
        base = essence(recipes.get(experiment.recipe.removesuffix("-skipless"), epochs=epochs))
        own = {name for name in {*settings[variant], *base} if settings[variant].get(name) != base.get(name)}
        assert all(name in allowed or name.startswith("model.") for name in own), variant
        assert settings[variant]["optim.weight_decay"] == 0.01 and settings[variant]["optim.clip"] == 3.0


def test_the_rates_are_those_that_were_found():
    for rates in skipless_cells.RATES.values():
        assert set(CELLS) <= set(rates) <= {*CELLS, *OURS} and set(rates.values()) <= set(rates_claim.GRID)
    path = RESULTS / "cts-rates.json"
    if not path.exists():
        pytest.skip("cts-rates is not measured yet")
    content = json.loads(path.read_text())
    found = {data: rates_claim.best_rates(content["runs"], data) for data in rates_claim.LOOKED_FOR}
    assert {data: rates for data, rates in found.items() if set(CELLS) <= set(rates)} == skipless_cells.RATES


def test_every_rate_that_was_found_has_a_neighbour_on_both_sides_to_be_tried():
    assert set(rates_claim.MIDDLE) <= set(rates_claim.GRID) and sorted(rates_claim.GRID) == list(rates_claim.GRID)
    for rates in skipless_cells.RATES.values():
        assert set(rates.values()) <= set(rates_claim.GRID[1:-1])
    assert "tiny-imagenet/skipless/adamw/3e-05" in rates_claim.CLAIM.experiments


def test_a_cell_without_a_rate_of_its_own_takes_the_nearest(monkeypatch):
    assert skipless_cells.rate_of("cifar10", "skipless/adamw") == 1e-4
    cifar10 = {"skip/soap": 1.0, "skipless-init/adamw": 2.0, "skipless-init/soap": 3.0, "skipless-ours/soap": 4.0}
    monkeypatch.setattr(skipless_cells, "RATES", {"cifar10": cifar10, "fashion-mnist": {"skip/soap": 5.0}})
    cells = {
        ("cifar10", "skip/soap"): 1.0,
        ("cifar10-s", "skip/soap"): 1.0,
        ("tiny-imagenet-s", "skip/soap"): 1.0,  # of CIFAR-10: the set has none
        ("fashion-mnist-s", "skip/soap"): 5.0,
        ("cifar10", "skipless-ours/adamw"): 2.0,  # of the paper's α: ours has none
        ("cifar10", "skipless-ours/soap"): 4.0,
    }
    assert {cell: skipless_cells.rate_of(*cell) for cell in cells} == cells


# ---- rules on made-up runs


def test_rate_rules():
    runs = []
    for rate, top1 in ((3e-4, 70.0), (1e-3, 75.0), (3e-3, 75.0)):
        runs += made_up(f"skip/adamw/{rate:g}", [top1])
    runs += made_up("skipless/adamw/0.0003", [20.0]) + made_up("skipless/adamw/0.001", [None], diverged=7)
    assert rates_claim.best_rates(runs, "cifar10") == {"skip/adamw": 1e-3}, "of two equal ones the smaller"
    runs += made_up("skipless/adamw/0.003", [10.0])
    judgement = rates_claim.judge_rates(runs)
    assert judgement.verdict == "Best rates on CIFAR-10: with skips, AdamW 0.001; skipless, AdamW 0.0003."
    rows = {row.name: row for row in judgement.rows}
    assert rows["CIFAR-10, with skips, AdamW, 0.001"].verdict == "best"
    assert rows["CIFAR-10, skipless, AdamW, 0.0003"].verdict == "best, at an end of those tried"
    assert rows["CIFAR-10, skipless, AdamW, 0.001"].value == 0.0, "a run that fails at once is a result"
    runs += made_up("skipless/adamw/0.0001", [15.0]) + made_up("tiny-imagenet/skip/soap/0.001", [40.0])
    rows = {row.name: row.verdict for row in rates_claim.judge_rates(runs).rows}
    assert rows["CIFAR-10, skipless, AdamW, 0.0003"] == "best" and "Tiny-ImageNet, with skips, SOAP, 0.001" in rows
    assert rates_claim.best_rates(runs, "tiny-imagenet") == {}, "a cell that is not whole"
    assert rates_claim.judge_rates([]).verdict.startswith("Not decided")


def test_table_rules():
    runs = made_up("cifar10/skip/adamw", [76.0, 76.2, 75.9]) + made_up("cifar10/skip/soap", [83.0, 83.1, 83.2])
    runs += made_up("cifar10/skipless/adamw", [10.0, 12.0, 10.0])
    runs += made_up("cifar10/skipless-init/soap", [77.0, 77.3, 76.9])
    judgement = skipless_claim.judge_table1(runs)
    assert judgement.verdict == (
        "CIFAR-10: SOAP without skips, initialized, is ahead of AdamW with skips: reproduced; against SOAP with skips "
        "it is behind; AdamW without skips, not initialized, fails."
    )
    rows = {row.name: row for row in judgement.rows}
    ahead = rows["CIFAR-10, skipless, initialized, SOAP, less with skips, AdamW"]
    assert ahead.value == pytest.approx(1.0333, abs=1e-3) and ahead.paper == "+0.5"
    assert rows["CIFAR-10, skipless, initialized, SOAP"].paper == "80.8"
    assert "α" not in judgement.verdict, "nothing of ours is there"
    own = [*runs, *made_up("cifar10/skipless-ours/soap", [83.1, 83.0, 83.4])]
    assert skipless_claim.judge_table1(own).verdict == judgement.verdict.replace(
        "is behind;",
        "is behind; SOAP without skips, initialized with α = 0.5, is ahead of AdamW with skips: yes; against SOAP with "
        "skips it is level;",
    )
    short = [run for run in runs if run["seed"] == 0]
    assert "too few seeds" in skipless_claim.judge_table1(short).verdict

    runs = made_up("tiny-imagenet/skip/adamw", [40.0, 40.5]) + made_up("tiny-imagenet/skip/soap", [39.0, 40.5])
    runs += made_up("tiny-imagenet/skipless/adamw", [30.0, 30.4]) + made_up(
        "tiny-imagenet/skipless-init/soap", [35.0, 35.4]
    )
    verdict = skipless_claim.judge_table1(runs).verdict
    assert "AdamW with skips: not reproduced;" in verdict
    assert "is level; AdamW without skips, not initialized, lags" in verdict


def test_time_is_that_of_the_fastest_run_of_a_variant():
    """Runs that share a GPU slow each other down."""
    curve = {"accuracy": {"epoch": [1, 2], "top1": [10.0, 20.0]}, "data": {"train": 1000}}
    slow, fast = (made_up("x/skip/soap", [20.0], images_per_s=speed, **curve)[0] for speed in (50.0, 200.0))
    other = made_up("x/skip/adamw", [20.0], images_per_s=100.0, **curve)[0]
    unknown = made_up("x/skipless/adamw", [20.0], images_per_s=None, **curve)[0]
    (section,) = time_sections({"runs": [slow, {**fast, "seed": 1}, other, unknown]})
    (figure,) = section.items
    assert isinstance(figure, Figure)
    assert [trace["x"] for trace in figure.data] == [[5.0, 10.0], [5.0, 10.0], [10.0, 20.0]]


def test_loss_rules():
    def losses(*values):
        return {"loss": {"epoch": list(range(len(values))), "value": list(values)}}

    runs = []
    for name, last in (("skip", 1.0), ("skipless", 2.3), ("skipless-init", 1.1)):
        for seed in range(2):
            runs += made_up(f"cifar10/{name}/adamw", [1.0] * 2, **losses(2.3, last + 0.001 * seed))[seed : seed + 1]
    judgement = skipless_losses.judge_fig1(runs)
    assert judgement.verdict == (
        "CIFAR-10, AdamW: under the loss of the model that was not initialized: reproduced; "
        "CIFAR-10, AdamW: higher than with skips."
    )


def test_depth_rules():
    runs = []
    for variant, mass in (("default", 0.1), ("paper", 0.5)):
        for seed in range(2):
            numbers = {"attention_diagonal": [mass + 0.01 * seed], "token_cosine": [1 - mass], "log_kappa": [None]}
            runs += made_up(variant, [1, 1], depth={"start": numbers, "end": numbers})[seed : seed + 1]
    judgement = depth_claim.judge_depth(runs)
    start = judgement.verdict.partition(";")[0]
    assert start == "skipless, initialized, at the start: diagonal mass higher: yes, token cosine lower: yes"
    rows = {row.name: row for row in judgement.rows}
    assert rows["skipless, initialized, less skipless, diagonal mass at the start"].value == pytest.approx(0.4)


def test_extension_rules():
    values = {"skip": [83.0, 83.1], "none": [77.0, 77.1], "tat": [70.0, 70.2], "dct": [76.0, 78.5]}
    values |= {"centred-gelu": [79.0, 79.2]}
    runs = [run for name, of in values.items() for run in made_up(f"cifar10/soap/{name}", of)]
    runs += made_up("cifar10/adamw/skip", [76.5, 76.5])
    judgement = beyond_claim.judge_beyond(runs)
    helps, ahead = judgement.verdict.split(". ")
    assert helps == "CIFAR-10, SOAP: helps: centred-gelu; hurts: tat; not shown to matter: dct"
    assert ahead == "CIFAR-10, SOAP ahead of AdamW with skips: centred-gelu."
    rows = {row.name: row.value for row in judgement.rows}
    assert rows["CIFAR-10, SOAP, skipless, initialized, less with skips"] == pytest.approx(-6.0)
    headline = "CIFAR-10, SOAP, skipless, initialized, centred-gelu, less with skips, AdamW"
    assert rows[headline] == pytest.approx(2.6)
    assert beyond_claim.judge_beyond(runs[:2]).verdict.startswith("Not decided")
    alone = beyond_claim.judge_beyond([run for run in runs if run["seed"] == 0])
    assert alone.verdict == "CIFAR-10, SOAP: too few seeds: centred-gelu, tat, dct."


def test_the_losses_in_results_are_of_the_runs_of_the_table():
    """A config may have been run for several claims, with other bits."""
    table, losses = (json.loads((RESULTS / f"{name}.json").read_text())["runs"] for name in ("cts-table1", "cts-fig1"))
    known = {(run["variant"], run["seed"]): run for run in table}
    for run in losses:
        same = known[run["variant"], run["seed"]]
        assert (run["top1"], run["loss"]) == (same["top1"], same["loss"]), run["variant"]


def test_gap_rules():
    runs = made_up("base/skip/soap", [85.0, 85.0]) + made_up("base/skipless-ours/soap", [81.0, 81.2])
    runs += made_up("long/skip/soap", [88.0, 88.0]) + made_up("long/skipless-ours/soap", [87.0, 87.1])
    runs += made_up("wide/skip/soap", [86.0, 86.0]) + made_up("wide/skipless-ours/soap", [84.0, 80.0])
    judgement = gap_claim.judge_gap(runs)
    assert judgement.verdict == "SOAP, with epochs: closes; SOAP, with width: no change shown."
    rows = {row.name: row for row in judgement.rows}
    assert rows["ViT-Tiny, 60 epochs, SOAP, gap"].value == pytest.approx(-0.95)
    assert rows["SOAP, change of the gap with epochs"].values == pytest.approx([3.0, 2.9])
    alone = gap_claim.judge_gap([run for run in runs if run["seed"] == 0])
    assert alone.verdict == "SOAP, with epochs: too few seeds; SOAP, with width: too few seeds."
    assert gap_claim.judge_gap(runs[:2]).verdict.startswith("Not decided")
