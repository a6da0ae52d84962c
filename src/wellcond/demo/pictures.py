"""The first half of the demo: gray generated pictures and see κ fall.

The pictures come from the room data, the numbers from `gray_picture`; this file only chooses what to show.
For the SVD the exponent acts on κ exactly: log κ(X̃) = ε · log κ(X) (Algorithm 1 of
Always Skip Attention, arXiv 2505.01996, with σ_max multiplied back), so its points lie on a line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rich.table import Table as RichTable

from wellcond import report
from wellcond.data.procedural import CLASSES, procedural
from wellcond.pictures import GrayedPicture, gray_picture

Method = Literal["svd", "dct"]
Key = tuple[Method, float]  # method, ε
Results = dict[Key, list[GrayedPicture]]

# The sweeps of Table 3, and its best of each.
SWEEP: dict[Method, tuple[float, ...]] = {
    "svd": (0.9, 0.8, 0.7, 0.6, 0.5),
    "dct": (0.97, 0.95, 0.93, 0.9, 0.85),
}
SHOWN: tuple[Key, ...] = (("svd", 0.7), ("dct", 0.95))  # pictured
FAINT: tuple[Key, ...] = (("svd", 0.5), ("dct", 0.85))  # dotted in the figure
COLOUR = {"svd": report.SVD, "dct": report.DCT}


@dataclass(frozen=True, kw_only=True)
class Grayed:
    """Pictures by name, and each grayed in every way of the sweep."""

    names: Sequence[str]
    results: Results


def gray_pictures(count: int, size: int, seed: int) -> Grayed:
    samples = [procedural(index, size=size, seed=seed) for index in range(count)]
    names = [f"{number}: {CLASSES[sample.label]}" for number, sample in enumerate(samples, 1)]
    results: Results = {(method, epsilon): [] for method, sweep in SWEEP.items() for epsilon in sweep}
    for sample in samples:
        before = None
        for (method, epsilon), grayed in results.items():
            done = gray_picture(sample.image, method=method, epsilon=epsilon, spectrum_before=before)
            grayed.append(done)
            before = done.spectrum_before
    return Grayed(names=names, results=results)


def sections(grayed: Grayed, size: int) -> list[report.Section]:
    """The part of the page."""
    names, results = grayed.names, grayed.results
    first = results[SHOWN[0]][0]
    text = (
        f"{len(names)} generated picture{'' if len(names) == 1 else 's'} of {size} pixels, cut into 16 × 16 patches: "
        f"token matrices of {first.num_tokens} × {first.width}. Graying raises the small singular values (SVD) or "
        "cosine coefficients (DCT) towards the large ones. Original, then grayed by SVD and by DCT."
    )
    return [
        report.Section(title="What graying does", text=text, items=[_headline(results), _gallery(names, results)]),
        _spectra(names[0], {key: pictures[0] for key, pictures in results.items()}),
        _sweep(results),
    ]


def table(grayed: Grayed) -> RichTable:
    """Mean log κ by method and ε, for the terminal."""
    results = grayed.results
    shown = RichTable(title=f"log κ, mean of {len(grayed.names)} pictures", title_justify="left")
    for heading in ("method", "ε", "before", "after"):
        shown.add_column(heading, justify="left" if heading == "method" else "right")
    for key in SHOWN:
        shown.add_row(key[0].upper(), f"{key[1]:g}", f"{_mean_before(results):.2f}", f"{_mean_after(results[key]):.2f}")
    return shown


def _headline(results: Results) -> report.Numbers:
    items: list[tuple[str, report.Cell, str]] = [("log κ before", _mean_before(results), "mean over the pictures")]
    items += [(f"log κ after {_name(key)}", _mean_after(results[key]), _change(results[key])) for key in SHOWN]
    return report.Numbers(items=items)


def _gallery(names: Sequence[str], results: Results) -> report.Gallery:
    pictures = []
    for number, name in enumerate(names):
        original = results[SHOWN[0]][number]
        note = f"log κ {original.spectrum_before.log_kappa:.2f}"
        pictures.append(report.Picture(pixels=original.before, title=name, note=note))
        for key in SHOWN:
            grayed = results[key][number]
            note = f"log κ {grayed.spectrum_after.log_kappa:.2f}"
            pictures.append(report.Picture(pixels=grayed.after, title=_name(key), note=note))
    return report.Gallery(pictures=pictures, columns=3, caption="Colours outside the screen's range are clipped.")


def _spectra(name: str, grayed: dict[Key, GrayedPicture]) -> report.Section:
    """σ_k/σ_max of one picture, before and after, logarithmic."""
    any_picture = next(iter(grayed.values()))
    curves = [("original", any_picture.spectrum_before.sigma, {"color": report.BEFORE, "width": 3})]
    for key in (*SHOWN, *FAINT):
        line = {"color": COLOUR[key[0]], "width": 2, "dash": "solid" if key in SHOWN else "dot"}
        curves.append((_name(key), grayed[key].spectrum_after.sigma, line))
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": label,
            "x": list(range(1, len(sigma) + 1)),
            "y": sigma / sigma[0],
            "line": line,
            "hovertemplate": "σ<sub>%{x}</sub> = %{y:.2e} σ<sub>max</sub>",
        }
        for label, sigma, line in curves
    ]
    layout = {
        "xaxis": {"title": {"text": "number of the singular value"}},
        "yaxis": {"title": {"text": "σ / σ_max"}, "type": "log", "exponentformat": "power", "dtick": 1},
        "hovermode": "x unified",
    }
    caption = f"Singular values of picture {name}. Move over the lines to read them."
    return report.Section(title="Their spectra", items=[report.Figure(data=data, layout=layout, caption=caption)])


def _sweep(results: Results) -> report.Section:
    """Mean log κ against ε for both methods."""
    before = _mean_before(results)
    data = []
    for method, sweep in SWEEP.items():
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": method.upper(),
                "x": [1.0, *sweep],
                "y": [before, *(_mean_after(results[method, epsilon]) for epsilon in sweep)],
                "line": {"color": COLOUR[method], "width": 2},
                "marker": {"size": 8},
                "hovertemplate": "ε = %{x:.2f}: log κ = %{y:.2f}",
            }
        )
    layout = {
        "xaxis": {"title": {"text": "ε"}, "autorange": "reversed"},
        "yaxis": {"title": {"text": "log κ, mean"}, "rangemode": "tozero"},
    }
    text = "ε = 1 changes nothing. By SVD, log κ is multiplied by ε exactly; by DCT there is no such rule."
    return report.Section(
        title="How much graying", text=text, items=[report.Figure(data=data, layout=layout, height=340)]
    )


def _name(key: Key) -> str:
    return f"{key[0].upper()} {key[1]:g}"


def _mean_before(results: Results) -> float:
    return fmean(grayed.spectrum_before.log_kappa for grayed in next(iter(results.values())))


def _mean_after(pictures: Sequence[GrayedPicture]) -> float:
    return fmean(grayed.spectrum_after.log_kappa for grayed in pictures)


def _change(pictures: Sequence[GrayedPicture]) -> str:
    ratios = [p.spectrum_after.kappa / p.spectrum_before.kappa for p in pictures]
    return f"κ falls to {100 * fmean(ratios):.0f} %"
