"""The rows of `probes` and warnings inside anybody's own training loop. Reads diagnosis, so it stands under it.

    monitoring  Monitor: step(), warnings, state
    batch       the images: given, or the first of the first batch that the model is trained on
    measuring   one measurement without waiting for the GPU
    budget      what it costs, and when the next one is affordable
    alarms      rows, now and at the start → findings in plain words
    journal     one JSON line for each measurement; resumes after a crash

Training with a monitor is bit for bit the training without it.
"""

from wellcond.monitor.journal import Measurement, read
from wellcond.monitor.monitoring import Monitor, WellcondWarning

__all__ = ["Measurement", "Monitor", "WellcondWarning", "read"]
