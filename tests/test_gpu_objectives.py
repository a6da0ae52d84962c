"""MAE and DINO on a GPU: graph and eager to the bit, resumed to the bit, no waits; crops as on the CPU."""

import io
from dataclasses import replace

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from training_cases import (
    OnePoisoned,
    does_not_wait,
    gpu_agrees_with_cpu,
    graph_equals_eager,
    resumes_to_the_bit,
    run,
    with_dropout,
    without_labels,
)

from wellcond import recipes
from wellcond.config import AlongConfig, OptimConfig
from wellcond.data.masking import patch_order
from wellcond.data.multicrop import MultiCrop
from wellcond.data.randomness import keys
from wellcond.runs import Run
from wellcond.training import checkpoints, train

pytestmark = pytest.mark.gpu
OBJECTIVES = ("mae", "dino")
OPTIM = OptimConfig(lr=3e-3, clip=3.0, warmup_epochs=1.0, weight_decay=0.04, weight_decay_end=0.4)


def config(name, **changes):
    base = {"device": "cuda", "graph": "on", "deterministic": True, "epochs": 2, "optim": OPTIM}
    return without_labels(name, **{**base, **changes})


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_graph_equals_eager_to_the_bit(name, precision, accumulate, tmp_path):
    base = config(name, precision=precision, accumulate=accumulate)
    graph_equals_eager(base, tmp_path)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_resumed_on_the_gpu_to_the_bit(name, tmp_path, monkeypatch):
    base = config(name, precision="bf16")
    resumes_to_the_bit(base, tmp_path, monkeypatch, at=7)


@pytest.mark.parametrize("graph", ["on", "off"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_ordinary_step_does_not_wait_for_the_gpu(name, graph, tmp_path):
    base = config(name, graph=graph, deterministic=False, epochs=20)
    does_not_wait(base, tmp_path / "run")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_bad_batch_leaves_teacher_and_centre_finite(name, tmp_path):
    run(config(name, deterministic=False), tmp_path / "run", OnePoisoned)
    assert (Run(tmp_path / "run").read_summary() or {})["skipped"] == 2


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gpu_and_cpu_agree_in_float64(name, tmp_path):
    base = config(name, precision="float64", deterministic=False)
    gpu_agrees_with_cpu(base, tmp_path, rel=1e-4)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_judges_along_the_way_leave_a_captured_step_alone(name, tmp_path):
    """They read the model between replays, and put torch's generators back."""
    write_set(tmp_path / "set")
    words = tuple(f"{judge}={tmp_path / 'set'}" for judge in ("knn", "linear", "segmentation", "discovery", "pca"))
    along = AlongConfig(judges=words, every=1, probe_epochs=2, segmentation_epochs=2)
    base = with_dropout(config(name, precision="bf16"))
    run(base, tmp_path / "without")
    run(replace(base, along=along, data=replace(base.data, cache=tmp_path / "cache")), tmp_path / "with")
    for file in ("model", "optimizer", "random"):
        ours, theirs = (last_tensors(tmp_path / out, file) for out in ("with", "without"))
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours), file
    rows = [row for row in Run(tmp_path / "with").rows() if row["kind"] == "judge"]
    assert len(rows) == 2 * len(words) and all(row.get("top1", 1) is not None for row in rows)


def write_set(folder):
    """Ten pictures of noise in each half, with class, mask and box."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for half in ("train", "val"):
        pixels, masks = rng.integers(0, 255, (10, 16, 16, 3)), rng.integers(0, 3, (10, 16, 16))
        content = {
            "image": [{"bytes": png(one), "path": str(i)} for i, one in enumerate(pixels)],
            "mask": [{"bytes": png(one)} for one in masks],
            "label": [i % 3 for i in range(10)],
            "bbox": [[2, 2, 9, 12]] * 10,
        }
        parquet.write_table(pyarrow.table(content), folder / f"{half}-0.parquet")


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def last_tensors(out, file):
    folder = Run(out).checkpoints
    return checkpoints.read_tensors(folder / checkpoints.name_of(checkpoints.steps(folder)[0]), file)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["procedural-mae", "procedural-dino"])
def test_recipes_compiled_and_captured(name, tmp_path):
    """Gather, crops, masks and step in one graph, against the same step by step."""
    changes = {"data.train": "procedural:256", "data.val": "procedural:64", "data.cache": tmp_path / "cache"}
    base = recipes.get(name, epochs=1, log_every=1, **changes)
    losses = []
    for options in ({"compile": True, "graph": "on"}, {"compile": False, "graph": "off"}):
        out = tmp_path / str(options["compile"])
        train(replace(base, device="cuda", **options), out)
        losses.append([row["loss"] for row in Run(out).rows() if row["kind"] == "train"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_crops_and_masks_are_those_of_the_cpu():
    dino = without_labels("dino").dino
    views = MultiCrop(config=dino, image_size=16, mean=(0.5,) * 3, std=(0.2,) * 3)
    raw = torch.randint(0, 256, (32, 3, 24, 24), dtype=torch.uint8)
    k = keys(0, 2, torch.arange(32))
    here = views(raw, k, k, k[0])
    there = torch.compile(views, dynamic=False)(raw.cuda(), k.cuda(), k.cuda(), k[0].cuda())
    for one, two in zip(here, there, strict=True):
        torch.testing.assert_close(two.cpu(), one, rtol=0, atol=1e-4)
    assert torch.equal(patch_order(k.cuda(), 64).cpu(), patch_order(k, 64))
