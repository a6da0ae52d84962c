"""What an adapted block is: gains on its skips, and names for the places where it computes.

A block takes a subclass of its own class (`wellcond.subclassing`), with the mixin of its family in front.

Shapes: B images, n tokens, d width; a feature map is (B, H, W, d) or (B, d, H, W). Sites are always (B, n, d): a map
is read row by row as n = H·W tokens, whole, also where attention works in windows.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellcond.subclassing import InFront, subclass

SITES = ("sab_in", "sab_out", "sab_sum", "ffn_out", "ffn_sum")
Sink = Callable[[str, Tensor], None]

_WITH = (
    "these weights are of a model with {skips}, and are loaded into one without them; it will not compute what they "
    "were trained for. restore_skips(model), or train it anew from init_skipless_"
)
_UNSAID = (
    "these weights do not say whether they are of a model with {skips}, and are loaded into one without them. If they "
    "are, restore_skips(model), or train it anew from init_skipless_; if not, all is well. What torch.save writes of a "
    "state dict says so itself"
)


def add_skip(x: Tensor, branch: Tensor, gain: float | Tensor, branch_first: bool = False) -> Tensor:
    """gain · x + branch. At 1 the sum of the original, bit for bit; at 0 x takes no part, so there is no 0·inf.

    The first operand decides the strides of a sum, and those decide which kernels run on it later. A tensor is not
    asked for its value: that would wait for the device, and a compiled or captured step would keep it for ever.
    """
    if isinstance(gain, Tensor):
        return gain * x + branch
    if gain == 1.0:
        return branch + x if branch_first else x + branch
    if gain == 0.0:
        return branch.to(torch.promote_types(x.dtype, branch.dtype))  # as the sum would be under autocast
    return gain * x + branch


def keep(branch: Tensor) -> Tensor:
    """Drop-path of a block that has none."""
    return branch


class Adapted(InFront, nn.Module):
    """Mixed into the class of a block; the family fills in `forward`, the branches and the normalisation."""

    _prefix = "Adapted"
    gains: ClassVar[tuple[str, ...]] = ("attention_gain", "mlp_gain")
    layout: ClassVar[str] = "tokens"  # of the block's input: "tokens", "nhwc" or "nchw"
    needs_context: ClassVar[bool] = False  # does a branch depend on more than its normalised tokens?
    branch_first: ClassVar[bool] = False  # is the original's sum branch + x?
    attends: ClassVar[bool] = True  # is the first branch attention?
    reads_normalised: ClassVar[bool] = True  # or the stream itself: the norm comes after the branch, or there is none
    num_prefix: ClassVar[int | None] = None  # class and register tokens among its tokens; None: all the model's
    no_map: ClassVar[str] = ""  # why there is no softmax attention over tokens, where there is none
    no_keys: ClassVar[str] = (
        ""  # why there is no key for each token, to be compared with all others, where there is none
    )
    carries_patches: ClassVar[bool] = True  # or does it only write to the class token?

    attention_gain: float | Tensor  # a number, or one 0-d tensor that somebody writes (skips.share_gain)
    mlp_gain: float | Tensor
    lpi_gain: float | Tensor
    _sinks: tuple[Sink, ...]
    _tells: bool  # is this the one block that warns when weights trained with a skip are loaded without it?
    _context: "tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]] | None"

    # what the families' blocks bring along
    attn: Any
    mlp: Any
    norm1: Any
    norm2: Any
    drop_path1: Any
    drop_path2: Any

    def normalise(self, which: str, x: Tensor) -> Tensor:
        """Input of a sub-block → what its branch reads."""
        return self.norm1(x) if which == "attention" else self.norm2(x)

    def attention_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Normalised input → attention as it enters the sum, but for drop-path."""
        raise NotImplementedError

    def mlp_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Normalised input → MLP as it enters the sum, but for drop-path."""
        raise NotImplementedError

    def softmax_map(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor | None:
        """Normalised input → its attention map, where the family knows it; None: it is read off what is dropped."""
        return None

    def unfused(self) -> AbstractContextManager[Any]:
        """Inside, attention is products and a softmax in the arithmetic of its tokens: what can be differentiated."""
        return sdpa_kernel(SDPBackend.MATH)

    def begin(self, x: Tensor, *args: Any, **kwargs: Any) -> None:
        """First line of every forward: the input's site, and what else the branches were given."""
        if self._sinks:
            kept = {name: _detached(value) for name, value in kwargs.items()}
            self._context = (tuple(x.shape[1:]), tuple(_detached(value) for value in args), kept)
        tap(self, "sab_in", x)

    def close(self, part: str, x: Tensor, branch: Tensor, gain: float | Tensor, drop_path: Any) -> Tensor:
        """gain · x + drop_path(branch), with the sites `part`_out and `part`_sum.

        Without a skip a branch is never dropped: nothing would be left of the image (spec: "drop-path off").
        """
        if isinstance(gain, Tensor) or gain != 0.0:
            branch = drop_path(branch)
        tap(self, f"{part}_out", branch)
        x = add_skip(x, branch, gain, self.branch_first)
        tap(self, f"{part}_sum", x)
        return x

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Gains other than 1 go into the state dict's metadata, where torch keeps its versions; its names stay."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        gains = {gain: float(getattr(self, gain)) for gain in self.gains}
        if any(gain != 1.0 for gain in gains.values()) and hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["gains"] = gains

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Tensors without torch's metadata (safetensors, a plain dict) may be of either kind, and are called that."""
        before = local_metadata.get("gains", {})
        lost = [gain for gain in self.gains if getattr(self, gain) == 0.0 and before.get(gain, 1.0) != 0.0]
        if self._tells and lost:
            names = " and ".join(gain.removesuffix("_gain") for gain in lost)
            said = _WITH if "version" in local_metadata else _UNSAID
            warnings.warn(said.format(skips=f"its {names} skips"), stacklevel=2)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """No sink travels."""
        rebuild, classes, state = super().__reduce_ex__(protocol)
        return rebuild, classes, {**state, "_sinks": (), "_context": None}


class PreNorm(Adapted):
    """x + branch(norm(x)), twice; further arguments go to the attention, as timm hands them on."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.begin(x, *args, **kwargs)
        attention = self.attention_branch(self.normalise("attention", x), *args, **kwargs)
        x = self.close("sab", x, attention, self.attention_gain, self.drop_path1)
        mlp = self.mlp_branch(self.normalise("mlp", x), *args, **kwargs)
        return self.close("ffn", x, mlp, self.mlp_gain, self.drop_path2)


class PostNorm(PreNorm):
    """x + norm(branch(x)): the norm belongs to the branch, and the branch reads the stream itself."""

    reads_normalised = False

    def normalise(self, which: str, x: Tensor) -> Tensor:
        return x

    def attention_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.norm1(self.attn(y, *args, **kwargs))

    def mlp_branch(self, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.norm2(self.mlp(y))


def tap(block: Adapted, site: str, x: Tensor) -> None:
    """Name x; a no-op unless somebody records. What gradient checkpointing computes again is not measured again."""
    if block._sinks and torch._C._current_graph_task_id() == -1:
        for sink in block._sinks:
            sink(site, to_tokens(x, block.layout))


def to_tokens(x: Tensor, layout: str) -> Tensor:
    """(B, n, d) as it is, (B, H, W, d) or (B, d, H, W) → (B, H·W, d)."""
    if x.ndim == 3:
        return x
    return x.flatten(1, 2) if layout == "nhwc" else x.flatten(2).mT


def from_tokens(X: Tensor, layout: str, shape: tuple[int, ...]) -> Tensor:
    """(B, n, d) → the block's own layout; `shape` is that of its input without the batch."""
    if layout == "nhwc":
        return X.reshape(X.shape[0], *shape[:2], X.shape[-1])
    if layout == "nchw":
        return X.mT.reshape(X.shape[0], X.shape[-1], *shape[1:])
    return X


def swap_in(block: nn.Module, mixin: type[Adapted]) -> Adapted:
    """Change the class of a block; all gains 1. Returns the same object."""
    block.__class__ = subclass(mixin, type(block))
    block.__dict__.update(dict.fromkeys(mixin.gains, 1.0), _sinks=(), _context=None, _tells=False)
    return cast(Adapted, block)


def swap_out(block: Adapted) -> None:
    """Undo `swap_in`. Where another tool has built on the adapted class since (FSDP), it stays, with gains 1."""
    if type(block) is not subclass(block.mixin, block.original):
        block.__dict__.update(dict.fromkeys(block.gains, 1.0))
        return
    names = (*block.gains, "_sinks", "_context", "_tells")
    block.__class__ = block.original
    for name in names:
        del block.__dict__[name]


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value
