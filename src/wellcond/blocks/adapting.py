"""Which family a block belongs to; all blocks of a model in and out of their adapted classes."""

from typing import cast

from torch import Tensor, nn

from wellcond.blocks import cait, huggingface, pyramid, swin, vit, xcit
from wellcond.blocks.adapted import Adapted, swap_in, swap_out
from wellcond.blocks.generic import looks_like_a_block, prove
from wellcond.blocks.images import check_images

FAMILIES: dict[type, type[Adapted]] = {
    **vit.FAMILIES,
    **swin.FAMILIES,
    **cait.FAMILIES,
    **pyramid.FAMILIES,
    **xcit.FAMILIES,
}
REFUSED = {  # by name: not every version of timm has them all
    "ParallelScalingBlock": "its attention and its MLP share one sum, so neither has a skip of its own",
    "DiffParallelScalingBlock": "its attention and its MLP share one sum, so neither has a skip of its own",
    "ParallelThingsBlock": "several attentions, and then several MLPs, share one sum, so none has a skip of its own",
    "ParallelPartitionAttention": "its window and its grid attention share one sum, so neither has a skip of its own",
    "CrossAttentionBlock": "it attends from one branch of the model to another; its skip is neither branch's own",
}


def adapt(model: nn.Module, images: Tensor | None = None) -> list[Adapted]:
    """Give every block of the model gains on its skips and named sites; returns the blocks in order of depth.

    Each block changes its class in place (attributes `attention_gain` and `mlp_gain`, XCiT also `lpi_gain`, ConvMixer
    `attention_gain` alone) and computes what it did before, bit for bit, while they are 1. Parameters, state-dict keys
    and objects stay. A second call changes nothing. `images`, a small batch, is needed for blocks of no known family:
    the generic adapter proves itself on it. ValueError, and the model untouched, if any block cannot be adapted.
    Order of depth is the order in which the model registers its blocks.
    """
    found, mixins = _find(model)
    unknown = {name: b for name, b in found.items() if name not in mixins and not isinstance(b, Adapted)}
    mixins |= _prove(model, unknown, images)
    return [swap_in(b, mixins[name]) if name in mixins else as_adapted(b) for name, b in found.items()]


def find_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks by name, in order of depth, adapted or not; nothing is changed, nothing is run.

    ValueError if `adapt` would refuse the model whatever `images` are.
    """
    return _find(model)[0]


def unadapt(model: nn.Module) -> None:
    """Undo `adapt`: every block has its own class again, whatever its gains were."""
    for module in model.modules():
        if isinstance(module, Adapted):
            swap_out(module)


def adapted_blocks(model: nn.Module) -> list[Adapted]:
    """The blocks that are adapted now, in order of depth."""
    return [module for module in model.modules() if isinstance(module, Adapted)]


def as_adapted(block: nn.Module) -> Adapted:
    """The block itself; ValueError if it is not adapted."""
    if not isinstance(block, Adapted):
        raise ValueError(f"{type(block).__name__} is not an adapted block; take it from adapt(model)")
    return block


def _find(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, type[Adapted]]]:
    """Blocks by name, and the family of those that have one and are not adapted yet."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; pass a module, e.g. from timm.create_model(…)")
    found: dict[str, nn.Module] = {}
    mixins: dict[str, type[Adapted]] = {}
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            found[name] = module
        elif "_orig_mod" in module._modules:  # torch.compile's wrapper shows the members of what is inside
            continue
        elif reason := _refusal(module):
            raise ValueError(f"block {name!r} ({type(module).__name__}) cannot be adapted: {reason}")
        elif mixin := _family(type(module)):
            found[name], mixins[name] = module, mixin
        elif looks_like_a_block(module):
            found[name] = module
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no transformer blocks that wellcond knows, nor modules with norm1, attn, "
            "norm2 and mlp; use a vision transformer of timm, e.g. vit_tiny_patch16_224, or ViT, DeiT or DINOv2 of "
            "transformers"
        )
    for name, module in found.items():
        if "forward" in module.__dict__:
            raise ValueError(f"block {name!r} has a forward set on the instance itself; delete it to adapt the block")
    return found, mixins


def _prove(model: nn.Module, unknown: dict[str, nn.Module], images: Tensor | None) -> dict[str, type[Adapted]]:
    if unknown and images is None:
        name, block = next(iter(unknown.items()))
        raise ValueError(
            f"block {name!r} ({type(block).__module__}.{type(block).__name__}) is of no family that wellcond knows; "
            "pass images= a small batch, so that the generic adapter can prove itself on it"
        )
    if not unknown:
        return {}
    check_images(model, images, finite=False)  # those that are not are counted, not refused
    return prove(model, unknown, cast(Tensor, images))


def _family(kind: type) -> type[Adapted] | None:
    """By class, or by base class if the forward is still the base's."""
    for base in kind.__mro__:
        if mixin := FAMILIES.get(base) or huggingface.family_of(base):
            return mixin if kind.forward is base.forward else None  # type: ignore[attr-defined]
    return None


def _refusal(module: nn.Module) -> str:
    names = {base.__name__ for base in type(module).__mro__ if base.__module__.startswith("timm.")}
    return next((REFUSED[name] for name in sorted(names & set(REFUSED))), "") or huggingface.refusal(module)
