"""A Diagnosis as data: JSON there and back, bad files, rows above a limit, the table."""

import dataclasses
import json
import math

import pytest
import torch
from block_cases import VIT, images_of
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import wellcond as wc
from wellcond.blocks import SITES
from wellcond.diagnosis import Advice, Diagnosis, Finding
from wellcond.diagnosis.result import GrayingStep, JacobianCurve, Thumbnail
from wellcond.diagnosis.table import as_text
from wellcond.probes import Row, SiteSpectrum

number = st.floats(allow_nan=False, allow_infinity=False)
maybe = st.none() | number
count = st.integers(0, 10**9)
text = st.text(max_size=12)


ROW = st.builds(
    Row, layer=count, site=text, quantity=text, value=maybe, std=maybe, floor_count=number, num_infinite=count,
    num_images=count, n=count, d=count,
)  # fmt: skip
numbers = st.lists(number, max_size=3).map(tuple)
CURVE = st.builds(
    JacobianCurve, layer=count, part=text, method=st.none() | text, epsilon=maybe, sigma=numbers, error=numbers,
    sigma_min=number, sigma_min_lower=number, floor=number, log_kappa=maybe, kappa_at_least=maybe,
    kappa_at_most=maybe, complete=st.booleans(), n=count, d=count,
)  # fmt: skip
gaps = st.lists(maybe, max_size=3).map(tuple)
SPECTRUM = st.builds(SiteSpectrum, layer=count, site=text, log_sigma=gaps, std=gaps, floor=maybe, n=count, d=count)
STEP = st.builds(GrayingStep, method=text, epsilon=number, log_kappa=maybe, num_infinite=count)
ADVICE = st.builds(
    Advice, patch_size=st.tuples(count, count), n=count, d=count, log_kappa=maybe, target=number,
    epsilon=st.dictionaries(text, maybe, max_size=2), sweep=st.lists(STEP, max_size=2).map(tuple),
)  # fmt: skip
FINDING = st.builds(Finding, kind=text, severity=text, layer=st.none() | count, text=text, evidence=text, remedy=text)
words = st.lists(text, max_size=2)
DIAGNOSIS = st.builds(
    Diagnosis, model=text, num_images=count, image_size=st.tuples(count, count), tokens=text,
    rows=st.lists(ROW, max_size=2), variants=st.dictionaries(text, st.lists(ROW, max_size=1), max_size=2),
    spectra=st.lists(SPECTRUM, max_size=2), jacobians=st.lists(CURVE, max_size=2), advice=st.none() | ADVICE,
    findings=st.lists(FINDING, max_size=2), thumbnails=st.lists(st.builds(Thumbnail, title=text, note=text, png=text),
    max_size=1), missing=words, skipped=words, source=text, weights=text, command=text,
    versions=st.dictionaries(text, text, max_size=2), arithmetic=text,
)  # fmt: skip


@given(DIAGNOSIS)
def test_json_gives_the_same_back(tmp_path_factory, diagnosis):
    path = diagnosis.to_json(tmp_path_factory.getbasetemp() / "diagnosis.json")
    assert Diagnosis.from_json(path) == diagnosis
    assert Diagnosis.from_json(str(path)) == diagnosis
    assert Diagnosis.from_json(path.read_text(encoding="utf-8")) == diagnosis
    json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda name: pytest.fail(name))


@pytest.fixture(scope="module")
def real():
    torch.manual_seed(0)
    return wc.diagnose(VIT.create(), images_of(VIT, 2))


def test_a_real_one_gives_the_same_back(real, tmp_path):
    path = real.to_json(tmp_path / "new" / "d.json")
    assert Diagnosis.from_json(path) == real
    lines = path.read_text().splitlines()
    assert sum('"quantity"' in line for line in lines) >= len(real.rows)  # one row on a line


def changed(real, tmp_path, change):
    content = json.loads(real.to_json(tmp_path / "a.json").read_text())
    change(content)
    path = tmp_path / "b.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["rows"][3].update(value="high"), r"b\.json.*diagnosis\.rows\[3\]\.value is 'high'"),
        (lambda c: c["rows"][0].pop("layer"), r"b\.json.*rows\[0\] needs layer"),
        (lambda c: c["rows"][0].update(layers=1), r"rows\[0\] has no field 'layers'; did you mean 'layer'"),
        (lambda c: c.update(FORMAT="1"), "diagnosis has no field 'FORMAT'; it has model, num_images"),
        (lambda c: c.update(rows=7), r"diagnosis\.rows is 7; expected list"),
        (lambda c: c.update(image_size=[1, 2, 3]), r"image_size is \[1, 2, 3\]"),
        (lambda c: c["rows"][0].update(num_images=True), r"num_images is True"),
        (lambda c: c["rows"][0].update(value=math.inf), r"b\.json.*Infinity"),
        (lambda c: c.pop("format"), r'b\.json.*"format"'),
        (lambda c: c.update(format="wellcond diagnosis 9"), r"b\.json.*'wellcond diagnosis 9'"),
        (lambda c: c.pop("model"), r"diagnosis needs model"),
    ],
)
def test_a_damaged_file_is_named_with_its_field(real, tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        Diagnosis.from_json(changed(real, tmp_path, change))


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe\x00", b"<html>", b'{"a": 1}'])
def test_a_foreign_file_is_named(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.json"):
        Diagnosis.from_json(path)
    with pytest.raises(FileNotFoundError):
        Diagnosis.from_json(tmp_path / "none.json")
    with pytest.raises(ValueError, match="the text"):
        Diagnosis.from_json('{"rows": [')


def row(layer, site, value, quantity="log_kappa", **more):
    infinite = value is None
    fields = {"std": None if infinite else 0.25, "floor_count": float(infinite), "num_infinite": 2 * infinite}
    return Row(layer=layer, site=site, quantity=quantity, value=value, num_images=2, n=197, d=192, **{**fields, **more})


HAND = Diagnosis(
    model="m",
    num_images=2,
    image_size=(224, 192),
    tokens="all",
    rows=[
        row(0, "sab_in", 3.0),
        row(0, "sab_out", 9.0),
        row(0, "sab_sum", 12.5, num_infinite=1),
        row(1, "sab_in", None),
        row(1, "lpi_out", 50.0),
        row(1, "attention", 60.0, "attention_log_kappa"),
        row(1, "ffn_sum", 70.0, "kurtosis"),
        row(1, "ffn_sum", 13.0),
        row(1, "sab_out", None, floor_count=0.0),
    ],
    spectra=[SiteSpectrum(layer=1, site="sab_in", log_sigma=(0.0,), std=(0.0,), floor=-15.42, n=197, d=192)],
    findings=[Finding(kind="graying", severity="warning", layer=None, text="[bold]a", evidence="b [1/2]", remedy="c")],
    missing=["Jacobian: none"],
)


def test_rows_above_a_limit_worst_first():
    def places(limit):
        return [(r.layer, r.site) for r in HAND.above(limit)]

    infinite = [(0, "sab_sum"), (1, "sab_in"), (1, "sab_out")]  # the first on one of two images
    assert places(8) == [*infinite, (1, "ffn_sum"), (0, "sab_out")]
    assert places(12.5) == [*infinite, (1, "ffn_sum")]
    assert places(1e9) == infinite
    rows = [dataclasses.replace(row(0, "sab_sum", 12.5, num_infinite=k), num_images=3) for k in (1, 2)]
    assert dataclasses.replace(HAND, rows=rows).above(20) == rows[1:]
    with pytest.raises(ValueError, match="limit=nan"):
        HAND.above(math.nan)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_table_fits_and_says_what_is_infinite(width):
    text = as_text(HAND, width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text and text == text.rstrip()
    flat = " ".join(text.split())
    assert "12.50" in flat and "+1∞" in flat and "–" in flat
    assert width == 40 or "> 15.4" in flat  # what is known where κ is not: 1/floor
    assert ("± 0.25" in flat) == ("± deviation" in flat) == (width >= 80)
    assert "[bold]a" in flat and "b [1/2]" in flat and "not measured: Jacobian: none" in flat
    assert "197 × 192" in flat


WORDS = ["block input", "attention alone", "attention + skip", "MLP alone", "MLP + skip"]
WIDE = [row(layer, site, 12.5, num_infinite=1, std=10.25) for layer in range(2) for site in SITES]


def test_the_table_speaks_the_page_s_words_and_fits_80_columns():
    text = as_text(dataclasses.replace(HAND, rows=WIDE), 80)  # no column is narrower than its widest cell
    table = [line for line in text.splitlines() if line[0] in "┃│"]
    assert max(map(len, table)) <= 80 and len({len(line) for line in table}) == 1
    assert all(line.count("12.50 +1∞") == len(SITES) for line in table if line[0] == "│")
    heads = zip(*(line.strip("┃").split("┃") for line in table if line[0] == "┃"), strict=True)
    assert [" ".join(" ".join(head).split()) for head in heads] == ["block", *WORDS]
    assert not any(site in text for site in SITES)


def test_print_and_rich(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "90")
    print(HAND)
    out = capsys.readouterr().out
    assert out == as_text(HAND, 90) + "\n"
    console = Console(force_terminal=True, width=90, color_system="standard")
    with console.capture() as capture:
        console.print(HAND)
    assert "\x1b[" in capture.get() and "±" in capture.get()
    console = Console(width=60)
    with console.capture() as capture:
        console.print(HAND)
    assert "±" not in capture.get()  # of this console's width, not of a default one


def test_a_diagnosis_is_frozen(real):
    with pytest.raises(dataclasses.FrozenInstanceError):
        real.model = "other"


def test_a_path_is_no_diagnosis_to_compare_with(real, tmp_path):
    with pytest.raises(ValueError, match=r"compare is 'before.json'; pass a diagnosis, e.g. Diagnosis.from_json"):
        real.to_html(tmp_path / "page.html", "before.json")
