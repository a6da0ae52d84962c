"""probe, measure: check their input, run the model over the images once, and leave it as it was."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from wellcond.blocks import adapted_blocks, record
from wellcond.blocks.adapted import Adapted
from wellcond.blocks.images import check_images
from wellcond.blocks.modes import evaluating
from wellcond.blocks.prefix import num_prefixes
from wellcond.probes.prober import Prober
from wellcond.probes.quantities import ATTENTION_QUANTITIES, QUANTITIES
from wellcond.probes.rows import Measured, Row


def probe(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    tokens: str = "all",
    quantities: Collection[str] = QUANTITIES,
    attention: bool = True,
) -> list[Row]:
    """Measure every site of every block on images (B, C, H, W), batch by batch; returns rows in order of depth.

    - `tokens`: "all" that a block sees, or "patch" without the model's `num_prefix_tokens` (class, registers). A site
      without patch tokens (CaiT's class stage) then has no rows. Of an attention map the queries of prefix tokens go;
      their keys stay, so that a row still sums to 1.
    - `quantities`: some of `QUANTITIES` (the table in `quantities.py` defines them). Those of attention are at the
      site "attention" and, for each head, at "head_0", …; blocks without a softmax map over their tokens have none.
    - `attention`: False leaves attention out, and the second computation of each map that it costs.

    The model runs in eval mode without gradients, with the skips and the graying that it has, under the caller's
    autocast. Afterwards it is as it was, also after an exception. Batches are moved to the model's device.

    Activations carry the rounding of the model's own arithmetic: in bfloat16 that alone fills the small singular
    values, in float32 it hides those under the floor. A model in float64 (`model.double()`) has neither limit.
    """
    return measure(model, batches, tokens=tokens, quantities=quantities, attention=attention).rows


def measure(
    model: nn.Module,
    batches: Iterable[Tensor],
    *,
    tokens: str = "all",
    quantities: Collection[str] = QUANTITIES,
    attention: bool = True,
    spectra: bool = False,
) -> Measured:
    """`probe` with what else the same pass shows: where activations are not finite, which blocks have no attention map,
    and with `spectra` the mean spectrum of every site, from the decomposition that serves the rows."""
    wanted = chosen(tokens, quantities, attention)
    batches = _on_device(model, batches)
    first = next(batches, None)
    if first is None:
        raise ValueError("there are no images in batches; pass at least one tensor (B, C, H, W)")
    prober = Prober(wanted, spectra)
    with reading(model), record(model, prober, first[:2]):
        blocks = adapted_blocks(model)
        prober.begin(blocks, _num_prefixes(model, blocks) if tokens == "patch" else [0] * len(blocks))
        for images in chain([first], batches):
            with torch.no_grad():
                model(images)
            prober.gather()
    return prober.measured()


def chosen(tokens: str, quantities: Collection[str], attention: bool) -> set[str]:
    """The quantities to measure; ValueError if an option is unknown or nothing is left."""
    if tokens not in ("all", "patch"):
        raise ValueError(f'tokens={tokens!r} is unknown; use "all" or "patch"')
    asked = {quantities} if isinstance(quantities, str) else set(quantities)
    if unknown := sorted(asked - set(QUANTITIES)):
        raise ValueError(f"quantity {unknown[0]!r} is unknown; choose from {', '.join(QUANTITIES)}")
    asked -= set() if attention else set(ATTENTION_QUANTITIES)
    if not asked:
        raise ValueError(f"quantities={quantities!r} with attention={attention} leaves nothing to measure")
    return asked


def _on_device(model: nn.Module, batches: Iterable[Tensor]) -> Iterator[Tensor]:
    """Batches that are not empty, on the device of the model."""
    if isinstance(batches, Tensor):
        raise ValueError("batches is one tensor; pass a list of batches, e.g. [images] or images.split(64)")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    for images in batches:
        if isinstance(images, Tensor) and images.ndim == 4 and not len(images):
            continue
        check_images(model, images, "a batch", finite=False)  # those that are not are counted, not refused
        yield images.to(device, non_blocking=True)


def _num_prefixes(model: nn.Module, blocks: list[Adapted]) -> list[int]:
    """For each block. timm's models say how many of their first tokens are no patches, or have none."""
    numbers = num_prefixes(model, blocks)
    if any(n is None and not b.original.__module__.startswith("timm.") for n, b in zip(numbers, blocks, strict=True)):
        raise ValueError(
            f"{type(model).__name__} does not say how many of its first tokens are no patches; set its attribute "
            'num_prefix_tokens, or use tokens="all"'
        )
    return [number or 0 for number in numbers]


@contextmanager
def reading(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; each module's own mode, and what earlier recordings left on adapted blocks, afterwards."""
    contexts = [(block, block._context) for block in adapted_blocks(model)]
    try:
        with evaluating(model):
            yield
    finally:
        for block, context in contexts:
            block._context = context
