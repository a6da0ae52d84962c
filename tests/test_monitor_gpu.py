"""Monitor on CUDA: nothing waits, numbers arrive later, CUDA graphs, the same training, and what it costs."""

import warnings

import pytest
import torch
from block_cases import VIT, images_of
from test_monitor import assert_same_rows, assert_same_training
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellcond.bench.steps import CapturedStep, Step
from wellcond.bench.training import build_vit
from wellcond.bench.workloads import training
from wellcond.monitor import Monitor, WellcondWarning
from wellcond.probes import probe

pytestmark = pytest.mark.gpu


def tiny():
    """ViT-Tiny/8 at 64 px."""
    return build_vit(training("b", device="cuda", quick=False), 0).cuda().train()


def loop(model, monitor, steps, *, batch=64):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.randn(batch, 3, 64, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    labels = torch.arange(batch, device="cuda")
    for _ in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step()
    return images


def test_nothing_waits_for_the_gpu_and_numbers_arrive_later():
    model = tiny()
    monitor = Monitor(model, every=5, budget=None)
    loop(model, monitor, 10)  # libraries are loaded, kernels compiled, pinned memory is allocated
    monitor.state_dict()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        images = loop(model, monitor, 12)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    monitor.close()
    assert [m.step for m in monitor.history] == [1, 5, 10, 15, 20]
    model.eval()
    monitor = Monitor(model, images=images[:8])
    monitor.step()
    monitor.close()
    assert_same_rows(monitor.rows, probe(model, [images[:8]], attention=False), rel=1e-4)


def test_a_captured_step_with_the_monitor_outside():
    model = tiny()
    step = Step(model, device="cuda", compiled=False, capturable=True)
    images, labels = torch.randn(32, 3, 64, 64, device="cuda"), torch.arange(32, device="cuda")
    with Monitor(model, every=3, budget=None) as monitor:  # sees the batch of the warm-up
        captured = CapturedStep(step, images, labels)
        for _ in range(6):
            captured(images, labels)
            monitor.step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), pytest.raises(ValueError, match="captured"):
            monitor.step()
    assert [m.step for m in monitor.history] == [1, 3, 6]
    assert_same_rows(monitor.rows, probe(model, [images[:8]], attention=False), rel=1e-4)


def test_the_same_training_bit_for_bit():
    def run(monitored):
        torch.manual_seed(0)
        model = VIT.create().cuda().train()
        monitor = Monitor(model, every=2, budget=None) if monitored else None
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        images = images_of(VIT, 8).cuda()
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.simplefilter("ignore", WellcondWarning)
            for _ in range(6):
                functional.cross_entropy(model(images), torch.arange(8, device="cuda") % 5).backward()
                optimizer.step()
                optimizer.zero_grad()
                if monitor is not None:
                    monitor.step()
        assert monitor is None or monitor.state_dict()["step"] == 6
        return {**model.state_dict(), "next": torch.rand(3, device="cuda")}

    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        want, again, got = run(False), run(False), run(True)
    finally:
        torch.backends.cudnn.deterministic = before
    if not all(torch.equal(want[key], again[key]) for key in want):
        pytest.skip("training on this GPU is not deterministic by itself")
    assert_same_training(got, want)
