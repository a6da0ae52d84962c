"""What can be measured in a block: model × batches of images → rows (layer, site, quantity, value).

    quantities  numbers about one matrix of tokens and one attention map, for each image
    rows        Row, SiteSpectrum, and streaming moments over images
    spectra     streaming moments of whole spectra, on the device
    prober      sites in, rows and spectra out
    probing     probe, measure: one pass over the batches

Measured for each image and then averaged ("Always Skip Attention", arXiv 2505.01996, averages log κ over images).
"""

from wellcond.probes.probing import measure, probe
from wellcond.probes.quantities import ATTENTION_QUANTITIES, QUANTITIES, TOKEN_QUANTITIES
from wellcond.probes.rows import Measured, Row, SiteSpectrum

__all__ = [
    "ATTENTION_QUANTITIES",
    "QUANTITIES",
    "TOKEN_QUANTITIES",
    "Measured",
    "Row",
    "SiteSpectrum",
    "measure",
    "probe",
]
