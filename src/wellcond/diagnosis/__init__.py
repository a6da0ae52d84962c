"""What the numbers mean, once: diagnose a model on images → rows, findings, one page. Floor 5."""

from wellcond.diagnosis.result import Advice, Diagnosis, Finding

__all__ = ["Advice", "Diagnosis", "Finding"]
