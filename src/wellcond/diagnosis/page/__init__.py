"""A diagnosis, or two side by side → one page, in the order in which a reader asks.

words      names, colours, numbers as they are written
headline   the model in five numbers
findings   what was found, as cards
kappa      κ by block, with and without skips
heat       block × site, block × head, the difference of two
spectra    singular values of the tokens
jacobians  singular values of the Jacobians for several ε
adviser    log κ against ε, and the ε that reaches a target
numbers    every number as tables; how they were made
"""

from collections.abc import Sequence

from wellcond import report
from wellcond.diagnosis.page import adviser, findings, headline, heat, jacobians, kappa, numbers, spectra
from wellcond.diagnosis.page.words import Side, images_in_words
from wellcond.diagnosis.result import Diagnosis


def build(diagnosis: Diagnosis, compare: Diagnosis | None = None) -> report.Report:
    """The page. With `compare` the diagnosis is A, solid, and the other B, dashed; they may differ in everything."""
    sides = [Side("", diagnosis)] if compare is None else [Side("A", diagnosis), Side("B", compare)]
    sections = [
        headline.section(sides),
        _findings(sides),
        _kappa(sides),
        _heat(sides),
        _difference(sides),
        _attention(sides),
        _spectra(sides),
        _jacobians(sides),
        _adviser(sides),
        _images(sides),
        _left_out(sides),
        _numbers(sides),
        report.Section(title="How it was made", items=[numbers.made_with(sides)]),
    ]
    title = f"Conditioning of {diagnosis.model}"
    return report.Report(
        title=title if compare is None else f"{title} against {compare.model}",
        summary=_summary(sides),
        sections=[section for section in sections if section is not None],
        command=diagnosis.command,
        versions=diagnosis.versions or None,
    )


def _summary(sides: Sequence[Side]) -> str:
    parts = []
    for side in sides:
        d = side.diagnosis
        source = f" from {d.source}" if d.source else ""
        weights = f"; weights: {d.weights}" if d.weights else ""
        images = f"{images_in_words(d.num_images)} of {d.image_size[0]} × {d.image_size[1]} pixels"
        parts.append(side.lettered(f"{images}{source}{weights}."))
    return " ".join(parts)


def _findings(sides: Sequence[Side]) -> report.Section:
    found = findings.cards(sides)
    return report.Section(title="Findings", text="" if found else "None.", items=[found] if found else [])


def _kappa(sides: Sequence[Side]) -> report.Section | None:
    figure = kappa.figure(sides)
    if figure is None:
        return None
    text = (
        "Each branch alone, and its sum with the skip. In the papers attention alone (①) is far worse conditioned than "
        "the rest, and the skip (②) repairs it."
    )
    if figure.choices:
        text += (
            " Where a skip is cut its sum is the branch alone, and the two lines are one; faint: the model as it is."
        )
    return report.Section(title="κ by block", text=text, items=[figure])


def _heat(sides: Sequence[Side]) -> report.Section | None:
    figure = heat.sites(sides)
    return report.Section(title="Every site", items=[figure]) if figure else None


def _difference(sides: Sequence[Side]) -> report.Section | None:
    figure = heat.difference(sides) if len(sides) > 1 else None
    if figure is None:
        return None
    text = "Of the blocks and sites that both have a number for; above zero, B has more."
    return report.Section(title="Difference B − A", text=text, items=[figure])


def _attention(sides: Sequence[Side]) -> report.Section | None:
    figure = heat.heads(sides)
    if figure is None:
        return None
    text = (
        "Entropy of a row of the attention map (0: one token, ln n: all alike), the mass that a token gives to itself, "
        "and log κ of the map."
    )
    return report.Section(title="Attention", text=text, items=[figure])


def _spectra(sides: Sequence[Side]) -> report.Section | None:
    figure = spectra.figure(sides)
    return report.Section(title="Spectra", items=[figure]) if figure else None


def _jacobians(sides: Sequence[Side]) -> report.Section | None:
    figure = jacobians.figure(sides)
    if figure is None:
        return None
    curves = [c for side in sides for c in side.diagnosis.jacobians]
    partial = sum(not c.complete for c in curves)
    text = "How a small change of a sub-block's input changes its output, for images grayed at several ε."
    if partial:
        text += f" Of {partial} of {len(curves)} spectra only the largest values and bounds of the smallest are known."
    return report.Section(title="Jacobians", text=text, items=[figure, jacobians.known(sides)])


def _adviser(sides: Sequence[Side]) -> report.Section | None:
    advised = [(side, advice) for side in sides if (advice := side.diagnosis.advice) is not None]
    if not advised:
        return None
    items: list[report.Item] = [adviser.numbers(side, advice) for side, advice in advised]
    if any(advice.sweep for _, advice in advised):
        items.append(adviser.figure(sides))
    gallery = adviser.gallery(sides)
    if gallery is not None:
        items.append(gallery)
    text = (
        "Token graying raises the small singular values (SVD) or cosine coefficients (DCT) of an image's patches "
        "before the model sees them. ε = 1 changes nothing; the lower, the better conditioned and the greyer."
    )
    return report.Section(title="Which ε", text=text, items=items)


def _images(sides: Sequence[Side]) -> report.Section:
    """What was measured. Images that the adviser has shown already are not put into the file twice."""
    texts = [
        side.lettered(f"{side.diagnosis.num_images} used; source: {side.diagnosis.source or 'not named'}.")
        for side in sides
    ]
    advised = any(side.diagnosis.advice for side in sides)
    groups = [group for side in sides for group in adviser.groups(side)]
    pictures = [picture for group in groups if len(group) == 1 or not advised for picture in group]
    if len(pictures) < sum(map(len, groups)):
        texts.append("Those that were grayed are pictured above.")
    gallery = [report.Gallery(pictures=pictures)] if pictures else []
    return report.Section(title="Images", text=" ".join(texts), items=gallery)


def _left_out(sides: Sequence[Side]) -> report.Section | None:
    rows: list[list[report.Cell]] = [
        [what, side.lettered(line)]
        for side in sides
        for what, lines in (("not measured", side.diagnosis.missing), ("image skipped", side.diagnosis.skipped))
        for line in lines
    ]
    if not rows:
        return None
    folded = f"{len(rows)} lines" if len(rows) > 12 else ""
    table = report.Table(columns=["", ""], rows=rows, wrap=True, folded=folded)
    return report.Section(title="What is missing", items=[table])


def _numbers(sides: Sequence[Side]) -> report.Section:
    return report.Section(title="Every number", items=numbers.tables(sides))
