"""Which graying, how exact, and where it runs: the rows of the graying benchmark.

    inside   ``wc.gray(model, …)``: in the model, compiled (and captured) with it
    before   ``TokenGraying`` on the batch, then the plain step
    ahead    ``TokenGraying`` on the next batch, on a side stream, while the plain step of this batch runs

"plain" is the step without graying; "plain again" is the same callable once more, so that a reader sees
how far two equal variants lie apart in the same run. "ungrayed inside" is graying with ε = 1: nothing is grayed,
but the patch embedding is a matrix product, as in every grayed model, and no longer a convolution. The product is
the faster of the two, so the difference to this row is what graying itself costs.
"""

from dataclasses import dataclass

EPSILON = {"svd": 0.7, "dct": 0.95}  # the best rows of the paper's Table 3
ERROR_BARS = {"fast": (1e-3, 0.05), "exact": (1e-5, 1e-2)}  # relative Frobenius, |Δ log σ|
METHODS, PRECISIONS, PLACEMENTS = ("dct", "svd"), ("fast", "exact"), ("inside", "before", "ahead")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One row. ``method`` None is the plain step, or with ``product`` the plain step with patches as a product."""

    method: str | None = None
    precision: str = "fast"
    placement: str = "inside"
    again: bool = False
    product: bool = False

    @property
    def name(self) -> str:
        if self.method is None:
            return "ungrayed inside" if self.product else "plain again" if self.again else "plain"
        return f"{self.method} {self.precision} {self.placement}"

    @property
    def epsilon(self) -> float | None:
        return None if self.method is None else EPSILON[self.method]

    def meets_error(self, errors: dict[str, float]) -> bool:
        """Whether the measured errors keep the promise of this precision."""
        frobenius, log_sigma = ERROR_BARS[self.precision]
        return errors["error_fro"] <= frobenius and errors["error_log_sigma"] <= log_sigma


PLAIN, UNGRAYED = Variant(), Variant(product=True)
DEFAULTS = {  # of parts a and b
    "a": "ungrayed, dct, svd, dct exact, svd exact, "
    "dct ahead, svd before, svd ahead, svd exact before, svd exact ahead",
    "b": "ungrayed, dct, svd, dct before, svd before, dct ahead, svd ahead, "
    "dct exact before, svd exact before, dct exact ahead, svd exact ahead",
}


def parse_variant(text: str) -> Variant:
    """ "svd exact ahead" → Variant; the words in any order, fast and inside if not said.

    >>> parse_variant("ahead svd").name
    'svd fast ahead'
    """
    words = text.split()
    if words in (["plain"], ["plain", "again"]):
        return Variant(again=len(words) == 2)
    if words == ["ungrayed"]:
        return UNGRAYED
    kinds = {"method": METHODS, "precision": PRECISIONS, "placement": PLACEMENTS}
    chosen = {kind: word for word in words for kind, known in kinds.items() if word in known}
    if "method" not in chosen or len(chosen) != len(words):
        raise ValueError(
            f"There is no variant {text!r}: say 'plain', 'ungrayed', or a method ({', '.join(METHODS)}) and perhaps "
            f"a precision ({', '.join(PRECISIONS)}) and a place ({', '.join(PLACEMENTS)})."
        )
    return Variant(**chosen)  # pyright: ignore[reportArgumentType]


def parse_variants(text: str) -> list[Variant]:
    """A comma-separated list; "plain" and "plain again" always lead it."""
    asked = [parse_variant(item) for item in text.split(",") if item.strip()]
    listed = [PLAIN, Variant(again=True), *asked]
    return list(dict.fromkeys(listed))
