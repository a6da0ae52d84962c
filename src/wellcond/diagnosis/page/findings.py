"""Findings as cards, and which of two diagnoses has them."""

from collections.abc import Sequence

from wellcond import report
from wellcond.diagnosis.page.words import Side
from wellcond.diagnosis.result import Finding


def cards(sides: Sequence[Side]) -> report.Cards | None:
    """Warnings first. Of two diagnoses a finding is the same when it is of the same kind at the same block."""
    found = [(side, finding) for side in sides for finding in side.diagnosis.findings]
    of_whom: dict[tuple[str, int | None], list[str]] = {}
    for side, finding in found:
        letters = of_whom.setdefault(_key(finding), [])
        letters += [side.letter] if side.letter not in letters else []
    made = [_card(side, finding, of_whom[_key(finding)]) for side, finding in sorted(found, key=_order)]
    return report.Cards(items=made) if made else None


def _key(finding: Finding) -> tuple[str, int | None]:
    return finding.kind, finding.layer


def _order(item: tuple[Side, Finding]) -> bool:
    return item[1].severity != "warning"


def _card(side: Side, finding: Finding, letters: list[str]) -> report.Card:
    label = "warning" if finding.severity == "warning" else "note"
    if finding.layer is not None:
        label += f" · block {finding.layer}"
    if side.letter:
        label += f" · {side.letter}" + (
            f", not in {'B' if side.letter == 'A' else 'A'}" if len(letters) == 1 else ", also in the other"
        )
    details = [("evidence", finding.evidence), ("what to do", finding.remedy)]
    return report.Card(
        tone=finding.severity, label=label, text=finding.text, details=[(name, text) for name, text in details if text]
    )
