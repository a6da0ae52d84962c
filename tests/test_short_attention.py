"""Attention of few tokens: the kernels against float64, on the CPU by Triton's interpreter, on the GPU as they are."""

import copy
import os
import subprocess
import sys
from typing import Any

import pytest
import timm
import torch
import training_cases
from timm.layers.attention import Attention
from torch.nn.functional import scaled_dot_product_attention

import wellcond as wc
from wellcond.subclassing import subclass
from wellcond.training import short_attention, trainer
from wellcond.training.short_attention import MOST, ShortAttention, shorten_, tiles

TOKENS = (1, 5, 16, 17, 33, 50, 64, 65, 81, 96)
INTERPRETED = """
import timm, torch
from test_short_attention import TOKENS, expected, vit
from wellcond.subclassing import subclass
from wellcond.training import short_attention as short

for op in (short._forward, short._backward):
    op.register_kernel("cpu")(op._init_fn)

for n in TOKENS:
    H = 3
    qkv, weight, out, back = expected(2, n, H, 16, torch.float16, torch.device("cpu"))
    X = qkv.clone().requires_grad_()
    Y = short.short_attention(X, H)
    (found,) = torch.autograd.grad(Y, X, weight.mT.contiguous().mT)  # as a projection before it may pass it on
    for ours, want in ((Y.detach(), out), (found, back)):
        error = float((ours.double() - want).norm() / want.norm().clamp_min(1e-30))
        assert torch.allclose(ours.double(), want, atol=4e-3), (n, error)
        assert error < 1e-3 or n == 1, (n, error)
torch.library.opcheck(short._forward, (qkv.requires_grad_(), H), test_utils=("test_schema", "test_faketensor"))

short._is_short = lambda x, width: True
model = vit(17, "cpu", embed_dim=48, num_heads=3).half()
images = torch.randn(2, 3, 16, 16).half()
want = model(images)
want.float().square().sum().backward()
gradients = [p.grad.clone() for p in model.parameters()]
for module in model.modules():
    if type(module) is short.Attention:
        module.__class__ = subclass(short.ShortAttention, short.Attention)
for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
    model.zero_grad()
    got = run(images)
    got.float().square().sum().backward()
    assert (got - want).norm() <= 0.01 * want.norm()
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert (p.grad - gradient).float().norm() <= 0.02 * gradient.float().norm() + 1e-3
"""


def by_torch(qkv: torch.Tensor, num_heads: int) -> torch.Tensor:
    B, n, _ = qkv.shape
    Q, K, V = qkv.reshape(B, n, 3, num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    return scaled_dot_product_attention(Q, K, V).transpose(1, 2).reshape(B, n, -1)


def expected(B: int, n: int, H: int, D: int, dtype: torch.dtype, device: torch.device):
    """Input, gradient of the output; output and gradient of the input in float64."""
    numbers = torch.Generator().manual_seed(n)
    qkv = torch.randn(B, n, 3 * H * D, generator=numbers).to(device, dtype)
    gradient = torch.randn(B, n, H * D, generator=numbers).to(device, dtype)
    X = qkv.double().requires_grad_()
    Y = by_torch(X, H)
    (back,) = torch.autograd.grad(Y, X, gradient.double())
    return qkv, gradient, Y.detach(), back


@pytest.mark.slow
def test_kernels_by_triton_interpreter():
    """The kernels' own code, run by numpy: by themselves, differentiated, and in a compiled model."""
    pytest.importorskip("triton")
    here = os.path.dirname(__file__)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": here}
    run = subprocess.run([sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]


@pytest.mark.parametrize("n", range(1, MOST + 1))
def test_tiles_hold_the_tokens(n):
    main, tail = tiles(n)
    assert main + tail >= n and main + tail <= max(2 * n, 16)
    for rows in (main, tail):
        assert rows == 0 or (rows >= 16 and rows & (rows - 1) == 0)
    assert not tail or main < n


def test_without_a_gpu_nothing_changes():
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32)
    shorten_(model, torch.device("cpu"), asked=True)
    assert not any(isinstance(module, ShortAttention) for module in model.modules())


def test_what_is_not_short_goes_timms_way(monkeypatch):
    """On the CPU, with a mask, with dropout, with norms of queries and keys."""
    monkeypatch.setattr(short_attention, "short_attention", None)
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"qk_norm": True, "norm_layer": torch.nn.LayerNorm},
        {"attn_drop": 0.5},
        {"gated": True},
    )
    for options in kinds:
        attention = Attention(48, num_heads=3, **options)
        x, mask = torch.randn(2, 5, 48), torch.randn(2, 3, 5, 5)
        torch.manual_seed(0)
        want = attention(x), attention(x, attn_mask=mask)
        attention.__class__ = subclass(ShortAttention, Attention)
        torch.manual_seed(0)
        assert torch.equal(attention(x), want[0]) and torch.equal(attention(x, attn_mask=mask), want[1])


@pytest.mark.parametrize(("option", "expected"), [("auto", [False]), ("on", [True]), ("off", [])])
def test_training_shortens_where_it_is_asked_to(option, expected, tmp_path, monkeypatch):
    shortened = []
    monkeypatch.setattr(trainer, "shorten_", lambda model, device, *, asked: shortened.append(asked))
    training_cases.run(training_cases.tiny(epochs=1, short_attention=option), tmp_path / "run")
    assert shortened == expected


@pytest.mark.parametrize(
    ("capability", "by_itself", "asked"),
    [((7, 5), False, False), ((8, 0), False, True), ((9, 0), True, True), ((10, 0), False, True)],
)
def test_which_gpus_go_the_short_way(capability, by_itself, asked, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    for ask, expected in ((False, by_itself), (True, asked)):
        model = vit(17, "cpu")
        shorten_(model, torch.device("cuda"), asked=ask)
        assert any(isinstance(module, ShortAttention) for module in model.modules()) is expected


def test_a_shortened_model_is_diagnosed_cut_and_loaded_as_before():
    model = vit(17, "cpu").eval()
    images = torch.randn(2, 3, 16, 16)
    want, keys = wc.diagnose(model, images).rows, list(model.state_dict())
    for module in model.modules():
        if type(module) is Attention:
            module.__class__ = subclass(ShortAttention, Attention)
    assert wc.diagnose(model, images).rows == want and list(model.state_dict()) == keys
    assert torch.equal(wc.restore_skips(wc.cut_skips(copy.deepcopy(model)))(images), model(images))


def vit(n: int = 65, device: str = "cuda", **options) -> torch.nn.Module:
    side = {17: 16, 65: 32, 257: 64}[n]
    model = timm.create_model("vit_tiny_patch16_224", depth=2, img_size=side, patch_size=4, num_classes=5, **options)
    return model.to(device).train()


def gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


@pytest.mark.gpu
@pytest.mark.parametrize("n", [1, 17, 50, 65, 81])
@pytest.mark.parametrize(
    ("H", "D", "dtype"),
    [(3, 64, torch.bfloat16), (6, 64, torch.bfloat16), (2, 32, torch.float16), (5, 16, torch.bfloat16)],
)
def test_kernels_on_the_gpu(H, D, n, dtype):
    """No worse than torch's own kernels in the same precision, and the same bits again."""
    qkv, weight, out, back = expected(3, n, H, D, dtype, torch.device("cuda"))

    def errors(attend) -> list[float]:
        X = qkv.clone().requires_grad_()
        Y = attend(X, H)
        (found,) = torch.autograd.grad(Y, X, weight)
        pairs = ((Y.detach(), out), (found, back))
        return [float((ours.double() - want).norm() / want.norm().clamp_min(1e-9)) for ours, want in pairs]

    ours, torchs = errors(short_attention.short_attention), errors(by_torch)
    for error, bar in zip(ours, torchs, strict=True):
        assert error <= 1.5 * bar + 1e-3
    assert errors(short_attention.short_attention) == ours


@pytest.mark.gpu
@pytest.mark.parametrize("n", [17, 65, 257])
def test_a_model_compiled_and_captured(n, monkeypatch):
    torch.compiler.reset()
    model = vit(n)
    images = torch.randn(4, 3, *[int((n - 1) ** 0.5) * 4] * 2, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        want = model(images).float()
    want.square().sum().backward()
    gradients = {name: gradient(p).clone() for name, p in model.named_parameters()}
    model.zero_grad()
    shorten_(model, torch.device("cuda"), asked=True)
    calls = []
    plain = short_attention.short_attention
    monkeypatch.setattr(short_attention, "short_attention", lambda *args: calls.append(1) or plain(*args))
    with torch.autocast("cuda", torch.bfloat16):
        got = model(images).float()
    assert len(calls) == (2 if n <= MOST else 0)
    assert (got - want).norm() <= 0.02 * want.norm()
    monkeypatch.undo()
    compiled = torch.compile(model, fullgraph=True)
    with torch.autocast("cuda", torch.bfloat16):
        compiled(images).float().square().sum().backward()
    for name, p in model.named_parameters():
        assert (gradient(p) - gradients[name]).norm() <= 0.05 * gradients[name].norm() + 1e-4, name
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        compiled(images)
        with torch.cuda.graph(graph):
            replayed = compiled(images)
    graph.replay()
    assert (replayed.float() - want).norm() <= 0.02 * want.norm()


@pytest.mark.gpu
def test_float32_and_jacobians_go_timms_way(monkeypatch):
    model = vit().eval()
    images = torch.randn(2, 3, 32, 32, device="cuda")
    want = model(images)
    shorten_(model, torch.device("cuda"), asked=True)
    monkeypatch.setattr(short_attention, "short_attention", None)
    assert torch.equal(model(images), want)
    assert wc.diagnose(model, images).rows
