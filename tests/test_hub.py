"""`wellcond push`: the folder, its card, the upload; and that its model comes back bit for bit by one call."""

import json
import shlex
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
import yaml
from huggingface_hub import ModelCard, errors
from run_cases import write_run
from safetensors.torch import load_file, save_file
from training_cases import run as train
from training_cases import tiny, without_labels

import wellcond as wc
from wellcond.cli import main
from wellcond.config import GrayingConfig, InitConfig, TrainConfig, from_json
from wellcond.hub import curves
from wellcond.runs import Run
from wellcond.runs_page.reading import read

FILES = {"README.md", "config.json", "model.safetensors", "wellcond.json"}
SHORT: dict[str, Any] = {"epochs": 1, "optim": replace(tiny().optim, warmup_epochs=0.0)}


def changed(**model: Any) -> TrainConfig:
    return tiny(model=replace(tiny().model, **model), **SHORT)


GRAYED = {"graying": GrayingConfig(method="svd", epsilon=0.7)}
CUT: dict[str, Any] = {"cut_attention_skips": True, "cut_mlp_skips": True, "drop_path": 0.0}
CONFIGS = {
    "plain": tiny(**SHORT, monitor_every=1, monitor_images=4),
    "average": tiny(**SHORT, ema=0.9),
    "double": tiny(**SHORT, precision="float64"),
    "grayed": changed(graying=GrayingConfig(method="dct", epsilon=0.9)),
    "skipless": changed(**CUT, **GRAYED, init=InitConfig(method="skipless", positions=0.3), activation="tat"),
    "linear": changed(attention="linear", k=4.0, cut_attention_skips=True),
    "mae": without_labels("mae", **SHORT),
    "dino": without_labels("dino", **SHORT),
}
PLAIN = {"plain", "average", "mae", "dino"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, config in CONFIGS.items():
        train(config, folder / name)
    return folder


@pytest.fixture
def pushed(runs, tmp_path):
    def push(name: str, *options: str) -> Path:
        assert main(["push", str(runs / name), "me/model", "--dry-run", "--out", str(tmp_path / name), *options]) == 0
        return tmp_path / name

    return push


def images(dtype=torch.float32):
    return torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    _, front, body = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(front), body


@pytest.mark.parametrize("name", CONFIGS)
def test_one_call_gives_the_model_of_the_run(name, runs, pushed):
    folder = pushed(name)
    assert {path.name for path in folder.iterdir()} == FILES
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of skips, above all: it is loaded into the model that it was trained in
        want, got = wc.load(runs / name), wc.load(str(folder))
    x = images(torch.float64 if name == "double" else torch.float32)
    assert torch.equal(got(x), want(x)) and not got.training
    assert [type(m).__name__ for m in got.modules()] == [type(m).__name__ for m in want.modules()]
    theirs = want.state_dict()
    assert list(theirs) == list(got.state_dict())
    assert all(torch.equal(t, theirs[k]) and t.dtype == theirs[k].dtype for k, t in got.state_dict().items())


@pytest.mark.parametrize("name", CONFIGS)
def test_timm_loads_the_weights_and_what_it_cannot_is_said(name, runs, pushed):
    folder = pushed(name)
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    weights = load_file(folder / "model.safetensors")
    assert all(torch.equal(t, weights[k].to(t.dtype)) for k, t in model.state_dict().items())
    front, body = card_of(folder)
    if name in PLAIN:
        assert torch.equal(model(images()), wc.load(folder)(images()))
        assert "timm.create_model(" in body and front["library_name"] == "timm"
    elif name != "double":
        assert not torch.allclose(model(images()), wc.load(folder)(images()))
        assert "Not by timm alone" in body and "timm.create_model(" not in body and front["library_name"] == "wellcond"


def test_timm_knows_the_names_of_the_classes(runs, tmp_path):
    shutil.copytree(runs / "plain", tmp_path / "run")
    assert "label_names" not in json.loads(_written(tmp_path / "run", tmp_path / "unnamed"))
    Run(tmp_path / "run").write_classes(names := ["cat", "dog", "fish", "bird"])
    assert json.loads(_written(tmp_path / "run", tmp_path / "named"))["label_names"] == names
    model: Any = timm.create_model(f"local-dir:{tmp_path / 'named'}", pretrained=True)
    assert model.pretrained_cfg["label_names"] == names


def _written(run: Path, out: Path) -> str:
    assert main(["push", str(run), "me/model", "--dry-run", "--out", str(out)]) == 0
    return (out / "config.json").read_text()


def test_a_run_stopped_while_it_annealed_keeps_its_gain(tmp_path):
    config = replace(changed(**CUT, anneal_skips=1.0), epochs=2)
    train(config, tmp_path / "run")
    assert main(["push", str(tmp_path / "run"), "x", "--dry-run", "--out", str(tmp_path / "done")]) == 0
    assert "none; their gain fell from 1 to 0 over the first 100 % of the steps" in card_of(tmp_path / "done")[1]
    checkpoint = max((tmp_path / "run/checkpoints").iterdir())
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps({**state, "skip_gain": 0.25}))
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["state.json"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    assert main(["push", str(tmp_path / "run"), "x", "--dry-run", "--out", str(tmp_path / "out")]) == 0
    want, got = wc.load(tmp_path / "run"), wc.load(tmp_path / "out")
    assert {b.attention_gain for b in got.modules() if hasattr(b, "attention_gain")} == {0.25}
    assert torch.equal(got(images()), want(images()))
    assert "still have a gain of 0.25" in card_of(tmp_path / "out")[1]


def test_a_pushed_folder_is_no_run(pushed, capsys):
    folder = pushed(next(iter(CONFIGS)))
    assert main(["evaluate", str(folder)]) == 2
    assert "is what wellcond push wrote, not a run; give the run" in capsys.readouterr().err


def test_our_own_architecture_is_said_to_be_ours(tmp_path):
    model = replace(tiny().model, name="convmixer_tiny", options=(), drop_path=0.0)
    train(tiny(model=model, **SHORT), tmp_path / "run")
    assert main(["push", str(tmp_path / "run"), "x", "--dry-run"]) == 0
    folder = tmp_path / "run/hub"
    assert torch.equal(wc.load(folder)(images()), wc.load(tmp_path / "run")(images()))
    assert "timm alone has no architecture of this name" in card_of(folder)[1]


def test_the_card_tells_what_a_reader_asks(runs, pushed):
    front, body = card_of(pushed("skipless", "--license", "apache-2.0"))
    assert front["license"] == "apache-2.0" and front["pipeline_tag"] == "image-classification"
    assert {"wellcond", "arxiv:2505.01996", "arxiv:2510.00345"} <= set(front["tags"])
    top1 = json.loads((runs / "skipless/summary.json").read_text())["top1"]
    assert front["model-index"][0]["results"][0]["metrics"][0]["value"] == pytest.approx(top1, abs=1e-3)
    assert f"| top-1, % | {top1:.2f} |" in body
    for words in ("SVD, ε = 0.7", "| skips | none |", "skipless, α = 2; β = 0.6; c = 3", "positions of deviation 0.3",
                  "| seed | 0 |", "| dataset |", "| licence | apache-2.0 |", 'wc.load("hf:me/model")', "Not measured",
                  "| commit |"):  # fmt: skip
        assert words in body, words
    start = json.loads((runs / "skipless/env.json").read_text())["starts"][0]
    told = shlex.split(body.split("```sh\n")[1].split("\n```")[0])
    assert [word.split("/")[-1] for word in shlex.split(start["command"])] == [word.split("/")[-1] for word in told]
    assert from_json(body.split("```json\n")[1].split("```")[0], TrainConfig) == CONFIGS["skipless"]


def changed_run(folder: Path, run: Path, *rows: dict[str, Any]) -> Path:
    """A copy of the run with more lines in its metrics."""
    shutil.copytree(run, folder)
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def test_numbers_are_of_the_weights_that_are_pushed(runs, tmp_path):
    """A run that was killed has measured later than it has saved."""
    step = json.loads((runs / "plain/summary.json").read_text())["steps"]
    later = {"kind": "eval", "step": step + 5, "epoch": 2, "top1": 99.5, "top5": 99.75}
    run = changed_run(tmp_path / "run", runs / "plain", later)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert main(["push", str(run), "me/model", "--dry-run"]) == 0
    front, body = card_of(run / "hub")
    top1 = json.loads((runs / "plain/summary.json").read_text())["top1"]
    assert front["model-index"][0]["results"][0]["metrics"][0]["value"] == pytest.approx(top1, abs=1e-3)
    assert f"| top-1, % | {top1:.2f} |" in body and "99.5" not in body
    kept = [row for row in rows if (row["kind"], row["step"]) != ("eval", step)]  # now there is none of its own step
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert main(["push", str(run), "me/model", "--dry-run"]) == 0
    front, body = card_of(run / "hub")
    assert "model-index" not in front
    assert f"| top-1, %, at step {step + 5}: of other weights | 99.50 |" in body and f"of step {step}:" in body


def test_judges_along_the_way_are_results(runs, tmp_path):
    step = json.loads((runs / "dino/summary.json").read_text())["steps"]
    row = {"kind": "judge", "step": step, "epoch": 1, "judge": "knn", "top1": 41.25, "images": 11}
    run = changed_run(tmp_path / "run", runs / "dino", {**row, "step": 1, "top1": 3.0}, row,
                      {**row, "judge": "discovery", "data": "/home/me/voc", "corloc": 12.5})  # fmt: skip
    assert main(["push", str(run), "me/model", "--dry-run"]) == 0
    body = card_of(run / "hub")[1]
    assert "| k-NN top-1, % | 41.25 |" in body and "| CorLoc, %, on voc | 12.50 |" in body
    assert "No accuracy was measured" not in body and "3.00 |" not in body


def test_no_path_of_this_machine_is_published(runs, tmp_path):
    run = changed_run(tmp_path / "run", runs / "plain")
    fields = json.loads((run / "config.json").read_text())
    fields["data"] |= {"train": "/home/me/cats", "val": "cifar10:/home/me/x", "cache": "/home/me/cache/y"}
    fields |= {"pretrained": "/home/me/runs/first"}
    fields["along"]["judges"] = ["knn", "discovery=/home/me/voc", "pca=hf:owner/set"]
    (run / "config.json").write_text(json.dumps(fields))
    words = ["wellcond", "train", "r", "--out=/home/me/run", "--data.train", "/home/me/cats", "--along.judges",
             "knn=hf:owner/set"]  # fmt: skip
    start = json.loads((run / "env.json").read_text())["starts"][0]
    (run / "env.json").write_text(json.dumps({"starts": [{**start, "command": shlex.join(words)}]}))
    assert main(["push", str(run), "me/model", "--dry-run"]) == 0
    for name in FILES:
        content = (run / "hub" / name).read_bytes()
        assert b"/home" not in content and str(tmp_path).encode() not in content, name
    body = card_of(run / "hub")[1]
    told = from_json(body.split("```json\n")[1].split("```")[0], TrainConfig)
    assert (told.data.train, told.data.val, told.data.cache) == ("cats", "cifar10:x", Path("y"))
    assert told.along.judges == ("knn", "discovery=voc", "pca=hf:owner/set") and "| started from | first |" in body
    assert "```sh\nwellcond train r --out=run --data.train cats --along.judges knn=hf:owner/set\n```" in body
    assert torch.equal(wc.load(run / "hub")(images()), wc.load(run)(images()))


def test_the_card_is_one_that_the_hub_reads(pushed):
    folder = pushed("plain")
    card: Any = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "timm" and card.data.eval_results[0].metric_type == "accuracy"
    assert "license" not in card_of(folder)[0] and "| licence | none is stated |" in card.text
    assert card_of(pushed("dino"))[0]["pipeline_tag"] == "image-feature-extraction"


def test_curves_are_those_of_the_metrics(runs, pushed, tmp_path):
    rows = [json.loads(line) for line in (runs / "plain/metrics.jsonl").read_text().splitlines()]
    mine = [r for r in rows if r["kind"] == "probe" and r["quantity"] == "log_kappa" and r["epoch"] == 1]
    sites = ("sab_in", "sab_out", "sab_sum", "ffn_out", "ffn_sum")
    by_block = [[next(r["value"] for r in mine if (r["layer"], r["site"]) == (b, s)) for s in sites] for b in (0, 1)]
    body = card_of(pushed("plain"))[1]
    assert "| block | block input | attention alone | attention + skip | MLP alone | MLP + skip |" in body
    for block, values in enumerate(by_block):
        assert f"| {block} | {' | '.join('∞' if v is None else f'{v:.2f}' for v in values)} |" in body


def test_curves_over_many_epochs_and_of_collapsed_tokens(tmp_path):
    config = replace(CONFIGS["plain"], epochs=20)
    metrics = write_run(tmp_path / "run", config, epochs=20) / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"value": 9.0,', '"value": 99.0,'))  # block 2: no mean is a median
    text = curves.tables(read(tmp_path / "run"))
    epochs = [line.split(" | ")[0].removeprefix("| ") for line in text.split("\n\n")[1].splitlines()[2:]]
    assert len(epochs) == 8 and epochs[0] == "1" and epochs[-1] == "20"
    assert "| 20 | 8.00 | 8.00 |" in text and "| 2 | 99.00 |" in text  # median over blocks of 7, 8, 99
    text = curves.tables(read(write_run(tmp_path / "dead", config, collapsed=True)))
    assert "| 1 | ∞ | ∞ |" in text and "| 0 | 5.40 |" in text
    assert curves.tables(read(write_run(tmp_path / "none", config, probes=False))) == ""


def test_a_dry_run_says_where_and_needs_no_network(runs, tmp_path, capsys, monkeypatch):
    import socket

    def refuse(*_args):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    out = tmp_path / "out"
    for _ in range(2):  # a second one replaces the first
        assert main(["push", str(runs / "grayed"), "me/model", "--dry-run", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert str(out) in said and "nothing was uploaded" in said and "/me/model" in said


def test_the_upload_takes_only_our_files(runs, tmp_path, capsys, monkeypatch):
    calls: list[tuple[str, Any]] = []

    class Api:
        def create_repo(self, name, **options):
            calls.append((name, options))
            return type("Url", (), {"repo_id": f"me/{name}"})

        def upload_folder(self, **options):
            calls.append(("upload", options))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    out = tmp_path / "out"
    assert main(["push", str(runs / "plain"), "model", "--out", str(out), "--private"]) == 0
    (name, made), (_, sent) = calls
    assert name == "model" and made == {"private": True, "exist_ok": True}
    assert sent["repo_id"] == "me/model" and sent["folder_path"] == out and set(sent["allow_patterns"]) == FILES
    assert capsys.readouterr().out.splitlines()[-1].endswith("/me/model")


def test_from_the_hub_by_name(pushed, monkeypatch):
    folder = pushed("skipless")
    asked = []

    def snapshot(name, *, revision, allow_patterns):
        asked.append((name, revision, set(allow_patterns)))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert torch.equal(wc.load("hf:me/model@v1")(images()), wc.load(folder)(images()))
    assert asked == [("me/model", "v1", {"wellcond.json", "model.safetensors"})]


def response(status: int) -> Any:
    """As much of an answer of the hub as its library's errors look at."""
    return SimpleNamespace(status_code=status, headers={}, request=None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.LocalTokenNotFoundError("no token"), "hf auth login"),
        (errors.HfHubHTTPError("401", response=response(401)), "hf auth login"),
        (errors.HfHubHTTPError("403", response=response(403)), "write access"),
        (errors.RepositoryNotFoundError("404", response=response(404)), "is not there, or is private"),
        (ConnectionError("Name or service not known"), "check the network"),
    ],
    ids=["no token", "bad token", "forbidden", "absent", "no network"],
)
def test_what_the_hub_refuses_is_one_line(error, words, runs, tmp_path, capsys, monkeypatch):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr("huggingface_hub.HfApi.create_repo", fail)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    assert main(["push", str(runs / "plain"), "me/model", "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and words in said and str(tmp_path / "out") in said
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES  # nothing is lost
    with pytest.raises(ValueError, match=words):
        wc.load("hf:me/model")


def _files(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("mine")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "x"], "'nowhere' does not exist"),
        (["empty", "x"], "'empty' is not a run directory"),
        (["RUN", "a/b/c"], "name is 'a/b/c'"),
        (["RUN", "so bad"], "OWNER/NAME of letters"),
        (["RUN", "x", "--out", "mine"], "holds other files"),
        (["RUN", "x", "--out", "file"], "which is a file"),
        (["RUN"], "push needs a run directory and a name"),
        ([], "push needs a run directory and a name"),
        (["RUN", "x", "--dry"], "did you mean '--dry-run'"),
        (["untrained", "x"], "no whole checkpoint left"),
    ],
    ids=str,
)
def test_mistakes_are_one_line(words, said, runs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _files(tmp_path / "mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    write_run(tmp_path / "untrained", CONFIGS["plain"])
    arguments = [str(runs / "plain") if word == "RUN" else word for word in words]
    assert main(["push", *arguments, *(["--dry-run"] if len(words) == 2 else [])]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and said in captured.err and captured.out == ""
    assert (tmp_path / "mine/README.md").read_text() == "mine"


def test_damaged_and_foreign_folders_are_refused(pushed, tmp_path):
    folder = pushed("plain")
    with pytest.raises(ValueError, match="one set of weights"):
        wc.load(folder, average=True)
    config = (folder / "wellcond.json").read_text()
    fields = json.loads(config)

    def with_model(**changes: Any) -> str:
        return json.dumps({**fields, "model": {**fields["model"], **changes}})

    wrong = {
        "no field 'code'": json.dumps({**fields, "code": "import os"}),
        "would bring other weights": with_model(options=[["checkpoint_path", "evil.pth"]]),
        "timm does not know": with_model(name="hf-hub:a/b"),
        r"does not fit wellcond\.json": with_model(num_classes=9),
        "not JSON": "pickle",
    }
    for said, text in wrong.items():
        (folder / "wellcond.json").write_text(text)
        with pytest.raises(ValueError, match=said):
            wc.load(folder)
    (folder / "wellcond.json").write_text(config)
    save_file({"x": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="does not fit"):
        wc.load(folder)
    torch.save({"x": torch.ones(1)}, folder / "model.safetensors")  # a pickle by another name
    with pytest.raises(ValueError, match="is damaged"):
        wc.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        wc.load(folder)
