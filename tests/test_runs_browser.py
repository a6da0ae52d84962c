"""The pages of runs and of the demo in a real Chromium: no error, no request, every chart, choices, a phone."""

import re
from pathlib import Path

import pytest
from browser_cases import NEEDS_CHROMIUM, PHONE
from run_cases import config, grayed, without_attention_skip, write_run

from wellcond import runs_page

pytestmark = NEEDS_CHROMIUM
CUT = "--model.cut-attention-skips"
CHARTS = {"family": 5, "plain": 2, "young": 1, "evil": 5, "demo": 7}


@pytest.fixture(scope="module")
def written(demo_checkout, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    base = config()
    evil = config(recipe='<img src="http://x.invalid/"> <a href="http://x.invalid">%{x}' + "long" * 40)
    runs = {
        "family": [
            write_run(folder / "a0", base),
            write_run(folder / "a1", config(seed=1), top1=64),
            write_run(folder / "cut", without_attention_skip(base), top1=12, collapsed=True, typed=CUT),
            write_run(folder / "dct", grayed(base, "dct", 0.95), top1=62, epochs=3),
        ],
        "plain": [write_run(folder / "plain", base, probes=False)],
        "young": [write_run(folder / "young", base, epochs=0, finished=False)],
        "evil": [write_run(folder / "<b>%{x}<img src=x>", evil), write_run(folder / "evil2", grayed(base, "svd", 0.7))],
    }
    line = '{"kind":"train","step":5,"epoch":1,"lr":0.1,"loss":2.0,"skipped":0}\n'
    (folder / "young" / "metrics.jsonl").write_text(2 * line)
    pages = {name: _write(paths, folder / f"{name}.html") for name, paths in runs.items()}
    return pages | {"demo": demo_checkout / "demo" / "report.html"}


def _write(paths: list[Path], out: Path) -> Path:
    return runs_page.build(*runs_page.gather(paths))[0].write(out)


def chart(page, heading: str):
    section = page.locator("section", has=page.get_by_role("heading", name=re.compile(heading)))
    return section, section.locator(".plot").first


def names(plot) -> list[str]:
    return plot.evaluate("p => p.data.map(t => t.name ?? null)")


@pytest.mark.parametrize("name", CHARTS)
def test_opens_without_error_and_draws_every_chart(name, read):
    page = read(name)
    counts = page.evaluate("Array.from(document.querySelectorAll('.plot')).map(p => p.data.length)")
    assert len(counts) == CHARTS[name] and all(counts)
    assert page.evaluate("Array.from(document.images).every(i => i.complete && i.naturalWidth > 0)")
    assert page.locator("a").count() == 0


@pytest.mark.parametrize("name", CHARTS)
def test_on_a_phone_nothing_is_wider_than_the_screen(name, opened):
    page = opened(name, PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for control in page.locator(".controls select, .controls button").all():
        box = control.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]


def test_choices_change_what_is_drawn(opened):
    page = opened("family")
    section, plot = chart(page, "Accuracy")
    assert names(plot)[1] == "a (2 seeds)"
    section.get_by_role("button", name="every run").click()
    assert "a, seed 1" in names(plot)
    section, plot = chart(page, "κ over epochs")
    mean = plot.evaluate("p => p.data[0].y")
    section.get_by_label("block").select_option(label="block 2")
    assert plot.evaluate("p => p.data[0].y") != mean
    section, plot = chart(page, "Every epoch and block")
    section.get_by_label("config").select_option(label="cut: cut attention")
    assert "∞" in plot.text_content()
    section.get_by_label("quantity").select_option(label="token cosine")
    assert plot.evaluate("p => p.data[0].z[1][0]") == 1


def test_the_table_keeps_its_columns_apart(read):
    """A number and a text beside each other once touched."""
    page = read("family")
    gaps = page.evaluate("""Array.from(document.querySelectorAll('td.number + td:not(.number)'))
        .map(td => parseFloat(getComputedStyle(td).paddingLeft))""")
    assert gaps and min(gaps) >= 10
