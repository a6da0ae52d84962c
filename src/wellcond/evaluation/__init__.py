"""The judges: a frozen model and images → (name, value) pairs. Floor 6, under the loop that asks them.

    accuracy      top-1, top-5 of the model's own head        features    tokens and keys of any block
    knn           nearest neighbours                          linear      a linear probe, many rates at once
    segmentation  a dense linear probe, mean IoU              pca         principal components as colours
    tokencut      the object of a picture                     discovery   CorLoc and IoU of these objects
    components, boxes    of masks                             scenes      pictures of any size, in batches of one
    judges        all of these as judges of a Subject         subject, settings    who is judged, and how
    keeping       features that are read once

They know neither the command line nor the disk.
"""

from wellcond.evaluation.accuracy import Correct, count_correct
from wellcond.evaluation.features import Backbone
from wellcond.evaluation.judges import JUDGES, Judge
from wellcond.evaluation.scenes import Scene
from wellcond.evaluation.settings import Settings
from wellcond.evaluation.subject import Half, Subject

__all__ = [
    "JUDGES",
    "Backbone",
    "Correct",
    "Half",
    "Judge",
    "Scene",
    "Settings",
    "Subject",
    "count_correct",
]
