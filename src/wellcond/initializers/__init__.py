"""How a model begins: with which weights it can be trained without skips.

    skipless     init_skipless_: "Cutting the Skip" (arXiv 2510.00345)
    mimetic      mimetic_: "Mimetic Initialization of Self-Attention Layers" (Trockman & Kolter, ICML 2023)
    calibrating  calibrate_: a temperature for every block, from a batch of images
    drawing      the matrices themselves: suo_, orthogonal ones, factors of αZ + βI

All random numbers are drawn on the CPU in float64, and everything is decomposed there: the same seed gives the same
bits on one machine, whatever its threads, and the same weights to 1e-6 on another, whatever the device of the model.
"""

from wellcond.initializers.calibrating import calibrate_
from wellcond.initializers.drawing import suo_
from wellcond.initializers.mimetic import mimetic_
from wellcond.initializers.skipless import init_skipless_

__all__ = ["calibrate_", "init_skipless_", "mimetic_", "suo_"]
