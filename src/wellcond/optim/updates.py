"""One or two torch optimizers behind one face.

- The learning rate is one number (CPU) or one 0-d tensor (CUDA, so that a captured step reads it anew).
- `step(bad)` moves nothing where the 0-d tensor `bad` is 1, and does not ask the host: SOAP takes it as it is, fused
  AdamW as GradScaler's `found_inf`; any other optimizer's result is selected against a copy of what was before.
- `refresh()` is what follows a step outside of any CUDA graph: SOAP's bases, a few of them each time.
- All state exists from the start: a CUDA graph that made it on its first step would make it again on every replay.
- State is saved by parameter name, not by position, and whole, whatever ranks share it.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from wellcond.config import OptimConfig
from wellcond.optim.groups import Group, parameter_groups
from wellcond.optim.soap import SOAP


def build_updates(objective: nn.Module, config: OptimConfig, *, products: str = "float32") -> "Updates":
    """The optimizer of a config over an objective, whose timm model is its child `model`.

    `products` is SOAP's: "tf32" where the gradients come from autocast and are rougher than that.
    """
    fixed = config.weight_decay if config.weight_decay_end is None else 0.0  # else ScheduledDecay's
    groups = parameter_groups(objective, weight_decay=fixed, layer_decay=config.layer_decay)
    if config.name == "adamw":
        return Updates([_adamw(groups, config)], groups)
    if config.name == "soap":
        return Updates([_soap(groups, config, products)], groups)
    matrices, rest = _split(groups)
    return Updates([_muon(matrices, config), _adamw(rest, config)], matrices + rest)


class Updates:
    """`parts` are torch optimizers over the parameters of `groups`, each group with its `lr_scale`."""

    def __init__(self, parts: list[Optimizer], groups: list[Group]) -> None:
        self.parts = parts
        self.name_of = {p: n for g in groups for n, p in zip(g.names, g.parameters, strict=True)}
        for part in parts:
            _make_state(part)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return list(self.name_of)

    @property
    def capturable(self) -> bool:
        """Can a CUDA graph hold a step? torch's Muon reads its learning rate on the host."""
        return all(isinstance(part, SOAP) or part.defaults.get("capturable") for part in self.parts)

    def set_lr(self, lr: Tensor | float) -> None:
        """The learning rate of the next step; a tensor stays on its device."""
        for part in self.parts:
            for group in part.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].copy_(lr * group["lr_scale"])
                else:
                    group["lr"] = float(lr) * group["lr_scale"]

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    @torch.no_grad()
    def step(self, bad: Tensor) -> None:
        """One update, or none where `bad` (0-d float32) is 1."""
        for part in self.parts:
            if isinstance(part, SOAP):
                part.update(bad)
            elif part.defaults.get("fused"):
                part.found_inf = bad  # type: ignore[attr-defined]  # what GradScaler sets
                part.step()
            elif bad.device.type == "cpu":
                if not bad:
                    part.step()
            else:
                self._step_and_select(part, bad)

    def refresh(self) -> None:
        """After each step, bad or not."""
        for part in self.parts:
            if isinstance(part, SOAP):
                part.refresh()

    def wait(self) -> None:
        """Let this stream wait for what a refresh does beside it."""
        for part in self.parts:
            if isinstance(part, SOAP):
                part.wait()

    def _step_and_select(self, part: Optimizer, bad: Tensor) -> None:
        tensors = [p for g in part.param_groups for p in g["params"]] + [t for *_, t in _tensors(part)]
        before = [t.clone() for t in tensors]
        part.step()
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(bad > 0, old, tensor))

    def state(self) -> dict[str, Tensor]:
        """`parameter name/key` → tensor, e.g. model.head.weight/exp_avg. The tensors are the optimizer's own.

        What another rank keeps (SOAP) is a tensor on "meta": it has a shape, and swallows what is copied into it.
        """
        self.wait()
        return {f"{self.name_of[p]}/{key}": value for part in self.parts for p, key, value in _tensors(part)}

    def whole_state(self) -> Iterator[tuple[str, Tensor]]:
        """The same with what other ranks keep, one after the other: all ranks must ask (a collective)."""
        for part in self.parts:
            tensors = _tensors(part)
            if isinstance(part, SOAP):
                tensors = ((p, key, value) for p, state in part.whole_state() for key, value in state.items())
            yield from ((f"{self.name_of[p]}/{key}", value) for p, key, value in tensors)


def _adamw(groups: list[Group], config: OptimConfig) -> AdamW:
    on_cuda = groups[0].parameters[0].device.type == "cuda"
    return AdamW(
        [_torch_group(g, config.lr, tensor_lr=on_cuda) for g in groups],
        betas=config.betas,
        eps=config.eps,
        fused=True,
        capturable=on_cuda,
    )


def _soap(groups: list[Group], config: OptimConfig, products: str) -> SOAP:
    on_cuda = groups[0].parameters[0].device.type == "cuda"
    return SOAP(
        [_torch_group(g, config.lr, tensor_lr=on_cuda) for g in groups],
        betas=config.betas,
        eps=config.eps,
        precondition_frequency=config.precondition_frequency,
        max_precondition_dim=config.max_precondition_dim,
        refresh=config.refresh,
        products=products,
        process_group=dist.group.WORLD if config.shard and dist.is_initialized() else None,
    )


def _muon(groups: list[Group], config: OptimConfig) -> Muon:
    """Muon with updates as large as AdamW's (Moonlight, arXiv 2502.16982, §2.2): one learning rate fits both."""
    options = [_torch_group(g, config.lr, tensor_lr=False) for g in groups]
    return Muon(options, momentum=0.95, adjust_lr_fn="match_rms_adamw")


def _torch_group(group: Group, lr: float, *, tensor_lr: bool) -> dict:
    # float32: the fused kernel reads nothing else
    value = torch.tensor(lr, dtype=torch.float32, device=group.parameters[0].device) if tensor_lr else lr
    return {
        "params": list(group.parameters),
        "weight_decay": group.weight_decay,
        "lr": value,
        "lr_scale": group.lr_scale,
    }


def _split(groups: list[Group]) -> tuple[list[Group], list[Group]]:
    """Matrices of the blocks for Muon; embeddings, head, vectors for AdamW (Jordan et al. 2024)."""
    matrices, rest = [], []
    for group in groups:
        pairs = list(zip(group.names, group.parameters, strict=True))
        for target, chosen in (
            (matrices, [(n, p) for n, p in pairs if _is_hidden(n, p)]),
            (rest, [(n, p) for n, p in pairs if not _is_hidden(n, p)]),
        ):
            if chosen:
                names, parameters = zip(*chosen, strict=True)
                target.append(
                    Group(names=names, parameters=parameters, weight_decay=group.weight_decay, lr_scale=group.lr_scale)
                )
    if not matrices:
        raise ValueError("optim.name is 'muon', but the model has no weight matrices in its blocks; use 'adamw'")
    return matrices, rest


def _is_hidden(name: str, parameter: nn.Parameter) -> bool:
    """The weight of a linear layer that is neither embedding nor head; a table of position biases is not one at all."""
    *layers, own = name.split(".")
    outer = any(layer.startswith(("head", "predict")) or "embed" in layer for layer in layers)
    return parameter.ndim == 2 and own == "weight" and not outer


def _make_state(part: Optimizer) -> None:
    """What the first step of this torch optimizer would make; SOAP has made its own."""
    for group in part.param_groups:
        for p in group["params"]:
            if isinstance(part, AdamW):
                where = p.device if part.defaults["fused"] or part.defaults["capturable"] else "cpu"
                part.state[p] = {
                    "step": torch.zeros((), dtype=torch.float32, device=where),
                    "exp_avg": torch.zeros_like(p),
                    "exp_avg_sq": torch.zeros_like(p),
                }
            elif isinstance(part, Muon):
                part.state[p] = {"momentum_buffer": torch.zeros_like(p)}


def _tensors(part: Optimizer) -> Iterator[tuple[nn.Parameter, str, Tensor]]:
    for group in part.param_groups:
        for p in group["params"]:
            for key, value in part.state[p].items():
                if isinstance(value, Tensor):
                    yield p, key, value
