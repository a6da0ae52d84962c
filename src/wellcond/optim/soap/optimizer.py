"""The optimizer that torch sees: parameter groups, whose turn it is, state."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral, Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from wellcond.blocks.depth import as_number
from wellcond.optim.soap.beside import Beside
from wellcond.optim.soap.layout import Layout
from wellcond.optim.soap.renewing import Place, renew_
from wellcond.optim.soap.sharing import Sharing
from wellcond.optim.soap.stacks import matmul_precision
from wellcond.optim.soap.turns import is_due

OF_ALL = ("max_precondition_dim", "refresh", "stagger", "products", "process_group", "overlap")


class SOAP(Optimizer):
    """Adam in the eigenbasis of Shampoo's preconditioner, the bases refreshed every `precondition_frequency` steps.

    Matrices are rotated on both sides, but not on a side longer than `max_precondition_dim`; vectors have plain Adam.
    Weight decay is decoupled. The first step of a weight only builds its basis. Weights may be bfloat16: the state is
    float32 (float64 for float64), and the sum is rounded once.

    refresh          "qr": a power step and QR, as in the paper; "eigh": a full eigendecomposition, which with
                     betas (.9, .95), weight decay .05 and a frequency of 100 is the eigenvalue-corrected Shampoo
    stagger          bases take turns, so that each step refreshes about as many; False: all in the same step
    products         "tf32" or "float32": how gradients are multiplied on CUDA; bases are always refined in float64
    process_group    ranks that hold the same weights and gradients (DDP): each keeps the state of a share of the
                     weights, moves it and sends it round (sharing.py says how much). None: this rank does all of it
    overlap          on CUDA: refresh on another stream while the next forward and backward pass runs; the bits are the
                     same. Whoever reads the state in between calls `wait()` first

    With a `process_group` all ranks must call `state_dict()`; each gets the whole state, on the CPU, which loads into
    any number of ranks. In `state`, what other ranks keep has a shape and no content (device "meta").

    `step()` is `update()`, which a CUDA graph can hold if `lr` is a tensor, and `refresh()`, which it cannot: in a
    captured loop, replay the one and call the other.

    >>> layer = torch.nn.Linear(4, 3)
    >>> optimizer = SOAP(layer.parameters(), lr=3e-3)
    >>> layer(torch.ones(2, 4)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        precondition_frequency: int = 10,
        *,
        max_precondition_dim: int = 10_000,
        refresh: str = "qr",
        stagger: bool = True,
        products: str = "tf32",
        process_group: dist.ProcessGroup | None = None,
        overlap: bool = False,
    ) -> None:
        _check_one_of("refresh", refresh, ("qr", "eigh"))
        _check_one_of("products", products, ("tf32", "float32"))
        _check_one_of("stagger", stagger, (True, False))
        _check_one_of("overlap", overlap, (True, False))
        if not isinstance(max_precondition_dim, Real) or not max_precondition_dim >= 0:  # inf: no limit
            raise ValueError(f"max_precondition_dim is {max_precondition_dim!r}; choose 0 or more, for example 10000")
        self.how, self.overlap = refresh, overlap
        self.sharing = None
        if process_group is not None and dist.get_world_size(process_group) > 1:
            self.sharing = Sharing(process_group)
        self.beside: Beside | None = None
        self.layout = Layout(max_precondition_dim, stagger, self.sharing)
        self.precision = {"tf32": "tf32", "float32": "ieee"}[products]
        if isinstance(params, nn.Module):
            raise ValueError(f"params is a {type(params).__name__}; pass its parameters, model.parameters()")
        params = params if isinstance(params, Tensor) else list(params)  # torch tells of a single tensor
        if not len(params):
            raise ValueError("params is empty; pass those of a model that has some, e.g. model.parameters()")
        self._ready = False
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"precondition_frequency": precondition_frequency})
        self._ready = True
        self._stack_up()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        _check_group(self.param_groups[-1])
        if self._ready:
            self._stack_up()

    def _stack_up(self) -> None:
        self.layout.extend(self.param_groups)
        self._show_state()

    def _show_state(self) -> None:
        """To torch; and the turns, which hang on the groups."""
        for _, stack in self.layout.stacks:
            for i, p in enumerate(stack.parameters):
                self.state[p] = stack.state(i)
        self._turns = self.layout.turns(self.param_groups)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`update` and `refresh`; the loss where a closure computes it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.update()
        self.refresh()
        return loss

    @torch.no_grad()
    def update(self, skip: Tensor | None = None) -> None:
        """The ordinary step; where `skip` (0-d, on the device) is not 0, it changes nothing."""
        self.wait()
        with matmul_precision(self.precision):
            for group, stack in self.layout.kept(self.param_groups):
                with torch.autocast(stack.device.type, enabled=False):
                    stack.update_(group, skip)
        if self.sharing is not None:
            self.sharing.send_round_()

    @torch.no_grad()
    def refresh(self) -> None:
        """After a step: build the bases of weights that took their first, and refresh those whose turn it is."""
        due: dict[str, list[Place]] = {}
        for group, stack in self.layout.kept(self.param_groups):
            frequency, places = group["precondition_frequency"], self._turns[stack]
            turns = stack.turn.tolist()
            built = [turn > 0 for turn in turns]
            if any(seen and not b for seen, b in zip(stack.seen, built, strict=True)):
                counts = stack.count.tolist()  # waits for the device, until there is a first step
                due.setdefault("first", []).extend(p for p, _ in places if counts[p.index] and not built[p.index])
                built = [count > 0 for count in counts]
            for place, phase in places:
                if is_due(turns[place.index], phase, frequency):
                    early = self.how == "qr" and turns[place.index] < 2 * frequency
                    due.setdefault("householder" if early else self.how, []).append(place)
            stack.turn.add_(torch.tensor(built, device="cpu"))
        if due:
            with self._aside(), matmul_precision("ieee"):
                for how, places in due.items():
                    renew_(places, how)

    def _aside(self) -> AbstractContextManager[None]:
        return self.beside.work() if self.overlap and self.beside is not None else nullcontext()

    def wait(self) -> None:
        """Let this stream wait for a refresh beside it; the host does not wait."""
        stacks = self.layout.stacks
        if self.overlap and self.beside is None and stacks and stacks[0][1].device.type == "cuda":
            self.beside = Beside(stacks[0][1].device)
        if self.beside is not None:
            self.beside.wait()

    @torch.no_grad()
    def whole_state(self) -> Iterator[tuple[nn.Parameter, dict[str, Tensor]]]:
        """The state of each weight, also of those that other ranks keep: all ranks must ask (a collective)."""
        self.wait()
        for _, stack in self.layout.stacks:
            whole = stack if self.sharing is None else self.sharing.whole(stack)
            for i, p in enumerate(stack.parameters):
                yield p, whole.state(i)

    def state_dict(self) -> dict[str, Any]:
        self.wait()
        found = super().state_dict()
        if self.sharing is not None:
            whole = {p: {key: t.cpu().clone() for key, t in state.items()} for p, state in self.whole_state()}
            every = [p for group in self.param_groups for p in group["params"]]
            found["state"] = {i: whole[p] for i, p in enumerate(every) if p in whole}
        return found

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copied in place, each tensor in its own dtype: torch would round the state of bfloat16 weights."""
        self.wait()
        self._check_state(state_dict)
        super().load_state_dict({"state": {}, "param_groups": state_dict["param_groups"]})  # by __setstate__
        whose = self._whose(state_dict["param_groups"])
        for name, saved in state_dict["state"].items():
            for key, value in saved.items():
                self.state[whose[name]][key].copy_(torch.as_tensor(value))
        for _, stack in self.layout.kept(self.param_groups):
            stack.seen = [count > 0 for count in stack.count.tolist()]  # one may have been saved before its first basis

    def __getstate__(self) -> dict[str, Any]:
        """Copied and pickled with the stacks that the state is views of; the stream beside is made anew."""
        self.wait()
        own = ("how", "overlap", "sharing", "layout", "precision", "_ready")
        return super().__getstate__() | {name: getattr(self, name) for name in own} | {"beside": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._show_state()

    def _whose(self, saved_groups: list[dict[str, Any]]) -> dict[Any, nn.Parameter]:
        """Parameters by what a state calls them: their number, or (torch.distributed.checkpoint) their name."""
        every = [p for group in self.param_groups for p in group["params"]]
        return dict(zip((name for group in saved_groups for name in group["params"]), every, strict=False))

    def _check_state(self, state_dict: Any) -> None:
        """ValueError, and nothing changed, where it is no state of these parameters."""
        _check_has(state_dict, {"param_groups", "state"})
        for group in state_dict["param_groups"]:
            _check_has(group, self.defaults.keys())
            _check_settings(group)
        for saved, own in zip(state_dict["param_groups"], self.param_groups, strict=False):
            _check_order(saved.get("param_names", ()), own.get("param_names", ()))
        whose = self._whose(state_dict["param_groups"])
        for name, state in state_dict["state"].items():
            saved = {key: tuple(torch.as_tensor(value).shape) for key, value in state.items()}
            kept = self.state[whose[name]] if name in whose else {}
            own = {key: tuple(value.shape) for key, value in kept.items()}
            if saved != own:
                key = next(key for key in (*saved, *own) if saved.get(key) != own.get(key))
                shape = tuple(whose[name].shape) if name in whose else "not there"
                raise ValueError(
                    f"the state has {key} {saved.get(key, 'missing')}, which parameter {name} does not fit: it is "
                    f"{shape}; load the state of the same model and settings, or start anew"
                )
        for name, p in whose.items():
            if p.requires_grad and p in self.state and name not in state_dict["state"]:
                raise ValueError(
                    f"the state has nothing of parameter {name}, which would go on as it is; load a whole state_dict() "
                    "of SOAP, or start anew"
                )


def _check_has(part: Any, keys: Set[str]) -> None:
    if missing := sorted(keys - part.keys() if isinstance(part, Mapping) else keys):
        raise ValueError(f"the state has no {missing[0]}, so it is no state_dict() of SOAP; load what SOAP gave")


def _check_order(saved: Sequence[str], own: Sequence[str]) -> None:
    """ValueError for the same names in another order: a state goes by order, and alike weights would change theirs."""
    if set(saved) == set(own) and list(saved) != list(own):
        theirs, ours = next(pair for pair in zip(saved, own, strict=False) if pair[0] != pair[1])
        raise ValueError(
            f"the state has {theirs!r} where this optimizer has {ours!r}; give it its parameters in that order"
        )


def _check_settings(group: dict[str, Any]) -> None:
    """ValueError for numbers that are none, or out of range."""
    for name, example in (("lr", "3e-3"), ("weight_decay", "0.01")):
        value = group[name]
        if name == "lr" and isinstance(value, Tensor) and value.numel() == 1:
            value = value.item() if value.device.type == "cpu" else 0.0  # the device is not asked for its value
        if not _is_number(value, 0, math.inf):
            raise ValueError(f"{name} is {value!r}; choose 0 or more, for example {example}")
    if not _is_number(group["eps"], torch.finfo(torch.float32).tiny, math.inf):  # 0/0 where there is no gradient yet
        raise ValueError(f"eps is {group['eps']!r}; choose a positive number that float32 holds, for example 1e-8")
    betas, frequency = group["betas"], group["precondition_frequency"]
    if not isinstance(betas, tuple | list) or len(betas) != 2 or not all(_is_number(beta, 0, 1) for beta in betas):
        raise ValueError(f"betas is {betas!r}; choose both in [0, 1), for example (0.95, 0.95)")
    if not isinstance(frequency, Integral) or isinstance(frequency, bool) or frequency < 1:
        raise ValueError(f"precondition_frequency is {frequency!r}; choose 1 or more, for example 10")


def _is_number(value: Any, low: float, high: float) -> bool:
    """In [low, high)? True is none, nor a whole number beyond float's."""
    return isinstance(value, Real) and low <= as_number(value) < high


def _check_group(group: dict[str, Any]) -> None:
    _check_settings(group)
    if given := [name for name in OF_ALL if name in group]:
        raise ValueError(f"a parameter group has {given[0]}, which all groups share; give it to SOAP itself")
    for p in group["params"]:
        if isinstance(p, DTensor):
            raise ValueError(
                f"SOAP needs whole matrices, and a parameter {tuple(p.shape)} is sharded (FSDP2); "
                "use parallel ddp, or optim.name adamw"
            )
        if not p.is_floating_point():
            raise ValueError(f"a parameter {tuple(p.shape)} is {p.dtype}; SOAP takes real ones only")
        if p.layout != torch.strided:
            raise ValueError(f"a parameter {tuple(p.shape)} is {p.layout}; SOAP takes dense ones only, p.to_dense()")


def _check_one_of(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, known))}")
