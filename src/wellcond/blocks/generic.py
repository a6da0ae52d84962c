"""Any other module with norm1, attn, norm2 and mlp: two guesses at its forward, each proven on a batch or refused.

    before   x + scale(attn(norm1(x), …)), then x + scale(mlp(norm2(x)))      scale: ls1 | gamma_1 | gamma1 | nothing
    after    x + norm1(attn(x, …)),        then x + norm2(mlp(x))

The proof runs copies of the block, original and adapted, on the tokens that reach it: same output, same gradients for
the input and for every parameter, bit for bit, in evaluation and in training from the same random state. It does so
with the block's own weights and again with random ones, because a branch scaled to nearly nothing hides any mistake.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.blocks.adapted import Adapted, PostNorm, PreNorm, keep, swap_in
from wellcond.blocks.modes import evaluating
from wellcond.subclassing import InFront

Call = tuple[tuple[Any, ...], dict[str, Any]]


class AnyDropPath(PreNorm):
    needs_context = True

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.begin(x, *args, **kwargs)
        attention = self.attention_branch(self.normalise("attention", x), *args, **kwargs)
        x = self.close("sab", x, attention, self.attention_gain, _drop_path(self, "1"))
        mlp = self.mlp_branch(self.normalise("mlp", x), *args, **kwargs)
        return self.close("ffn", x, mlp, self.mlp_gain, _drop_path(self, "2"))


class GenericPreNorm(AnyDropPath):
    def attention_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _scaled(self, "1", self.attn(y, *args, **kwargs))

    def mlp_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return _scaled(self, "2", self.mlp(y))


class GenericPostNorm(AnyDropPath, PostNorm):
    pass


class _NoTensor(Exception):
    """A block returned something else; says what."""


def looks_like_a_block(module: nn.Module) -> bool:
    """By what it holds: wrappers (of checkpointing, of FSDP) answer to the names of the block inside."""
    return all(module._modules.get(name) is not None for name in ("norm1", "attn", "norm2", "mlp"))


def prove(model: nn.Module, blocks: dict[str, nn.Module], images: Tensor) -> dict[str, type[Adapted]]:
    """The guess that holds for each block; ValueError where none does. The model stays as it was."""
    calls = _calls(model, blocks, images)
    return {name: _proven(name, block, calls.get(name)) for name, block in blocks.items()}


def _proven(name: str, block: nn.Module, call: Call | None) -> type[Adapted]:
    what = f"block {name!r} ({type(block).__name__})"
    if call is None:
        raise ValueError(f"{what} was not called on the batch, so nothing can be proven about it")
    x = call[0][0] if call[0] else None
    if not (isinstance(x, Tensor) and x.ndim == 3):
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{what} takes {shape}, and only blocks that take tokens (B, n, d) first can be proven")
    members = {*block.__dict__, *block._modules, *block._parameters, *block._buffers}
    ours = {*vars(Adapted), *vars(PreNorm), *Adapted.__annotations__, *InFront.__annotations__}
    if taken := members & ours - _OURS_AND_THEIRS:
        raise ValueError(f"{what} has members of its own named {', '.join(sorted(taken))}; rename them to adapt it")
    for mixin in (GenericPreNorm, GenericPostNorm):
        try:
            if _holds(mixin, block, call):
                return mixin
        except _NoTensor as kind:
            raise ValueError(
                f"{what} returns a {kind}, and only blocks that return tokens alone can be proven"
            ) from None
    raise ValueError(
        f"{what} has norm1, attn, norm2 and mlp, but is neither x + attn(norm1(x)), x + mlp(norm2(x)) nor "
        "x + norm1(attn(x)), x + norm2(mlp(x)): its output or gradients differ. "
        "Its skips cannot be cut without knowing its forward"
    )


_OURS_AND_THEIRS = {"attn", "mlp", "norm1", "norm2", "drop_path1", "drop_path2", "forward"}


def _holds(mixin: type[Adapted], block: nn.Module, call: Call) -> bool:
    for training in (False, True):
        for random_weights in (False, True):
            trial = copy.deepcopy(block).train(training)
            if random_weights:
                _randomise_(trial)
            want = _outcome(copy.deepcopy(trial), call)
            try:
                got = _outcome(swap_in(trial, mixin), call)
            except Exception:  # a wrong guess may fail in any way
                return False
            if any(not _same(a, b) for a, b in zip(got, want, strict=True)):
                return False
    return True


def _outcome(block: nn.Module, call: Call) -> list[Tensor | None]:
    """[output, gradient for the input, gradients for the parameters] from a fixed random state."""
    (x, *args), kwargs = call
    x = x.clone().requires_grad_()
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), torch.enable_grad():
        torch.manual_seed(0)
        y = block(x, *args, **kwargs)
        if not isinstance(y, Tensor):
            raise _NoTensor(type(y).__name__)
        inputs = [x, *(p for p in block.parameters() if p.requires_grad)]
        return [y.detach(), *torch.autograd.grad(y, inputs, torch.randn_like(y), allow_unused=True)]


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def _randomise_(block: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in block.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float32, device="cpu").to(p)
            p.copy_(noise / p[0].numel() ** 0.5 if p.ndim > 1 else 1 + 0.1 * noise)


def _calls(model: nn.Module, blocks: dict[str, nn.Module], images: Tensor) -> dict[str, Call]:
    """What each block is called with, in evaluation; hooks are removed and modes restored whatever happens."""
    calls: dict[str, Call] = {}
    handles = [block.register_forward_pre_hook(_keep(calls, name), with_kwargs=True) for name, block in blocks.items()]
    try:
        # compiled code does not look at hooks
        with evaluating(model), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            model(images)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # the model as it came: whatever it has to say is about the images
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{type(model).__name__} does not run on images of shape {tuple(images.shape)}, on which its blocks were "
            f"to be proven ({said}); pass images= that it takes"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return calls


def _keep(calls: dict[str, Call], name: str) -> Any:
    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.setdefault(name, (args, kwargs))

    return hook


def _scaled(block: nn.Module, number: str, y: Tensor) -> Tensor:
    for name in (f"ls{number}", f"gamma_{number}", f"gamma{number}"):
        if (scale := getattr(block, name, None)) is not None:
            return scale(y) if isinstance(scale, nn.Module) else scale * y
    return y


def _drop_path(block: nn.Module, number: str) -> Any:
    for name in (f"drop_path{number}", "drop_path"):
        if isinstance(module := getattr(block, name, None), nn.Module):
            return module
    return keep
