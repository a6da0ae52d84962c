"""What moves the weights. Floor 6.

schedules   learning rate and averaging weight, pure functions of the step
groups      which parameter decays, and how fast its layer learns
soap        SOAP: Adam in the eigenbasis of Shampoo's preconditioner, equal shapes at once
updates     AdamW, SOAP or Muon + AdamW behind one face: skip without asking the host, state by parameter name
average     exponential moving average of the weights
decay       weight decay that changes with the step
"""

from wellcond.optim.average import WeightAverage
from wellcond.optim.decay import ScheduledDecay
from wellcond.optim.groups import Group, parameter_groups
from wellcond.optim.schedules import average_weight, cosine, learning_rate, weight_decay
from wellcond.optim.soap import SOAP
from wellcond.optim.updates import Updates, build_updates

__all__ = [
    "SOAP",
    "Group",
    "ScheduledDecay",
    "Updates",
    "WeightAverage",
    "average_weight",
    "build_updates",
    "cosine",
    "learning_rate",
    "parameter_groups",
    "weight_decay",
]
