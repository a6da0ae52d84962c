"""`wellcond app` in a real Chromium without a network: its three tabs, live, on a desk and on a phone.

Screenshots are left in tests/artefacts, or where WELLCOND_ARTEFACTS says.
"""

import os
import re
from pathlib import Path

import pytest
from app_cases import pickled, served
from browser_cases import DESKTOP, NEEDS_CHROMIUM, PHONE
from PIL import Image
from run_cases import config, write_run

from wellcond.data.procedural import procedural

ARTEFACTS = Path(os.environ.get("WELLCOND_ARTEFACTS") or Path(__file__).parent / "artefacts")
pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "<b>run", config(), epochs=2, finished=False)
    return folder


@pytest.fixture(scope="module")
def app(runs):
    with served(runs) as running:
        yield running


@pytest.fixture
def opened(browser, app):
    """A page that may ask its own server only, and on which nothing may go wrong but what a test expects."""
    contexts, troubles, expected = [], [], []

    def open_page(viewport, **options):
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        context.route(lambda url: not url.startswith((app.address, "data:", "blob:")), refuse)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda m: troubles.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.goto(app.address)
        page.wait_for_selector("#wc-pictures img")
        page.wait_for_selector("#wc-spectra .main-svg")
        page.expected = expected
        return page

    def refuse(route) -> None:
        troubles.append(f"asked for {route.request.url}")
        route.abort()

    yield open_page
    for context in contexts:
        context.close()
    assert [line for line in troubles if not any(word in line for word in expected)] == []


def kappas(page) -> list[str]:
    return page.locator("#wc-pictures b").all_text_contents()


def test_a_photo_is_grayed_as_the_slider_moves(opened, tmp_path):
    page = opened(DESKTOP)
    before, after = kappas(page)
    assert before != after
    page.get_by_role("slider").first.press("ArrowLeft")
    page.wait_for_function("old => document.querySelectorAll('#wc-pictures b')[1].textContent !== old", arg=after)
    assert kappas(page)[0] == before and "SVD 0.69" in page.locator("#wc-pictures").inner_text()
    page.get_by_label("DCT").check()
    page.get_by_text("grayed, DCT 0.69").wait_for()
    Image.fromarray(procedural(5, size=96).image).save(tmp_path / "mine.png")
    page.locator("input[type=file]").first.set_input_files(tmp_path / "mine.png")
    page.get_by_text("96 × 96 pixels, 36 tokens").wait_for()
    page.screenshot(path=ARTEFACTS / "app-photo-desktop.png", full_page=True)
    page.expected.append("415")
    page.get_by_role("tab", name="Model").click()
    (tmp_path / "evil.safetensors").write_bytes(pickled(tmp_path / "mark"))
    page.locator("input[type=file]").last.set_input_files(tmp_path / "evil.safetensors")
    page.get_by_text("'evil.safetensors' is a pickle").wait_for()
    assert not (tmp_path / "mark").exists()


def test_a_run_is_watched_while_it_trains(opened, runs):
    page = opened(DESKTOP)
    page.get_by_role("tab", name="Run").click()
    state = page.locator("#wc-state")
    state.get_by_text("<b>run: epoch 2 of 4 · step 20").wait_for()  # a name is a name
    page.locator(".js-plotly-plot:visible").nth(2).wait_for()
    metrics = runs / "<b>run" / "metrics.jsonl"
    line = '{"kind":"train","step":25,"epoch":3,"lr":0.001,"loss":0.5,"grad_norm":1.0,"skipped":0}\n'
    with metrics.open("a") as file:
        file.write(line + '{"kind":"train","st')
    state.get_by_text(re.compile("step 25 · loss 0.500")).wait_for()
    last = "document.querySelectorAll('.js-plotly-plot')[1].data[0].y.at(-1)"
    page.wait_for_function(f"{last} === 0.5")
    page.get_by_label("run under").fill("../../etc")
    page.get_by_label("run under").press("Enter")
    page.get_by_text("'../../etc' is not a name under the run root").wait_for()


def test_on_a_phone_a_model_is_diagnosed_and_nothing_is_wider_than_the_screen(opened):
    page = opened(PHONE, has_touch=True, is_mobile=True, device_scale_factor=2, color_scheme="dark")
    for name, ready in (("Photo", "#wc-spectra .main-svg"), ("Run", "#wc-state p"), ("Model", "#wc-diagnosis iframe")):
        page.get_by_role("tab", name=name).click()
        if name == "Model":
            diagnose(page)
            frame = page.frame_locator("#wc-diagnosis iframe")
            frame.locator(".plot .main-svg").first.wait_for()
        page.locator(ready).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], name
        for control in page.locator("button:visible, input:visible:not([type=file]), .wc-table:visible").all():
            box = control.bounding_box()
            assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]), name
        page.screenshot(path=ARTEFACTS / f"app-{name.lower()}-phone.png", full_page=True)
    table = page.locator(".wc-table")
    assert "sab_out" in table.inner_text()
    frame = page.frame_locator("#wc-diagnosis iframe")
    assert frame.get_by_role("heading", name="Conditioning of test_vit").is_visible()
    assert frame.locator("html").evaluate("page => page.scrollWidth <= innerWidth")
    page.locator("#wc-diagnosis iframe").scroll_into_view_if_needed()  # it is painted only where it is seen
    frame.locator(".plot .main-svg").first.scroll_into_view_if_needed()
    page.screenshot(path=ARTEFACTS / "app-diagnosis-phone.png")


def diagnose(page) -> None:
    page.get_by_role("tab", name="Model").click()
    name = page.get_by_label("model of timm")
    name.click()
    name.press("Control+a")
    name.press_sequentially("test_vit")
    page.get_by_role("option", name="test_vit", exact=True).click()
    page.get_by_role("button", name="Diagnose").click()
    page.wait_for_selector("#wc-diagnosis iframe")
