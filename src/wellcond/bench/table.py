"""results/*.json → the table in README.md and all of it in docs/results.md. Room bench, floor 8; needs no torch.

    python -m wellcond.bench.table            # rewrite both
    python -m wellcond.bench.table --check    # exit 1 if they and the results disagree

A results file has `bars` (what was promised, the row that decides it, whether it is met) and `rows`
(everything that was measured), each belonging to a part that was run on one device. A quick run is never
published; a bar that is missed is, with that verdict. Files with a `claim` are those of `wellcond reproduce`.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..atomic import write_bytes
from ..results import markdown, told_seeds
from . import claim_lines

CLAIMS = "<!-- claims:begin -->", "<!-- claims:end -->"
PROMISES = "<!-- results:begin -->", "<!-- results:end -->"
HEADLINES = {  # of the promises that are kept, those that README shows; it shows every one that is not
    "ViT-B/16 step with SVD graying, over the plain step",
    "ViT-B/16 step with DCT graying, over the plain step",
    "condition_number: times faster than torch.linalg.svdvals",
    "spectral_map: times faster than torch.linalg.svd",
    "all sites of ViT-B/16, 256 images, seconds",
    "Monitor at its defaults, share of the training step",
    "ViT-B/16, 224 px, from a uint8 cache, resident and streamed: training loop, share of the bare step's speed",
    "CIFAR-10, ViT-Tiny/4: images a second, times a timm pipeline's",
    "SOAP's step on ViT-B's parameters, times faster than pytorch-optimizer's",
    "TokenCut, 400 tokens: times faster than scipy on the GPU's host",
}
NOTHING = "*No full benchmark has been recorded yet; run `wellcond bench graying` and `wellcond bench spectral`.*"
HEAD = """# Results

Written by `make table` from `results/`: first what our parts cost, then the claims of the papers, by name. The ratio is
to the first row of its part.

Of graying, *plain* is the step without it and *plain again* the same once more. *Ungrayed* is graying with ε = 1, which
changes nothing but computes the patch embedding by a product in place of a convolution. That is quicker by itself, so
the ratio *to ungrayed* is what graying costs. It happens *inside* the model, on the batch *before* the step, or
*ahead*, on the next batch while this one trains.

"""


def claims(results: Path) -> str:
    """For README: each claim in a line."""
    rows = claim_lines.cells(_read_claims(results))
    return markdown(claim_lines.HEADING, rows) if rows else NOTHING


def summary(results: Path) -> str:
    """For README: what was promised of speed and memory, what was measured, and the error of that very row."""
    rows = []
    for result in _read(results):
        for bar in result["bars"]:
            if bar["met"] is False or (bar["name"] in HEADLINES and bar["met"]):
                name, limit, value, _, met = _bar_cells(bar)
                rows.append([name, limit, value, met, _error(_decisive(bar, result["rows"]).get("error_fro"))])
    return markdown(("promise", "bar", "measured", "met", "error"), rows) if rows else NOTHING


def _decisive(bar: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The row that a bar was judged by."""
    return next((r for r in rows if r["name"] == bar["row"] and r.get(bar["quantity"]) == bar["value"]), {})


def render(results: Path) -> str:
    """For docs/results.md: everything, from every JSON file in the folder `results`."""
    blocks = [_render_file(result) for result in _read(results)]
    blocks += [_render_claim(claim) for claim in _read_claims(results)]
    return "\n\n".join(block for block in blocks if block) or NOTHING


def _read(results: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(results.glob("bench-*.json"))]


def _read_claims(results: Path) -> list[dict[str, Any]]:
    """The claims that are published, by name."""
    found = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    return [claim for claim in found if "claim" in claim and not claim["quick"]]


def replace_block(text: str, block: str, marks: tuple[str, str] = PROMISES) -> str:
    """`text` with `block` between the marks.

    >>> replace_block("a\\n<<\\nold\\n>>\\nb", "new", ("<<", ">>"))
    'a\\n<<\\nnew\\n>>\\nb'
    """
    begin, end = marks
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise ValueError(f"the text needs the marks {begin} and {end}, once each and in this order")
    head, rest = text.split(begin)
    return f"{head}{begin}\n{block}\n{end}{rest.split(end)[1]}"


def wanted(root: Path) -> dict[Path, str]:
    """What README.md and docs/results.md of the checkout `root` should say."""
    readme, results = root / "README.md", root / "results"
    text = replace_block(readme.read_text(), claims(results), CLAIMS)
    return {
        readme: replace_block(text, summary(results)),
        root / "docs" / "results.md": HEAD + render(results) + "\n",
    }


def main(arguments: Sequence[str]) -> int:
    """Rewrite or check the files of the current folder."""
    disagree = {path: text for path, text in wanted(Path()).items() if not path.exists() or path.read_text() != text}
    if "--check" in arguments:
        for path in disagree:
            print(f"{path} and results/ disagree; run python -m wellcond.bench.table", file=sys.stderr)
        return int(bool(disagree))
    for path, text in disagree.items():
        write_bytes(path, text.encode())
    return 0


def _render_file(result: Mapping[str, Any]) -> str:
    parts = {key: part for key, part in result["parts"].items() if not part["quick"]}
    published = {(part["part"], part["device"]) for part in parts.values()}
    rows = [row for row in result["rows"] if (row["part"], row["device"]) in published]
    if not rows:
        return ""
    blocks = [f"## {result['what'].capitalize()}"]
    bars = [bar for bar in result["bars"] if bar["value"] is not None]
    if bars:
        blocks.append(markdown(("promise", "bar", "measured", "by", "met"), map(_bar_cells, bars)))
    for part in parts.values():
        of_part = [r for r in rows if (r["part"], r["device"]) == (part["part"], part["device"])]
        heading = ("", "median ms", "ratio", "95 % interval", "to ungrayed", "memory", "error", "log σ error")
        blocks.append(f"{_origin(part)}\n\n{markdown(heading, map(_row_cells, of_part))}")
    return "\n\n".join(blocks)


def _origin(part: Mapping[str, Any]) -> str:
    hardware = part["hardware"].get("gpu") or part["hardware"].get("cpu") or part["device"]
    commit = f", commit {part['commit'][:9]}" if part.get("commit") else ""
    torch = part["versions"].get("torch")
    return f"`{part['command']}` on {hardware}, torch {torch}, images {part.get('images', '–')}{commit}:"


def _render_claim(claim: Mapping[str, Any]) -> str:
    heading = ("claim", "paper", "ours", "95 % interval", "verdict", "scaled down")
    text = f"## {claim['claim']}\n\n{claim['says']}\n\n{claim['measures']} *{claim['verdict']}*"
    scaled = [claim["scaled_down"], *['"'] * len(claim["rows"])]  # the same for all rows of a claim
    rows = [[*_claim_cells(row), what] for row, what in zip(claim["rows"], scaled, strict=False)]
    minutes = f"{claim['gpu_minutes']:g} GPU-minutes, " if "gpu_minutes" in claim else ""
    return f"{text}\n\n{told_seeds(claim['runs'])}, {minutes}{_origin(claim)}\n\n{markdown(heading, rows)}"


def _claim_cells(row: Mapping[str, Any]) -> list[str]:
    interval = row["interval"]
    between = f"{_three(interval[0])} … {_three(interval[1])}" if interval else "–"
    return [row["name"], row["paper"], _three(row["value"]), between, row["verdict"]]


def _three(value: float | None) -> str:
    """Three significant digits: more than seeds can tell apart."""
    return "–" if value is None else f"{value:.3g}"


def _bar_cells(bar: Mapping[str, Any]) -> list[str]:
    sign = "≤" if bar["sense"] == "at most" else "≥"
    missed = f"**no**: {bar['why']}" if bar.get("why") else "**no**"
    verdict = {True: "yes", False: missed, None: bar.get("why", "–")}[bar["met"]]
    return [bar["name"], f"{sign} {_short(bar['limit'])}", _short(bar["value"]), bar["row"] or "–", verdict]


def _row_cells(row: Mapping[str, Any]) -> list[str]:
    if row.get("failed"):
        return [row["name"], "failed", *["–"] * 6]
    interval = row.get("ratio_ci")
    between = f"{_short(interval[0])} … {_short(interval[1])}" if interval else "–"
    numbers = (row.get(key) for key in ("median_ms", "ratio"))
    more = (row.get(key) for key in ("ratio_to_ungrayed", "peak_memory_ratio"))
    errors = (row.get(key) for key in ("error_fro", "error_log_sigma"))
    return [row["name"], *map(_short, numbers), between, *map(_short, more), *map(_error, errors)]


def _short(value: float | None) -> str:
    """Four significant digits."""
    return "–" if value is None else f"{value:.4g}"


def _error(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
