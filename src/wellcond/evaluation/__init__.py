"""The judges: a model and images → numbers. Floor 6, under the loop that asks them.

They know neither the command line nor the disk.
"""

from wellcond.evaluation.accuracy import Correct, accuracy, count_correct

__all__ = ["Correct", "accuracy", "count_correct"]
