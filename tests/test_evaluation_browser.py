"""The page of `wellcond evaluate` in a real Chromium: no error, no request, a slider that moves pictures, a phone."""

from pathlib import Path

import numpy as np
import pytest
from browser_cases import ARTEFACTS, NEEDS_CHROMIUM, PHONE

from wellcond.data.procedural import procedural
from wellcond.judging import page
from wellcond.judging.album import Album, Sight

pytestmark = NEEDS_CHROMIUM
EVIL = '<img src="http://x.invalid/"> <a href="http://x.invalid">%{x}' + "long" * 30


def album(name: str, layers: int, pictures: int = 2) -> Album:
    """What judges would have found, made up."""
    drawn = [procedural(index, size=48) for index in range(pictures)]
    made = Album(name=name, data="procedural:2", num_layers=layers)
    for index, d in enumerate(drawn):
        mask = d.mask.astype(np.uint8)
        made.scenes.append(
            Sight(name=f"{index} & {name}", pixels=d.image, boxes=np.array([d.box], np.float64), mask=mask)
        )
        made.squares.append(Sight(name=f"picture {index}", pixels=d.image, mask=mask * 3))
        for layer in range(layers):
            made.show("object", layer, index, ([layer, 2, 30, 50], d.mask))
            made.show("pca", layer, index, np.full((6, 6, 3), layer / layers))
            made.show("segments", layer, index, mask * 2)
        made.show("segments", page.MULTI, index, mask)
    for judge, what in (("knn", "top1"), ("segmentation", "miou"), ("discovery", "corloc")):
        made.values[judge] = {f"{what}@{layer}": 10.0 * layer for layer in range(layers - 1)} | {what: 50.0}
    return made


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    pages = {
        "two": page.build([album("runs/skips", 4), album("runs/no skips", 3)], command="wellcond evaluate a b"),
        "evil": page.build([album(EVIL, 2)]),
        "one layer": page.build([album("runs/x", 1)]),
    }
    return {name: made.write(folder / f"{name}.html") for name, made in pages.items()}


def section(shown, heading: str):
    return shown.locator("section", has=shown.get_by_role("heading", name=heading, exact=True))


def captions(part) -> list[str]:
    return part.evaluate("s => Array.from(s.querySelectorAll('.gallery figure:not([hidden]) small'), e => e.innerText)")


@pytest.mark.parametrize(("name", "charts"), [("two", 3), ("evil", 3), ("one layer", 0)])
def test_opens_without_error_on_a_desk_and_on_a_phone(name, charts, read, opened):
    shown = read(name)
    assert shown.locator(".plot").count() == charts
    assert shown.evaluate("Array.from(document.images).every(i => i.complete && i.naturalWidth > 0)")
    assert shown.locator("a").count() == 0
    phone = opened(name, PHONE, has_touch=True, is_mobile=True, device_scale_factor=2)
    assert phone.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_slider_shows_another_layer_of_every_model(opened):
    shown = opened("two")
    objects = section(shown, "Objects found")
    assert captions(objects) == ["true boxes and mask", "layer 3", "layer 2"] * 2  # the shallower one shows its last
    slider = objects.get_by_label("layer")
    slider.fill("1")
    assert captions(objects) == ["true boxes and mask", "layer 1", "layer 1"] * 2
    assert objects.locator("output").inner_text() == "1"
    assert captions(section(shown, "PCA maps"))[1] == "layer 3"  # each gallery has a slider of its own
    segments = section(shown, "Segmentation")
    segments.get_by_label("layer").fill("4")
    assert captions(segments) == ["true classes", "multi-scale", "multi-scale"] * 2
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    shown.screenshot(path=ARTEFACTS / "evaluation.png", full_page=True)


def test_one_layer_has_no_slider_and_pictures_stand_side_by_side(read):
    shown = read("one layer")
    assert section(shown, "Objects found").locator("input").count() == 0
    assert section(shown, "Segmentation").locator("input").count() == 1  # the layer, or multi-scale
    first, second = (shown.locator(".gallery figure").nth(n).bounding_box() for n in (0, 1))
    assert first["y"] == second["y"] and first["x"] < second["x"]


def test_curves_have_a_line_for_each_model(read):
    plot = section(read("two"), "By layer").locator(".plot").first
    assert plot.evaluate("p => p.data.map(t => [t.name, t.x.length])") == [["runs/skips", 4], ["runs/no skips", 3]]
