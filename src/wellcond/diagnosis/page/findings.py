"""Findings as cards: warnings first; of two diagnoses, those of one alone before those of both."""

from collections.abc import Sequence

from wellcond import report
from wellcond.diagnosis.page.words import Side
from wellcond.diagnosis.result import Finding


def cards(sides: Sequence[Side]) -> report.Cards | None:
    """None where nothing was found. A finding of both is of the same kind, whatever its numbers and its block."""
    groups: dict[tuple[str, bool, int], list[tuple[Side, Finding]]] = {}
    for side in sides:
        count: dict[tuple[str, bool], int] = {}
        for finding in side.diagnosis.findings:
            key = finding.kind, finding.layer is None
            count[key] = count.get(key, 0) + 1
            groups.setdefault((*key, count[key]), []).append((side, finding))
    ordered = sorted(groups.values(), key=lambda group: (_tone(group) != "warning", len(group)))
    return report.Cards(items=[_card(group, len(sides)) for group in ordered]) if ordered else None


def _tone(group: list[tuple[Side, Finding]]) -> str:
    return "warning" if any(finding.severity == "warning" for _, finding in group) else "note"


def _card(group: list[tuple[Side, Finding]], num_sides: int) -> report.Card:
    side, finding = group[0]
    blocks = list(dict.fromkeys(str(f.layer) for _, f in group if f.layer is not None))
    label = _tone(group) + (f" · block {' and '.join(blocks)}" if blocks else "")
    if num_sides > 1:
        label += " · in both" if len(group) > 1 else f" · only in {side.letter}"
    same = all(other.text == finding.text for _, other in group)
    texts = [] if same else [(f"in {s.letter}", f.text) for s, f in group[1:]]
    evidence = _merged("evidence", [(s.letter, f.evidence) for s, f in group])
    remedy = _merged("what to do", [(s.letter, f.remedy) for s, f in group])
    return report.Card(tone=_tone(group), label=label, text=finding.text, details=[*texts, *evidence, *remedy])


def _merged(name: str, parts: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """One line where all say the same, one for each letter where they do not."""
    if len({text for _, text in parts}) == 1:
        parts = [("", parts[0][1])]
    return [(f"{name} {letter}".strip(), text) for letter, text in parts if text]
