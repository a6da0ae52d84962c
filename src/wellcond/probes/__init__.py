"""What can be measured in a block: model × batches of images → rows (layer, site, quantity, value).

    quantities  numbers about one matrix of tokens and one attention map, for each image
    rows        Row, and streaming moments over images
    prober      sites in, rows out
    probing     probe: one pass over the batches

Measured for each image and then averaged ("Always Skip Attention", arXiv 2505.01996, averages log κ over images).
"""

from wellcond.probes.probing import probe
from wellcond.probes.quantities import ATTENTION_QUANTITIES, QUANTITIES, TOKEN_QUANTITIES
from wellcond.probes.rows import Row

__all__ = ["ATTENTION_QUANTITIES", "QUANTITIES", "TOKEN_QUANTITIES", "Row", "probe"]
