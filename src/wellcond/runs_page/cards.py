"""What a reader must not miss: collapsed tokens, skipped steps, rollbacks; as cards."""

from collections.abc import Iterator, Sequence

from wellcond import report
from wellcond.diagnosis.findings import findings
from wellcond.probes.rows import Measured
from wellcond.runs_page.reading import Story


def build(stories: Sequence[Story]) -> report.Cards | None:
    found = [card for story in stories for card in (*_collapse(story), *_skipped(story), *_rollbacks(story))]
    return report.Cards(items=found) if found else None


def _collapse(story: Story) -> Iterator[report.Card]:
    """The first epoch whose rows a diagnosis would call collapsed, and whether the last one still is."""
    told = {}
    for epoch, rows in story.probed.items():
        measured = Measured(rows=rows, spectra=[], not_finite={}, no_map={})
        for finding in findings(measured, None, attends=False):
            if finding.kind == "rank_collapse":
                told[epoch] = finding
    if told:
        first = min(told)
        lasting = "still so at the last measurement" if max(told) == max(story.probed) else f"until epoch {max(told)}"
        yield report.Card(
            tone="warning",
            label=f"{story.name} · epoch {first}, {lasting}",
            text=told[first].text,
            details=[("evidence", told[first].evidence), ("remedy", told[first].remedy)],
        )


def _skipped(story: Story) -> Iterator[report.Card]:
    if story.skipped:
        replay = story.path / "replay"
        yield report.Card(
            tone="warning",
            label=story.name,
            text=f"{story.skipped} step{'' if story.skipped == 1 else 's'} skipped: no finite loss or gradient.",
            details=[("batches", f"{replay} holds the sample numbers of each")] if replay.is_dir() else [],
        )


def _rollbacks(story: Story) -> Iterator[report.Card]:
    for row in story.timings:
        if row.get("event") == "rollback":
            yield report.Card(
                tone="warning",
                label=f"{story.name} · step {row.get('step')}",
                text=f"Went back to step {row.get('to')}: {row.get('why')}.",
            )
