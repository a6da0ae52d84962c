"""wellcond: see, fix and train through the conditioning of vision transformers.

    spectral      singular_values, condition_number, effective_rank, stable_rank, numerical_floor, spectral_map
    graying       gray_tokens (function), TokenGraying (module), gray / ungray (model)
    skips         cut_skips / restore_skips (model)
    attention     set_attention (model): linear or softmax
    activations   set_activation (model): centred GELU or a tailored ReLU
    initializers  init_skipless_, mimetic_, calibrate_ (model), suo_ (weight)
    training      load (run directory → model, as it was trained)
    diagnosis     diagnose (model × images → rows, findings, one page), verify_init (its weights as it begins)
    monitor       Monitor (a training loop)
    optim         SOAP (a torch optimizer)

Names are imported on first use (PEP 562), so `import wellcond` and `wellcond --help` do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

_ROOM_OF = {
    "singular_values": "spectral",
    "condition_number": "spectral",
    "effective_rank": "spectral",
    "stable_rank": "spectral",
    "numerical_floor": "spectral",
    "spectral_map": "spectral",
    "gray_tokens": "graying",
    "TokenGraying": "graying",
    "gray": "graying",
    "ungray": "graying",
    "cut_skips": "skips",
    "restore_skips": "skips",
    "set_attention": "attention",
    "set_activation": "activations",
    "init_skipless_": "initializers",
    "mimetic_": "initializers",
    "calibrate_": "initializers",
    "suo_": "initializers",
    "load": "training",
    "diagnose": "diagnosis",
    "verify_init": "diagnosis",
    "Monitor": "monitor",
    "SOAP": "optim",
}

__all__ = [
    "SOAP",
    "Monitor",
    "TokenGraying",
    "__version__",
    "calibrate_",
    "condition_number",
    "cut_skips",
    "diagnose",
    "effective_rank",
    "gray",
    "gray_tokens",
    "init_skipless_",
    "load",
    "mimetic_",
    "numerical_floor",
    "restore_skips",
    "set_activation",
    "set_attention",
    "singular_values",
    "spectral_map",
    "stable_rank",
    "suo_",
    "ungray",
    "verify_init",
]

if TYPE_CHECKING:
    from .activations import set_activation
    from .attention import set_attention
    from .diagnosis import diagnose, verify_init
    from .graying import TokenGraying, gray, gray_tokens, ungray
    from .initializers import calibrate_, init_skipless_, mimetic_, suo_
    from .monitor import Monitor
    from .optim import SOAP
    from .skips import cut_skips, restore_skips
    from .spectral import (
        condition_number,
        effective_rank,
        numerical_floor,
        singular_values,
        spectral_map,
        stable_rank,
    )
    from .training import load


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) - {"Any", "TYPE_CHECKING", "import_module"} | set(__all__))
