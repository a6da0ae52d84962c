"""Singular values of the tokens at a site, block by block: κ is one number of a whole curve."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wellcond import report
from wellcond.diagnosis.page.words import Side, colour, corner_note, in_order, short, site_name
from wellcond.diagnosis.result import SiteSpectrum

_POINTS = 80  # of a curve: what a screen shows, so that 24 blocks make no large file
_FEW_POINTS = 28  # of a band, and of a faint curve


def figure(sides: Sequence[Side]) -> report.Figure | None:
    """ln(σ_k/σ_max) of a chosen site and block, the other blocks faint behind it. None where there are no spectra."""
    spectra = [spectrum for side in sides for spectrum in side.diagnosis.spectra]
    if not spectra:
        return None
    sites = in_order(spectrum.site for spectrum in spectra)
    layers = sorted({spectrum.layer for spectrum in spectra})
    data: list[dict[str, Any]] = []
    layouts: list[tuple[dict[str, int], dict[str, Any]]] = []
    for number, site in enumerate(sites):
        here = [spectrum for spectrum in spectra if spectrum.site == site]
        data.append(_faint([s for s in sides[0].diagnosis.spectra if s.site == site], number))
        low = _lowest(here)
        layouts.append(({"site": number}, {"yaxis": {"range": [1.06 * low, 0.03 * abs(low)]}}))
        for side in sides:
            for spectrum in side.diagnosis.spectra:
                if spectrum.site == site:
                    when = {"site": number, "block": layers.index(spectrum.layer)}
                    data += [trace | {"when": when} for trace in _traces(side, spectrum, low)]
                    if side is sides[0]:
                        layouts += _floor_below(spectrum, low, when)
    choices = [
        report.Choice(name="site", options=[_plain_name(s) for s in sites], start=_first(sites)),
        report.Choice(name="block", options=[str(layer) for layer in layers], control="slider"),
    ]
    layout = {
        "xaxis": {"title": {"text": "k, number of the singular value"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "ln σ<sub>k</sub> / σ<sub>max</sub>"}},
        "hovermode": "closest",
    }
    caption = (
        "The chosen block, mean over images with one standard deviation; grey: the other blocks. log κ is how far the "
        "curve falls. Dashed: the numerical floor; what lies at or under it is rounding, not structure."
    )
    return report.Figure(
        data=data,
        layout=layout,
        layouts=layouts,
        height=420,
        caption=caption,
        choices=[choice for choice in choices if len(choice.options) > 1],
    )


def thinned(length: int, points: int) -> list[int]:
    """Positions of a long curve that are drawn: the first and the last always, dense where it turns, at both ends.

    >>> thinned(4, 10), thinned(1000, 20)[:3], thinned(1000, 20)[-1]
    ([0, 1, 2, 3], [0, 4, 21], 999)
    """
    if length <= points:
        return list(range(length))
    ends = np.unique(np.geomspace(1, length / 2, points // 4).round())
    inner = np.linspace(0, length - 1, points - 2 * len(ends))
    return sorted({int(p) for p in np.concatenate([ends - 1, length - ends, inner])})


def _traces(side: Side, spectrum: SiteSpectrum, low: float) -> list[dict[str, Any]]:
    kept = _drawn(spectrum, _POINTS)
    head = side.lettered(f"<b>block {spectrum.layer}</b> · {site_name(spectrum.site)} · {spectrum.n} × {spectrum.d}")
    line = {
        "type": "scatter",
        "mode": "lines+markers" if len(kept) < 12 else "lines",
        "name": side.letter or "spectrum",
        "showlegend": bool(side.letter),
        "x": [k for k, _, _ in kept],
        "y": [short(mean) for _, mean, _ in kept],
        "customdata": [short(std, 2) for _, _, std in kept],
        "line": {"color": colour(spectrum.site), "width": 2.5, "dash": side.dash},
        "hovertemplate": head + "<br>ln σ<sub>%{x}</sub>/σ<sub>max</sub> = %{y:.2f} ± %{customdata}<extra></extra>",
    }
    return [
        _band(spectrum),
        line,
        *([_floor(spectrum, low)] if spectrum.floor is not None and side.letter != "B" else []),
    ]


def _drawn(spectrum: SiteSpectrum, points: int) -> list[tuple[int, float, float]]:
    """(k, mean, std) of the points that are drawn."""
    triples = [
        (k, mean, std or 0.0)
        for k, (mean, std) in enumerate(zip(spectrum.log_sigma, spectrum.std, strict=True), 1)
        if mean is not None
    ]
    return [triples[p] for p in thinned(len(triples), points)]


def _band(spectrum: SiteSpectrum) -> dict[str, Any]:
    there = [(k, short(mean + std, 3)) for k, mean, std in _drawn(spectrum, _FEW_POINTS)]
    back = [(k, short(mean - std, 3)) for k, mean, std in _drawn(spectrum, _FEW_POINTS)[::-1]]
    x, y = zip(*there, *back, strict=True) if there else ((), ())
    band = {"type": "scatter", "mode": "none", "fill": "toself", "fillcolor": colour(spectrum.site), "opacity": 0.15}
    return band | {"x": x, "y": y, "hoverinfo": "skip", "showlegend": False}


def _floor(spectrum: SiteSpectrum, low: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "numerical floor",
        "showlegend": not _far_below(spectrum, low),
        "x": [1, max(2, len(spectrum.log_sigma))],
        "y": [short(spectrum.floor)] * 2,
        "line": {"color": report.BEFORE, "width": 1.5, "dash": "dash"},
        "hovertemplate": "numerical floor: %{y:.2f}<extra></extra>",
    }


def _floor_below(
    spectrum: SiteSpectrum, low: float, when: dict[str, int]
) -> list[tuple[dict[str, int], dict[str, Any]]]:
    """Where the floor is far under the curve, a word at the edge instead of an empty half of the chart."""
    if not _far_below(spectrum, low):
        return [(when, {"annotations": []})]
    text = f"↓ numerical floor at −{abs(spectrum.floor or 0):.1f}"
    return [(when, {"annotations": [corner_note(text)]})]


def _far_below(spectrum: SiteSpectrum, low: float) -> bool:
    return spectrum.floor is not None and spectrum.floor < 1.06 * low


def _faint(spectra: Sequence[SiteSpectrum], number: int) -> dict[str, Any]:
    """All blocks of a site as one grey trace."""
    x: list[int | None] = []
    y: list[float | None] = []
    for spectrum in spectra:
        kept = thinned(len(spectrum.log_sigma), _FEW_POINTS)
        x += [*(p + 1 for p in kept), None]
        y += [*(short(spectrum.log_sigma[p], 3) for p in kept), None]
    line = {"color": report.BEFORE, "width": 1}
    faint = {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "opacity": 0.3}
    return faint | {"hoverinfo": "skip", "showlegend": False, "when": {"site": number}}


def _lowest(spectra: Sequence[SiteSpectrum]) -> float:
    """Lower end of the axis: the lowest mean, or the floor if it is near that."""
    low = min((v for spectrum in spectra for v in spectrum.log_sigma if v is not None), default=-1.0)
    near = [spectrum.floor for spectrum in spectra if spectrum.floor is not None and 1.5 * low <= spectrum.floor < low]
    return min([low, -0.1, *near])


def _first(sites: list[str]) -> int:
    return sites.index("sab_out") if "sab_out" in sites else 0


def _plain_name(site: str) -> str:
    """For a control of the page, which escapes by itself."""
    name = site_name(site)
    return name if name != report.plotly_text(site, 30) else site
