"""The pages in a real Chromium: no error, no request, every chart, hover, zoom, controls, light and dark, a phone.

Screenshots are left in tests/artefacts, or where WELLCOND_ARTEFACTS says.
"""

import re
from pathlib import Path

import pytest
from browser_cases import ARTEFACTS, DESKTOP, NEEDS_CHROMIUM, PHONE
from diagnosis_cases import hostile, poor, rich
from PIL import Image
from test_report import EVIL, make_report

from wellcond.diagnosis.page import build
from wellcond.report import Figure, Report

pytestmark = NEEDS_CHROMIUM

REPORTS = {
    "rich": lambda: build(rich()),
    "compare": lambda: build(rich(), rich("deit_small_patch16_224", layers=24, seed=1)),
    "poor": lambda: build(poor()),
    "poor against rich": lambda: build(poor(), rich()),
    "hostile": lambda: build(hostile(), hostile()),
    "evil": lambda: make_report(EVIL),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    return {name: make().write(folder / f"{name}.html") for name, make in REPORTS.items()}


def drawn(page) -> dict[str, int]:
    """Identifier of each chart → how many traces it draws."""
    return dict(page.evaluate("Array.from(document.querySelectorAll('.plot')).map(p => [p.id, p.data.length])"))


def figures(report: Report) -> list[Figure]:
    return [item for section in report.sections for item in section.items if isinstance(item, Figure)]


def chart(page, heading: str, number: int = 0):
    """The chart under a heading."""
    section = page.locator("section", has=page.get_by_role("heading", name=re.compile(heading)))
    plot = section.locator(".plot").nth(number)
    plot.scroll_into_view_if_needed()
    return section, plot


def values(plot, what: str):
    """A property of every trace that is drawn."""
    return plot.evaluate(f"p => p.data.map(t => t.{what} ?? null)")


def tooltip(page, plot, x: float, y: float, says: str) -> str:
    """Move to a place of the window; what the tooltip says there, once it says what it should."""
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y, steps=3)
    found = plot.locator(".hoverlayer .hovertext", has_text=says).first
    found.wait_for(timeout=10_000)
    return found.text_content()


@pytest.mark.parametrize("name", list(REPORTS))
def test_opens_without_error_and_asks_for_nothing(name, read):
    page = read(name)
    assert "hacked" not in page.title().replace(EVIL, "").split("<")[0]
    assert page.evaluate("document.querySelectorAll('img:not([src^=\"data:\"])').length") == 0
    assert page.evaluate("Array.from(document.images).every(i => i.complete && i.naturalWidth > 0)")
    assert len(drawn(page)) == len(figures(REPORTS[name]()))


def test_every_chart_has_its_traces(read):
    page = read("rich")
    # 4 lines with 4 bands and one ∞; cells and one ∞; cells; faint, band, line, floor; 4 curves and the floor;
    # 2 methods, 1 advised ε, the target
    assert list(drawn(page).values()) == [9, 2, 1, 4, 5, 4]
    assert all(count > 0 for count in drawn(read("hostile")).values())


def test_names_are_text_in_charts_too(read):
    page = read("hostile")
    assert page.locator("a").count() == 0  # plotly makes links of <a> in names
    assert page.evaluate(
        "Array.from(document.querySelectorAll('.plot image')).every(i => /^data:/.test(i.href.baseVal))"
    )
    assert '<a href="http' in page.locator(".plot text", has_text="href").first.text_content()


def test_hover_tells_the_number(opened):
    page = opened("rich")
    _, plot = chart(page, "κ by block")
    box = plot.locator(".scatterlayer .trace .points path").nth(5).bounding_box()
    text = tooltip(page, plot, box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, "block 5 · ① attention alone")
    assert re.search(r"log κ = \d\.\d\d ± 0\.\d+ \(κ ≈ \d+\)\s*matrix of 197 × 192", text)
    _, cells = chart(page, "Every site")
    box = cells.locator(".nsewdrag").first.bounding_box()  # 12 blocks × 5 sites: the middle of one
    x, y = box["x"] + 3.5 / 12 * box["width"], box["y"] + 1.5 / 5 * box["height"]
    text = tooltip(page, cells, x, y, "block 3 · ① attention alone")
    assert "over 55 of 64 images" in text and "singular values at the floor" in text


def test_what_is_infinite_is_no_number(read):
    page = read("rich")
    _, plot = chart(page, "κ by block")
    lines = dict(zip(values(plot, "name"), values(plot, "y"), strict=True))
    assert lines["① attention alone"][7] is None
    symbols = dict(zip(values(plot, "name"), values(plot, "marker?.symbol"), strict=True))["① attention alone"]
    assert [number for number, symbol in enumerate(symbols) if symbol == "circle-open"] == [3, 7]
    assert "∞" in plot.text_content()


def test_buttons_cut_the_skips(opened):
    page = opened("rich")
    section, plot = chart(page, "κ by block")
    before = values(plot, "y")
    section.get_by_role("button", name="attention skips cut").click()
    assert section.get_by_role("button", name="as it is").get_attribute("aria-pressed") == "false"
    after = values(plot, "y")
    assert before != after
    assert len(after) == 13  # with the faint lines of the model as it is
    lines = dict(zip(values(plot, "name"), after, strict=True))
    assert lines["①+② attention + skip"][11] > 10
    section.get_by_role("button", name="as it is").click()
    assert values(plot, "y") == before


def test_menus_and_the_slider_change_what_is_drawn(opened):
    page = opened("rich")
    section, plot = chart(page, "Every site")
    kappas = values(plot, "z")[0]
    section.get_by_label("quantity").select_option(label="token cosine")
    cosines = values(plot, "z")[0]
    assert cosines != kappas and all(0 <= z <= 1 for line in cosines for z in line)

    section, plot = chart(page, "Spectra")
    assert "block 0" in values(plot, "hovertemplate")[2]
    section.get_by_role("slider", name="block").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert "block 3" in values(plot, "hovertemplate")[2]
    assert section.locator("output").text_content() == "3"
    section.get_by_label("site").select_option(label="③ MLP alone")
    assert "MLP alone" in values(plot, "hovertemplate")[2]

    section, plot = chart(page, "Jacobians")
    section.get_by_role("button", name="DCT").click()
    assert "DCT 0.85" in values(plot, "name")
    section.get_by_label("sub-block").select_option(label="block 6, attention")
    assert any(values(plot, "error_y"))
    assert plot.evaluate("p => p.layout.xaxis.type") == "log"


def test_heat_maps_of_two_models(opened):
    page = opened("compare")
    section, plot = chart(page, "Every site")
    assert len(values(plot, "x")[0]) == 12
    section.get_by_role("button", name="B", exact=True).click()
    assert len(values(plot, "x")[0]) == 24
    assert page.locator("section", has=page.get_by_role("heading", name="Difference")).locator(".plot").count() == 1


def test_zoom_and_back(opened):
    page = opened("rich")
    _, plot = chart(page, "κ by block")
    area = plot.locator(".nsewdrag").first
    whole = plot.evaluate("p => p._fullLayout.xaxis.range")
    box = area.bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 250, steps=5)
    page.mouse.up()
    page.wait_for_function("p => p._fullLayout.xaxis.range[1] < 10", arg=plot.element_handle())
    area.dblclick()
    page.wait_for_function("p => p._fullLayout.xaxis.range[1] > 11", arg=plot.element_handle())
    assert plot.evaluate("p => p._fullLayout.xaxis.range") == whole


def test_light_and_dark(opened):
    page = opened("rich")
    _, plot = chart(page, "Every site")
    background = "getComputedStyle(document.body).backgroundColor"
    light, scale = page.evaluate(background), values(plot, "colorscale")[0]
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(background) != light
    assert values(plot, "colorscale")[0] != scale  # more is darker on white, lighter on black
    assert plot.evaluate("p => p.layout.font.color") == page.evaluate(
        "getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()"
    )
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(background) == light
    assert opened("rich", color_scheme="dark").evaluate(background) != light


@pytest.mark.parametrize("name", list(REPORTS))
def test_on_a_phone_nothing_is_wider_than_the_screen(name, opened):
    page = opened(name, PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for control in page.locator(".controls select, .controls input, .controls button").all():
        box = control.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"] and box["height"] >= 15
    if name in ("rich", "compare"):
        _, plot = chart(page, "κ by block")
        axis, legend = plot.locator(".xaxislayer-above").bounding_box(), plot.locator(".legend").bounding_box()
        assert legend["y"] > axis["y"] + axis["height"]


def test_from_wide_to_narrow_and_back(opened):
    page = opened("compare")
    before = drawn(page)
    for viewport in (PHONE, DESKTOP, PHONE):
        page.set_viewport_size(viewport)
        page.wait_for_timeout(300)
    assert drawn(page) == before


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["rich", "compare", "poor"])
def test_screenshots(name, theme, opened):
    page = opened(name, DESKTOP, color_scheme=theme)
    for device, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
        page.set_viewport_size(viewport)
        page.wait_for_timeout(300)
        height = page.evaluate("document.documentElement.scrollHeight")
        page.set_viewport_size({**viewport, "height": height})  # charts would be drawn anew while the picture is taken
        page.wait_for_timeout(300)
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        path = ARTEFACTS / f"{name}-{device}-{theme}.png"
        page.screenshot(path=path)
        with Image.open(path) as image:
            assert image.size == (viewport["width"], height)
            assert len(image.convert("RGB").getcolors(1 << 24) or []) > 200
