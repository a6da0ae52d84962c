"""The same model with one kind of skip cut: what that skip carries ("Always Skip Attention", Figs. 1, 3 and 5)."""

from torch import Tensor, nn

from wellcond.blocks import adapted_blocks
from wellcond.diagnosis.keeping import kept
from wellcond.probes import probe
from wellcond.probes.rows import Row
from wellcond.skips import cut_skips

VARIANTS = {"attention skips cut": "attention", "mlp skips cut": "mlp"}
QUANTITIES = ("log_kappa", "token_cosine")


def skip_variants(model: nn.Module, images: Tensor, tokens: str) -> tuple[dict[str, list[Row]], list[str]]:
    """({name: rows with that skip cut in every block}, why one is missing). All other gains stay as they are."""
    found: dict[str, list[Row]] = {}
    missing = []
    for name, part in VARIANTS.items():
        gains = [getattr(b, f"{part}_gain") for b in adapted_blocks(model) if f"{part}_gain" in b.gains]
        if gains and not any(gains):
            missing.append(f"{name}: the model has them cut already")
            continue
        try:
            with kept(model):
                cut_skips(model, attention=part == "attention", mlp=part == "mlp", lpi=False, images=images[:2])
                found[name] = probe(model, [images], tokens=tokens, quantities=QUANTITIES, attention=False)
        except ValueError as error:
            missing.append(f"{name}: {error}")
    return found, missing
