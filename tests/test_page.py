"""The page of a diagnosis as data: what is in it, in which order, and that hostile names stay text."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from diagnosis_cases import EVIL, findings, hostile, jacobian, poor, rich, row, rows
from plotly.offline import get_plotlyjs
from test_report import Attributes, without_plotly

from wellcond.diagnosis.page import build
from wellcond.diagnosis.page.spectra import thinned
from wellcond.report import Cards, Figure, Numbers, Report, Table


def section(report: Report, title: str) -> Any:
    return next(s for s in report.sections if s.title == title)


def figure(report: Report, title: str) -> Any:
    return next(item for item in section(report, title).items if isinstance(item, Figure))


def shown(figure: Figure, **choice: int) -> list[Any]:
    """The traces that are drawn under a choice."""
    names = {name.replace("_", "-"): number for name, number in choice.items()}
    return [t for t in figure.data if all(names.get(name, 0) == at for name, at in t.get("when", {}).items())]


def test_sections_in_the_order_of_a_reader():
    titles = [s.title for s in build(rich()).sections]
    assert titles == [
        "In short", "Findings", "κ by block", "Every site", "Attention", "Spectra", "Jacobians", "Which ε", "Images",
        "What is missing", "Every number", "How it was made",
    ]  # fmt: skip
    assert "Difference B − A" in [s.title for s in build(rich(), poor()).sections]


def test_what_is_not_there_has_no_section():
    titles = [s.title for s in build(poor()).sections]
    assert not {"Attention", "Spectra", "Jacobians", "Which ε", "What is missing"} & set(titles)
    assert section(build(poor()), "Findings").text == "None."
    nothing = replace(poor(), rows=[])
    assert build(nothing).to_html() and build(nothing, nothing).to_html() and build(rich(), nothing).to_html()


def test_headline_names_the_worst_place():
    facts = {label: (value, note) for label, value, note in section(build(rich()), "In short").items[0].items}
    assert facts["worst log κ"] == ("∞", "block 7, ① attention alone: no finite κ on any image (1 of 60 places)")
    finite = replace(rich(), rows=[r for r in rich().rows if r.value is not None])
    facts = {label: (value, note) for label, value, note in section(build(finite), "In short").items[0].items}
    worst = max((r for r in finite.rows if r.quantity == "log_kappa"), key=lambda r: r.value or 0)
    assert facts["worst log κ"] == (worst.value, f"block {worst.layer}, ① attention alone")
    assert facts["tokens × width"] == ("197 × 192", "n ≥ d")


def test_a_mean_over_fewer_blocks_says_so():
    facts = {label: (value, note) for label, value, note in section(build(rich()), "In short").items[0].items}
    values = [r.value for r in rich().rows if (r.site, r.quantity) == ("sab_out", "log_kappa") and r.value is not None]
    assert facts["attention alone ①"][0] == pytest.approx(sum(values) / 11)
    assert "the 11 of 12 blocks where it is finite" in facts["attention alone ①"][1]


@pytest.mark.parametrize(("n", "d", "word"), [(197, 192, "of linear attention"), (197, 768, "do not hold")])
def test_regime_in_words(n, d, word):
    given = replace(poor(), rows=[row(0, "sab_out", "log_kappa", 3.0, n=n, d=d)])
    assert word in section(build(given), "In short").text


def test_kappa_has_the_four_curves_and_what_is_infinite_is_no_number():
    found = figure(build(rich()), "κ by block")
    lines = {t["name"]: t for t in shown(found) if t.get("mode") == "lines+markers"}
    assert list(lines) == ["① attention alone", "①+② attention + skip", "③ MLP alone", "③+④ MLP + skip"]
    attention = lines["① attention alone"]
    expected = [r.value for r in rich().rows if (r.site, r.quantity) == ("sab_out", "log_kappa")]
    assert attention["y"][7] is None and attention["y"][3] == pytest.approx(expected[3], rel=1e-3)
    assert attention["marker"]["symbol"][2:5] == ["circle", "circle-open", "circle"]
    assert [t["text"] for t in shown(found) if t.get("mode") == "text"] == [["∞"]]
    cut = {t["name"]: t for t in shown(found, skips=1) if t.get("mode") == "lines+markers"}
    assert cut["①+② attention + skip"]["y"] != lines["①+② attention + skip"]["y"]


def test_bands_are_mean_plus_and_minus_std_and_stop_at_a_gap():
    band = next(t for t in figure(build(rich()), "κ by block").data if t.get("fill") == "toself")
    values: Any = {r.layer: r for r in rich().rows if (r.site, r.quantity) == ("sab_out", "log_kappa")}
    assert band["x"] == [*range(7), *range(6, -1, -1), None, *range(8, 12), *range(11, 7, -1), None]
    for x, y, sign in zip(band["x"][:14], band["y"][:14], [1] * 7 + [-1] * 7, strict=True):
        assert y == pytest.approx(values[x].value + sign * values[x].std, rel=1e-3)


def test_nan_is_not_called_infinite():
    page = build(poor())
    sign = next(t for t in figure(page, "κ by block").data if t.get("mode") == "text")
    assert sign["text"] == ["×"] and "no value" in sign["hovertext"][0]
    assert "×: no number for another reason" in figure(page, "κ by block").caption


def test_heat_map_has_every_cell_and_kurtosis_is_coloured_by_its_logarithm():
    found = figure(build(rich()), "Every site")
    assert found.choices[0].options == ["log κ", "effective rank", "stable rank", "token cosine", "kurtosis"]
    cells = shown(found, quantity=4)[0]
    expected = {(r.layer, r.site): r.value for r in rich().rows if r.quantity == "kurtosis"}
    assert len(cells["z"]) == 5 and len(cells["z"][0]) == 12
    assert 10 ** cells["z"][3][11] == pytest.approx(expected[11, "ffn_out"], rel=1e-2)
    assert "±" in cells["hovertext"][3][11] and "197 × 192" in cells["hovertext"][3][11]


def test_a_flat_map_is_not_painted_in_all_colours():
    flat = replace(poor(), rows=[row(k, "head_0", "attention_entropy", 5.28 + 1e-4 * k) for k in range(4)])
    cells = figure(build(flat), "Attention").data[0]
    assert cells["zmax"] - cells["zmin"] > 0.2


def test_difference_is_b_less_a_where_both_have_a_number():
    a, b = rich(), rich(layers=5, seed=3)
    cells = figure(build(a, b), "Difference B − A").data[0]
    of: Any = [{(r.layer, r.site): r.value for r in d.rows if r.quantity == "log_kappa"} for d in (a, b)]
    assert cells["x"] == [0, 1, 2, 3, 4]
    assert cells["z"][0][4] == pytest.approx(of[1][4, "sab_in"] - of[0][4, "sab_in"], rel=1e-3)


def test_findings_that_appear_and_vanish():
    warning, floor, graying = findings()
    other = replace(graying, evidence="another")
    page = build(replace(rich(), findings=[warning, graying]), replace(rich(), findings=[floor, other]))
    cards = next(item for item in section(page, "Findings").items if isinstance(item, Cards)).items
    assert [card.label for card in cards] == [
        "warning · block 0 · only in A", "warning · block 7 · only in B", "note · in both",
    ]  # fmt: skip
    assert ("evidence B", "another") in cards[2].details


def test_a_finding_that_says_another_thing_of_each_is_not_of_both():
    """Before and after graying: "grays its input already" is of one of them alone."""
    *_, graying = findings()
    already = replace(graying, text="The model grays its input already.")
    page = build(replace(rich(), findings=[already]), replace(rich(), findings=[graying]))
    (card,) = next(item for item in section(page, "Findings").items if isinstance(item, Cards)).items
    assert card.label == "note · not the same in both" and card.text == "In A: The model grays its input already."
    assert ("in B", graying.text) in card.details


def test_what_is_not_known_of_a_jacobian_is_said():
    table: Any = next(item for item in section(build(rich()), "Jacobians").items if isinstance(item, Table))
    words = {(r[0], r[1]): r[2] for r in table.rows}
    assert words["block 6, attention", "as it is"].startswith("not known: at least ")
    assert words["block 6, attention", "as it is"].endswith("no upper bound is known")
    assert words["block 6, attention", "SVD 0.5"].endswith("at most 1.0e6")
    assert re.match(r"log κ = \d", words["block 0, attention", "SVD 0.5"])
    singular = replace(jacobian("attention", None, None, complete=True), log_kappa=None, sigma_min=0.0)
    table = section(build(replace(poor(), jacobians=[singular])), "Jacobians").items[1]
    assert table.rows[0][2] == "∞: the smallest singular value is under the floor of 1e-06"
    zero = replace(singular, sigma=(0.0, 0.0), error=(0.0, 0.0))
    assert "no κ" in section(build(replace(poor(), jacobians=[zero])), "Jacobians").items[1].rows[0][2]


def test_bars_only_where_an_error_is_seen():
    complete, partial = (shown(figure(build(rich()), "Jacobians"), sub_block=at) for at in (0, 2))
    assert not any("error_y" in t for t in complete)
    curve = next(t for t in partial if t["name"] == "as it is")
    bars = curve["error_y"]["array"]
    assert bars[0] == 0 and bars[39] > 0 and bars[40:] == [0.0] * (len(bars) - 40) != []  # nodes have none


def test_adviser_says_where_no_epsilon_reaches_the_target():
    numbers = next(item for item in section(build(rich()), "Which ε").items if isinstance(item, Numbers))
    assert {label: value for label, value, _ in numbers.items}["ε for SVD"] == "0.625"
    assert ("ε for DCT", "–", "none in its sweep reaches the target") in numbers.items


def test_pictures_are_in_the_file_once():
    page = build(rich()).to_html()
    assert all(page.count(thumbnail.png) == 1 for thumbnail in rich().thumbnails)


def test_every_row_is_in_a_table():
    tables: list[Any] = [item for item in section(build(rich()), "Every number").items if isinstance(item, Table)]
    assert all(table.folded for table in tables)
    assert (
        sum(int(re.findall(r"\((\d+) rows\)", t.folded)[0]) for t in tables if "rows" in t.folded) == len(rows()) + 120
    )
    line = tables[0].rows[3 * 5 + 1]
    assert line[:2] == [3, "sab_out"] and line[2].endswith("(55 of 64)")


@pytest.mark.parametrize("compare", [False, True])
def test_hostile_names_are_text(compare):
    page = build(hostile(), hostile() if compare else None)
    rest = without_plotly(page.to_html())
    found = Attributes(rest)
    assert found.handlers == [] and "a" not in found.tags
    assert rest.count("<script") == rest.count('class="plot-data"') + 2
    assert all(address.startswith("data:image/png;base64,") for address in found.addresses)
    for data in re.findall(r'class="plot-data"[^>]*>(.*?)</script>', rest, re.DOTALL):
        assert not set("<>&") & set(data)
        assert not re.search(r"<a|<img|%\{x\} &", json.dumps(json.loads(data)))  # plotly reads these after JSON does


def test_a_thumbnail_that_is_no_picture_is_refused():
    broken = replace(rich(), thumbnails=[replace(rich().thumbnails[0], png='x" onerror="alert(1)')])
    with pytest.raises(ValueError, match="image 1"):
        build(broken).to_html()


def test_size():
    rest = len(build(rich(layers=24)).to_html().encode()) - len(get_plotlyjs().encode())
    assert rest < 1_000_000


@pytest.mark.parametrize("length", [0, 1, 2, 27, 28, 29, 768])
def test_thinned_keeps_both_ends(length):
    kept = thinned(length, 28)
    assert kept == sorted(set(kept)) and len(kept) <= 28
    assert not length or (kept[0], kept[-1]) == (0, length - 1)


def test_unknown_names_of_sites_and_quantities_are_shown():
    given = replace(poor(), rows=[row(0, "new_site", "new_quantity", 2.0), row(0, EVIL, "log_kappa", 2.0)])
    page = build(given).to_html()
    assert "new_site" in page and "new quantity" in page
