"""Draw README's picture, docs/kappa.png, from computed numbers:  make picture

One generated picture, the same grayed by SVD and by DCT, and the three singular spectra.
"""

from pathlib import Path

from wellcond.data.procedural import procedural
from wellcond.pictures import gray_picture
from wellcond.report import BEFORE, DCT, SVD
from wellcond.strip import Curve, draw_strip

image = procedural(1).image
svd = gray_picture(image, method="svd", epsilon=0.7)
dct = gray_picture(image, method="dct", epsilon=0.95)
shown = [
    ("original", image, svd.spectrum_before, BEFORE),
    ("SVD graying, 0.7", svd.after, svd.spectrum_after, SVD),
    ("DCT graying, 0.95", dct.after, dct.spectrum_after, DCT),
]
strip = draw_strip(
    [(pixels, name) for name, pixels, _, _ in shown],
    [
        Curve(sigma=spectrum.sigma, name=f"{name}: condition {spectrum.kappa:.0f}", colour=colour)
        for name, _, spectrum, colour in shown
    ],
)
out = Path(__file__).with_name("kappa.png")
strip.save(out, optimize=True)
print(*(f"{name}: κ = {spectrum.kappa:.1f}" for name, _, spectrum, _ in shown), f"→ {out}", sep="\n")
