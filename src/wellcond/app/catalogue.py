"""The models of timm that can be diagnosed, by the module that defines them: the families of wellcond.blocks.

Building all of timm's models to ask each one would take minutes, so this is a table. Blocks of other modules may be
taken by the generic adapter, which has to be tried on the model: `wellcond diagnose` does.
"""

from fnmatch import fnmatch
from functools import cache

DEFAULT = "vit_tiny_patch16_224"
MODULES = (
    "beit",
    "cait",
    "convmixer",
    "deit",
    "eva",
    "naflexvit",
    "pit",
    "pvt_v2",
    "swin_transformer",
    "swin_transformer_v2",
    "vision_transformer",
    "vision_transformer_hybrid",
    "vitamin",
    "xcit",
)
REFUSED = ("vit_*_xp_*", "vit_*_18x2_*", "vit_*pwee_*")  # several branches share one sum: blocks/adapting.py


@cache
def diagnosable() -> tuple[str, ...]:
    """Their names, in order; without the tags of pretrained weights."""
    import timm

    names = {name for module in MODULES for name in timm.list_models(module=module)}
    return tuple(sorted(name for name in names if not any(fnmatch(name, pattern) for pattern in REFUSED)))
