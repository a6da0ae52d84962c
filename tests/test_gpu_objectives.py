"""MAE and DINO on a GPU: graph and eager to the bit, resumed to the bit, no waits; crops as on the CPU."""

from dataclasses import replace

import pytest
import torch
from training_cases import (
    OnePoisoned,
    does_not_wait,
    gpu_agrees_with_cpu,
    graph_equals_eager,
    resumes_to_the_bit,
    run,
    without_labels,
)

from wellcond import recipes
from wellcond.config import OptimConfig
from wellcond.data.masking import patch_order
from wellcond.data.multicrop import MultiCrop
from wellcond.data.randomness import keys
from wellcond.runs import Run
from wellcond.training import train

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
