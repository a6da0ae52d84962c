"""The loop on a GPU: graph and eager to the bit, resumed to the bit, no waits for the device, bad steps skipped."""

import warnings
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from training_cases import (
    OnePoisoned,
    TensorSupply,
    does_not_wait,
    gpu_agrees_with_cpu,
    graph_equals_eager,
    resumes_to_the_bit,
    run,
    same_bits,
    tiny,
    with_dropout,
)

from wellcond.bench.loop import ConstantSupply, bare_stretch, beside, open_trainer, whole_stretch
from wellcond.bench.timing import HostClock, interleave
from wellcond.config import DataConfig, OptimConfig
from wellcond.runs import Run
from wellcond.training import checkpoints, train, trainer
from wellcond.training.capture import CapturedStep
from wellcond.training.processes import process_group

pytestmark = pytest.mark.gpu


def config(**changes):
    return tiny(**{"device": "cuda", "graph": "on", "deterministic": True, "ema": 0.9, "epochs": 2, **changes})


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("drop_path", [0.0, 0.3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_graph_equals_eager_to_the_bit(precision, drop_path, accumulate, tmp_path):
    base = config(precision=precision, accumulate=accumulate)
    base = replace(base, model=replace(base.model, drop_path=drop_path))
    graph_equals_eager(base, tmp_path)


def test_graph_equals_eager_with_dropout(tmp_path):
    graph_equals_eager(with_dropout(config(accumulate=2)), tmp_path)


@pytest.mark.parametrize("compiled", [False, True])
def test_annealed_skips_are_not_kept_by_a_graph(compiled, tmp_path):
    base = config(compile=compiled)
    cut = {"cut_attention_skips": True, "cut_mlp_skips": True, "anneal_skips": 0.8, "drop_path": 0.0}
    base = replace(base, model=replace(base.model, **cut))
    graph_equals_eager(base, tmp_path)


@pytest.mark.parametrize("graph", ["on", "off"])
@pytest.mark.parametrize("at", [4, 7])
def test_resumed_on_the_gpu_to_the_bit(graph, at, tmp_path, monkeypatch):
    base = with_dropout(config(graph=graph, precision="bf16"))
    resumes_to_the_bit(base, tmp_path, monkeypatch, at=at)


@pytest.mark.parametrize("graph", ["on", "off"])
def test_streamed_images_give_the_same_run_as_resident_ones(graph, tmp_path):
    data = DataConfig(train="procedural:64", val="procedural:24", image_size=16, cache=tmp_path / "cache", workers=2)
    base = config(graph=graph, data=data, model=replace(tiny().model, image_size=16, num_classes=10))
    for resident in ("yes", "no"):
        train(replace(base, data=replace(data, resident=resident)), tmp_path / resident)
    same_bits(tmp_path / "yes", tmp_path / "no")


@pytest.mark.parametrize("graph", ["on", "off"])
def test_an_ordinary_step_does_not_wait_for_the_gpu(graph, tmp_path):
    base = config(graph=graph, deterministic=False, epochs=20)
    does_not_wait(base, tmp_path / "run")


@pytest.mark.parametrize(("name", "graph"), [("adamw", "on"), ("adamw", "off"), ("muon", "auto")])
def test_a_bad_batch_on_the_gpu_is_skipped_and_counted(name, graph, tmp_path):
    base = config(graph=graph, deterministic=False, optim=OptimConfig(name=name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = train(base, tmp_path / "run", open_supply=OnePoisoned)
    assert summary.skipped == 2
    assert len(list((tmp_path / "run" / "replay").iterdir())) == 2
    path = tmp_path / "run" / "checkpoints" / checkpoints.name_of(10)
    for file in ("model", "optimizer", "average"):
        assert all(tensor.isfinite().all() for tensor in load_file(path / f"{file}.safetensors").values())
    if name == "adamw":
        counts = {t.item() for n, t in load_file(path / "optimizer.safetensors").items() if n.endswith("/step")}
        assert counts == {8.0}


def test_capture_leaves_weights_and_random_state(tmp_path):
    base = config(deterministic=False)
    (tmp_path / "run").mkdir()
    with process_group("cuda", base.batch_size, 1) as processes:
        supply = TensorSupply(base, processes)
        work = trainer.Trainer(base, Run(tmp_path / "run"), supply, processes)
        work.restore()
        before = {f: {n: t.detach().clone() for n, t in ts.items()} for f, ts in work.parts.live().items()}
        random = torch.cuda.get_rng_state()
        assert isinstance(work.step, trainer.Step)
        CapturedStep(work.step, supply.inputs(0))
        assert torch.equal(torch.cuda.get_rng_state(), random)
        for file, tensors in work.parts.live().items():
            for name, tensor in tensors.items():
                assert torch.equal(tensor, before[file][name]), (file, name)
        work.close()


def test_a_step_that_cannot_be_captured_is_run_as_it_is(tmp_path):
    """Capture breaks off in the middle, and the random numbers of dropout still flow afterwards."""

    class Waiting(TensorSupply):
        def prepare(self, inputs):
            images, targets = super().prepare(inputs)
            return images * (1 + 0 * images.sum().item()), targets

    base = with_dropout(config(graph="auto", deterministic=False))
    with pytest.warns(UserWarning, match="no CUDA graph: capture failed"):
        train(base, tmp_path / "waiting", open_supply=Waiting)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(replace(base, graph="off"), tmp_path / "eager", open_supply=TensorSupply)
    same_bits(tmp_path / "waiting", tmp_path / "eager")


def test_muon_falls_back_with_one_line(tmp_path):
    base = config(graph="auto", deterministic=False, optim=OptimConfig(name="muon"))
    with pytest.warns(UserWarning, match="no CUDA graph: the optimizer reads its learning rate on the host"):
        train(base, tmp_path / "run", open_supply=TensorSupply)


def test_gpu_and_cpu_agree_in_float64(tmp_path):
    base = config(precision="float64", deterministic=False)
    gpu_agrees_with_cpu(base, tmp_path, rel=1e-5)


@pytest.mark.slow
def test_compiled_and_captured(tmp_path):
    base = config(compile=True, deterministic=False, precision="float32")
    base = replace(base, model=replace(base.model, drop_path=0.3))
    run(base, tmp_path / "compiled")
    run(replace(base, compile=False), tmp_path / "plain")
    one, two = ([r["loss"] for r in Run(tmp_path / w).rows() if "loss" in r] for w in ("compiled", "plain"))
    assert one == pytest.approx(two, rel=1e-3)


def test_stretches_of_the_loop_and_of_its_bare_step(tmp_path):
    """Only that both are captured and run; the bar is that of `wellcond bench train`, on an idle GPU."""
    base = config(deterministic=False, epochs=1000, precision="bf16")
    with process_group("cuda", base.batch_size, 1) as processes:
        supply = TensorSupply(base, processes)
        loop = open_trainer(base, supply, processes, tmp_path / "loop")
        loop.advance(stop=False)  # capture
        bare = beside(loop, ConstantSupply(supply))
        calls = {"constant batch": bare_stretch(bare, 5), "loop": whole_stretch(loop, 5)}
        timings = interleave(calls, rounds=3, warmup=1, clock=HostClock())
        assert isinstance(loop.step, CapturedStep) and isinstance(bare.step, CapturedStep)
        assert all(timing.median > 0 for timing in timings.values())
        loop.close()
