"""What a verification holds, as plain data, ⇄ JSON. A number that is not finite is None."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from wellcond.diagnosis.result import Finding, Thumbnail, rows_above
from wellcond.diagnosis.storing import Stored
from wellcond.probes.rows import Row


@dataclass(frozen=True, kw_only=True)
class Verification(Stored):
    """Rows of every block, a verdict in one sentence, findings.

    Sites and quantities of the weights (num_images 0; mean and deviation over heads, where there are several):

    - `value_output`, W_V W_O over all heads: log_kappa; orthogonality_defect ‖WWᵀ/g² − I‖_F/√d, g² = ‖W‖_F²/d; gain g;
      head_log_kappa, of each head alone among its d_h largest singular values.
    - `query_key`, W_Q W_Kᵀ of a head: log_kappa among its d_h largest singular values; diagonal_dominance, its trace
      over its Frobenius norm: the diagonal of the logits of n unrelated tokens wins above √(2 ln n).
    - `fc1`, `fc2` (gated: also `gate`): log_kappa; gain ‖W‖_F²/out, mean square of the outputs over that of the inputs.

    With images also the rows of `probe` (token sites, attention), and

    - `attention`: logit_range, the mean over rows of the largest less the smallest logit; logit_gap, of the diagonal
      less the largest other (Proposition 1); dominance_margin, diagonal_dominance (1 − cosine)/√(2 ln n) (Lemma 1).
    - `jacobian` of attention, on the first image: log_kappa; log_kappa_at_least, where that is not resolved; σ_max(E),
      σ_max(B), σ_min(B) and log_kappa_bound of Proposition 2, None where it gives none.
    """

    FORMAT: ClassVar[str] = "wellcond verification 1"

    model: str
    verdict: str
    rows: list[Row]
    findings: list[Finding] = field(default_factory=list)
    pictures: list[Thumbnail] = field(default_factory=list)
    skips: str = ""  # "with all its skips", "without skips", …
    num_images: int = 0
    image_size: tuple[int, int] = (0, 0)  # height, width
    missing: list[str] = field(default_factory=list)  # what could not be measured, and why
    skipped: list[str] = field(default_factory=list)  # images that could not be read, and why
    source: str = ""
    weights: str = ""
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    arithmetic: str = "float32"

    def value(self, layer: int, site: str, quantity: str) -> float | None:
        """Of one row; None where there is no such row, or no finite value."""
        found = (row for row in self.rows if (row.layer, row.site, row.quantity) == (layer, site, quantity))
        return next((row.value for row in found), None)

    @property
    def layers(self) -> list[int]:
        return sorted({row.layer for row in self.rows})

    def above(self, limit: float) -> list[Row]:
        """As `Diagnosis.above`: rows of log κ at the sites of the blocks that exceed `limit`, worst first."""
        return rows_above(self.rows, limit)

    def to_html(self, path: Path | str) -> Path:
        """Write one offline page; returns where it is."""
        from wellcond.diagnosis.beginning import page

        return page.build(self).write(Path(path))

    def __str__(self) -> str:
        """The verdict, a table and the findings, as wide as the terminal, without colours."""
        from wellcond.diagnosis.beginning.table import renderable
        from wellcond.diagnosis.table import plain

        return plain(renderable(self))

    def _repr_pretty_(self, p: Any, cycle: bool) -> None:
        """A notebook shows what print shows; all rows are in `rows`."""
        p.text(str(self))

    def __rich__(self) -> Any:
        from wellcond.diagnosis.beginning.table import renderable

        return renderable(self)
