"""The judges: a model and images → numbers. Floor 6, under the loop that asks them.

They know neither the command line nor the disk.
"""

from wellcond.evaluation.accuracy import Correct, accuracy, count_correct
from wellcond.evaluation.judges import JUDGES, Judge, Subject

__all__ = ["JUDGES", "Correct", "Judge", "Subject", "accuracy", "count_correct"]
