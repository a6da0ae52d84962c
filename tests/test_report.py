"""The page: self-contained and escaped. test_browser.py opens it."""

import html.parser
import json
import re

import numpy as np

from wellcond.report import Figure, Gallery, Numbers, Picture, Report, Section, Table, format_cell

EVIL = """<img src=x onerror="document.title='hacked'"></script><script>document.title='hacked'</script>&"'"""


def make_report(text: str = "plain") -> Report:
    pixels = np.zeros((8, 8, 3), np.uint8)
    items = [
        Numbers(items=[(text, 3.5, text)]),
        Table(columns=[text, "κ"], rows=[[text, 1.5], [None, float("inf")], [text, float("nan")]], caption=text),
        Figure(data=[{"x": np.arange(3), "y": [1.0, float("nan"), 2.0], "name": text}], caption=text),
        Gallery(pictures=[Picture(pixels=pixels, title=text, note=text)] * 4, columns=3, caption=text),
    ]
    return Report(title=text, summary=text, sections=[Section(title=text, text=text, items=items)], command=text)


class Attributes(html.parser.HTMLParser):
    """Every tag and every attribute that can hold an address."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action", "data", "srcset", "poster")]
        self.handlers += [k for k, _ in attrs if k.startswith("on")]


def without_plotly(page: str) -> str:
    from plotly.offline import get_plotlyjs

    assert page.count(get_plotlyjs()) == 1
    return page.replace(get_plotlyjs(), "")


def test_a_dash_and_the_heading_stand_where_the_numbers_do():
    table = Table(columns=["run", "top-1"], rows=[["mae", None], ["vit", 30.0]])
    page = Report(title="t", sections=[Section(title="s", items=[table])]).to_html()
    assert '<th class="number">top-1</th>' in page and '<td class="number">–</td>' in page
    assert "<th>run</th>" in page and "<td>mae</td>" in page
    empty = Table(columns=["run"], rows=[])
    assert "<th>run</th>" in Report(title="t", sections=[Section(title="s", items=[empty])]).to_html()


def test_no_external_address():
    page = make_report().to_html()
    rest = without_plotly(page)
    assert "http://" not in rest
    assert "https://" not in rest
    assert not re.search(r"url\(|@import", rest)
    found = Attributes(rest)
    assert not {"link", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert all(address.startswith("data:") for address in found.addresses)
    assert "default-src 'none'" in rest  # so the browser refuses what plotly.js might ask for


def test_everything_is_escaped():
    rest = without_plotly(make_report(EVIL).to_html())
    assert "<img src=x" not in rest
    assert "</script><script>document" not in rest
    assert Attributes(rest).handlers == []
    assert rest.count("<script") == 3  # the figure's data, plotly.js, our own


def test_plotly_only_with_a_figure():
    page = Report(title="t", sections=[Section(title="s", items=[Table(columns=["a"], rows=[[1]])])]).to_html()
    assert len(page) < 30_000
    assert "newPlot" not in page


def test_figure_data_survives_and_holds_no_nan():
    page = make_report().to_html()
    found = re.search(r'class="plot-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found
    assert json.loads(found[1])["data"][0]["y"] == [1.0, None, 2.0]


def test_infinity_and_nothing_are_words():
    page = make_report().to_html()
    assert '<td class="number">∞</td>' in page
    assert format_cell(None) == "–"


def test_command_and_versions_are_in_the_footer():
    page = Report(title="t", command="wellcond demo --out x").to_html()
    footer = page[page.index("<footer>") :]
    assert "wellcond demo --out x" in footer
    assert "python 3." in footer
    assert "numpy" in footer


def test_written_whole(tmp_path):
    path = make_report().write(tmp_path / "deep" / "report.html")
    assert path.read_text().endswith("</html>\n") or path.read_text().endswith("</html>")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
